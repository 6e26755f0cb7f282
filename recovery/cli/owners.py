"""Options that name owners: where else partitions are."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import click

from recovery.base.clock import SystemClock
from recovery.base.credentials.task_key import task_key
from recovery.base.printable import one_line
from recovery.cli.common import say, tell
from recovery.cli.config_options import config_option
from recovery.cli.tables import table
from recovery.planning.copies import Location
from recovery.storage.copied import copies_of
from recovery.storage.locations import Locations, OwnerAccess
from recovery.storage.lock import check_unlocked
from recovery.storage.standby import refuse_standby

VERIFIES = "A PEM file of certificates that verify the owners."
RECEIVES = (
    "An [owner](#serve) without partitions, which [gets partitions](clusters.md#restoring-to-owners): each owner as "
    "many, in the order in which the owners are named. RECOVERY_OWNERS does not count here."
)
LOOK_S = 10.0
"""How long a command that looks tries to reach an owner."""


def owner_options(function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """Add --owner, --token-file and --tls-ca, which the command gets as one argument `access`. more: other arguments of
    --owner."""

    @functools.wraps(function)
    def command(*, owners: tuple[str, ...], token_file: Path | None, tls_ca: Path | None, **others: Any) -> Any:
        return function(access=OwnerAccess(owners, token_file, tls_ca), **others)

    command = config_option("tls_ca", help=VERIFIES, without="no TLS")(command)
    return config_option("owners", **more)(config_option("token_file")(command))


def receiving_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `owner_options` for owners that get partitions: only the command line names them."""
    return owner_options(function, envvar=None, help=RECEIVES)


def locations(directory: Path, access: OwnerAccess) -> Locations:
    """Return the locations that a look asks."""
    return Locations(directory, access.connect(LOOK_S))


@contextlib.contextmanager
def whole_copies(directory: Path, access: OwnerAccess) -> Iterator[Path]:
    """Yield a directory with all partitions: the given one, or with owners one of copies, as of one moment, which is
    removed afterwards."""
    if not access.owners:
        yield directory
        return
    places = locations(directory, access)
    with contextlib.ExitStack() as held:
        try:
            found = held.enter_context(_told_copies(places))
        finally:
            places.release()
        yield found


@contextlib.contextmanager
def locked_copies(directory: Path, access: OwnerAccess, purpose: str, *, only_check: bool = False) -> Iterator[Path]:
    """Yield what `whole_copies` yields; with owners, they and the directory are locked until the block ends, or, with
    `only_check`, are found free. Without owners, the block locks the directory. Raises DirectoryLockedError during a
    run, StandbyDirectoryError, and what `copies_of` raises."""
    if not access.owners:
        yield directory
        return
    refuse_standby(directory)
    places = locations(directory, access)
    with contextlib.ExitStack() as held:
        if only_check:
            held.callback(places.release)
            check_unlocked(directory)
            places.check_free()
        else:
            held.enter_context(places.locked(SystemClock(), token_hex(8), purpose, task_key()))
        yield held.enter_context(_told_copies(places))


@contextlib.contextmanager
def _told_copies(places: Locations) -> Iterator[Path]:
    """Yield what `copies_of` yields, after a line for each copy that is not used."""
    with copies_of(places) as found:
        for note in places.notes:
            tell(one_line(note))
        yield found


def to_read(directory: Path, access: OwnerAccess) -> Path:
    """Return a directory with all partitions until the command ends: `directory`, or copies of what owners have."""
    return click.get_current_context().with_resource(whole_copies(directory, access))


def shown_path(path: Path, directory: Path) -> str:
    """Return a file's name; with its location if it is elsewhere."""
    return path.name if path.parent == directory else str(path)


def copies_facts(asked: Sequence[Location]) -> list[dict[str, Any]]:
    """Return what each location has as plain values."""
    return [
        {
            "location": location.name,
            "file": each.path.name,
            "store_id": each.store_id,
            "execution": max((run.number for run in each.executions), default=0),
            "newest_epoch": each.newest_epoch,
        }
        for location in asked
        for each in location.partitions
    ]


def say_copies(asked: Sequence[Location]) -> None:
    """Print what each location has."""
    facts = copies_facts(asked)
    rows = [
        (each["location"], each["file"], each["store_id"], each["execution"], each["newest_epoch"]) for each in facts
    ]
    say(table(("location", "file", "store", "execution", "newest epoch"), rows))
    for empty in (location.name for location in asked if not location.partitions):
        say(one_line(f"{empty}: no partition"))


def say_links(links: Mapping[str, str]) -> None:
    """Say which partitions are links: what is written to links goes elsewhere."""
    for name, real in links.items():
        say(one_line(f"{name} is a link to {real}"))
