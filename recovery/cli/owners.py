"""Options that name owners: where else partitions are."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.cli.common import say, tell
from recovery.cli.config_options import config_option
from recovery.cli.tables import table
from recovery.planning.copies import Location, copies_json
from recovery.planning.owner_facts import SeenOwner
from recovery.storage.copied import files_of
from recovery.storage.store import OwnerAccess, Store
from recovery.wire.looking import seen_owners

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


def store_at(directory: Path, access: OwnerAccess) -> Store:
    """Return the store that a command looks at or changes. Its connections end with the command."""
    store = Store(directory, access.connect(LOOK_S))
    click.get_current_context().call_on_close(store.release)
    return store


def store_to_read(directory: Path, access: OwnerAccess) -> Store:
    """Return what `looked_at` yields, until the command ends."""
    return click.get_current_context().with_resource(looked_at(directory, access))


@contextlib.contextmanager
def looked_at(directory: Path, access: OwnerAccess) -> Iterator[Store]:
    """Yield a store to read, whose connections end with the block; then say which copies were not used."""
    store = Store(directory, access.connect(LOOK_S))
    try:
        yield store
    finally:
        store.release()
    for note in store.notes:
        tell(one_line(note))


def ask_owners(access: OwnerAccess) -> list[SeenOwner]:
    """Return what the owners say of themselves; without owners, nothing."""
    owners = access.connect(LOOK_S)
    try:
        return seen_owners(owners, SystemClock())
    finally:
        for owner in owners:
            owner.release()


def owners_text(owners: Sequence[SeenOwner]) -> str:
    """Return a table of what owners say of themselves."""
    rows = [each.cells() for each in owners]
    return table(tuple(rows[0]), [tuple(map(one_line, row.values())) for row in rows])


def to_read(directory: Path, access: OwnerAccess) -> Path:
    """Return a directory with all partitions as files, until the command ends: see `files_of`."""
    return click.get_current_context().with_resource(files_of(store_to_read(directory, access)))


def say_copies(asked: Sequence[Location]) -> None:
    """Print what each location has."""
    facts = copies_json(asked)
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
