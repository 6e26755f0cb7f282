"""`recovery gc DIR`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
from click.core import ParameterSource

from recovery.base.clock import Clock, SystemClock
from recovery.base.wording import counted, listed, moment_text
from recovery.cli.common import directory_argument, format_size, json_option, print_json, say
from recovery.cli.config_options import config_option
from recovery.cli.dry_run import dry_run_option
from recovery.cli.owners import owner_options, store_at
from recovery.epochs.snapshot import SharedEpochs
from recovery.errors import RecoveryError
from recovery.operational.backends.owned import documents_of
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.scopes import remove_expired
from recovery.planning.going_back import check_history, kept_interval_s
from recovery.planning.resume import common_cuts, plan_resume
from recovery.storage.connect import SCRATCH_NAME
from recovery.storage.copied import copies_of
from recovery.storage.hydration import refuse_hydrating
from recovery.storage.store import OwnerAccess, Store


class _Collected(NamedTuple):
    """What was collected. window: the epochs after which runs could resume before, and can now."""

    floor: int
    window: tuple[list[int], list[int]]
    rows: int
    changes: int
    expired: int
    after_bytes: int


@click.command()
@directory_argument
@config_option("backup_interval", envvar="RECOVERY_BACKUP_INTERVAL", without="that of the last run",
               help="Keep superseded snapshots that are younger than this.")  # fmt: skip
@config_option("discard_history",
        help="Allow RECOVERY_BACKUP_INTERVAL to be shorter than the last run's backup interval. -b on the command line "
             "needs no confirmation.")  # fmt: skip
@dry_run_option("Collect in [whole copies](clusters.md#commands-and-owners) of all partitions, which are removed "
                "afterwards, and show what that gives.")  # fmt: skip
@owner_options
@json_option
def gc(
    directory: Path,
    backup_interval: float | None,
    discard_history: bool,
    dry_run: bool,
    access: OwnerAccess,
    as_json: bool,
) -> None:
    """Collect what the backup interval no longer needs.

    Also folds what a killed run left logged, removes scoped state whose retention has passed, and gives the space
    back. End the run first.
    """
    clock = SystemClock()
    # -b 0 is explicit; a variable may have been set for other directories.
    checks = not discard_history and not _on_command_line("backup_interval")
    with contextlib.ExitStack() as held:
        store = store_at(directory, access)
        before = sum(file.description.size_bytes for file in store.found() if file.description is not None)
        refuse_hydrating(directory, "gc")
        held_store = held.enter_context(_copies(store) if dry_run else store.locked(clock, "gc"))
        done = _collect(held_store, backup_interval, checks, clock)
    if as_json:
        print_json({
            "directory": str(directory), "dry_run": dry_run, "floor": done.floor, "window": done.window[1],
            "rows": done.rows, "changes": done.changes, "expired": done.expired, "bytes_before": before,
            "bytes_after": done.after_bytes,
        })  # fmt: skip
        return
    say(_text(done, before, dry_run))


@contextlib.contextmanager
def _copies(store: Store) -> Iterator[Store]:
    """Yield copies of the partitions in a directory that is removed afterwards. Raises DirectoryLockedError during a
    run, and StandbyDirectoryError, as collecting does."""
    store.check_free()
    with copies_of(store) as directory:
        yield Store(directory)


def _collect(store: Store, backup_interval: float | None, checks: bool, clock: Clock) -> _Collected:
    """Collect in partitions that this process has for itself. checks: refuse an interval that discards history."""
    plan = plan_resume(store.found())
    if checks:
        check_history(plan, backup_interval, moment_text)
    interval_s = kept_interval_s(plan.partitions, backup_interval)
    expired, damage = 0, None
    try:
        # Remove them before the space is given back.
        expired = remove_expired(documents_of(store, clock, RetryPolicy()), clock.wall_ms())
    except RecoveryError as error:
        damage = error
    partitions = store.connect(plan.partitions, store.directory / SCRATCH_NAME, clock)
    try:
        floor = SharedEpochs(partitions, plan, clock, backup_interval_s=interval_s).time().floor
        collected = partitions.collect(floor)
        described = partitions.describe()
    finally:
        partitions.release()
    if damage is not None:
        raise damage
    return _Collected(
        floor=floor,
        window=(list(plan.window), sorted(cut[0] for cut in common_cuts(described))),
        rows=sum(each.rows for each in collected),
        changes=sum(each.changes for each in collected),
        expired=expired,
        after_bytes=sum(each.size_bytes for each in described),
    )


def _text(done: _Collected, before_bytes: int, dry_run: bool) -> str:
    collect, fold, remove = ("would collect", "fold", "remove") if dry_run else ("collected", "folded", "removed")
    also = f", and {fold} {counted(done.changes, 'logged change')}" if done.changes else ""
    if done.expired:
        also += f", and {remove} {counted(done.expired, 'expired state')}"
    sizes = f"{format_size(before_bytes)} → {format_size(done.after_bytes)}"
    lines = [f"{collect} {counted(done.rows, 'superseded row')} up to epoch {done.floor}{also}: {sizes}"]
    given_up = [epoch for epoch in done.window[0] if epoch not in done.window[1]]
    if given_up:
        can = "could" if dry_run else "can"
        lines.append(f"runs {can} no longer go back to the snapshots after epoch {listed(given_up)}")
    return "\n".join(lines)


def _on_command_line(option: str) -> bool:
    return click.get_current_context().get_parameter_source(option) == ParameterSource.COMMANDLINE
