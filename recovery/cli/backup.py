"""`recovery backup DIR DEST`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from recovery.base.addresses import local_path
from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.backup_progress import CopyProgress
from recovery.cli.common import (
    INTERVAL,
    format_size,
    format_time,
    json_option,
    print_json,
    say,
    tell,
    tell_error,
    umask_option,
)
from recovery.cli.config_options import config_option
from recovery.cli.dry_run import dry_run_option
from recovery.cli.option import ParsedType, option
from recovery.cli.output_errors import of_output
from recovery.cli.owners import looked_at, owner_options
from recovery.cli.restore_output import lines_text
from recovery.cli.signals import answering
from recovery.cli.tables import table
from recovery.errors import BackupTargetError, ConfigurationError, NoBackupError, RecoveryError, StorageError
from recovery.host.signals import StopSignals
from recovery.planning.backups import KeepRule, parse_keep
from recovery.storage.copied import files_of
from recovery.storage.store import OwnerAccess

if TYPE_CHECKING:
    # These import Arrow, which other commands need not wait for.
    from recovery.backup.catalog import Catalog
    from recovery.backup.make import Made
    from recovery.backup.repository import Listing, Pruned
    from recovery.backup.writer import Writer
    from recovery.places.protocol import Place


PASSING = (BackupTargetError, StorageError)
"""Errors that may be gone at the next attempt: an unreachable service, a full disk."""
NOT_REMOVED = "the backup counts, but older ones could not be removed"


class KeepType(ParsedType[KeepRule]):
    """A rule for keeping backups: 24, 7d or 90d/1d."""

    name = "keep"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> KeepRule:
        try:
            return parse_keep(value)
        except ConfigurationError as error:
            self.fail(f"{error.found}. {error.remedy}", param, ctx)


@click.command()
@click.argument("places", metavar="[DIR] DEST", nargs=-1, required=True)
@option("--every", type=INTERVAL,
        help="Make a backup at this interval, until SIGTERM, Ctrl-C or SIGHUP, which let a backup that is being made "
             "finish; a second signal ends immediately. An unreachable place or a full disk is reported, and tried "
             "again.")  # fmt: skip
@option("--keep", type=KeepType(), multiple=True, metavar="N|AGE|AGE/EVERY", without="all stay",
        help="Remove older backups: keep the newest 24, those younger than 7d, or 90d/1d: one a day for 90 days. A "
             "backup stays if any rule keeps it. The latest always stays, and ages are counted from it.")  # fmt: skip
@option("--list", "listed", is_flag=True,
        help="Only show the backups at DEST, and whether [several directories](backup.md#one-writer) made "
             "them.")  # fmt: skip
@option("--prune", "pruned", is_flag=True,
        help="Make no backup; remove those that no --keep rule keeps, and what unfinished or damaged backups have "
             "left, if that is older than a day.")  # fmt: skip
@dry_run_option("With --prune: show what would be removed; remove nothing.")
@option("--incremental", is_flag=True,
        help="Store only [what changed in each partition since the previous backup]"
             "(backup.md#incremental-backups). For that, give the run a backup interval (-b) longer than the time "
             "between two backups; otherwise whole copies are stored, and the command says why.")  # fmt: skip
@config_option("takeover",
        help="After a restore: make DIR the [writer](backup.md#one-writer) of DEST, in place of another directory, "
             "whose backups are refused from then on.")  # fmt: skip
@config_option("lose_epochs",
        help="Make the backup the latest one although DEST has epochs, or with --takeover newer operational state, "
             "that DIR lacks. What DIR lacks is lost; `restore --epoch` still reaches the epochs. Without "
             "--lose-epochs, the backup ends "
             "with StaleDirectoryError (53).")  # fmt: skip
@option("--verify", "check", was="--check", is_flag=True,
        help="Read each copy in full and check every digest before it is stored; a damaged copy is not stored. Objects "
             "of earlier backups that are part of the new backup are read too, and stored again if they are "
             "damaged.")  # fmt: skip
@umask_option
@owner_options
@json_option
def backup(
    places: tuple[str, ...],
    every: float | None,
    keep: tuple[KeepRule, ...],
    listed: bool,
    pruned: bool,
    dry_run: bool,
    incremental: bool,
    takeover: bool,
    lose_epochs: bool,
    check: bool,
    umask: bool,
    access: OwnerAccess,
    as_json: bool,
) -> None:
    """Copy the partitions of DIR to DEST. Works during a run.

    DEST is a directory, or s3://, gs://, azure://. DIR can be left out when RECOVERY_DIRECTORY is set. A partition that
    did not change is not stored again. A backup counts once it is complete. Restore with `recovery restore DEST DIR`.

    One directory is backed up to DEST. The first backup claims DEST for DIR; another directory of the store is refused
    until --takeover is given.
    """
    decides = takeover or lose_epochs
    _check(places, every, makes=not (listed or pruned), modes=listed + pruned + (every is not None), decides=decides)
    if pruned and not keep:
        raise click.UsageError("Say with --keep which backups to keep.")
    if dry_run and not pruned:
        raise click.UsageError("--dry-run shows what --prune would remove: give both.")
    from recovery.backup.catalog import Catalog
    from recovery.backup.repository import list_backups, prune
    from recovery.backup.writer import Writer
    from recovery.places.mounted import limited
    from recovery.places.opening import open_place

    target = open_place(places[-1], umask=umask)
    if every is not None:
        target = limited(target)
    if listed:
        _show(target, list_backups(target), as_json)
        return
    if pruned:
        done = prune(target, keep, SystemClock().wall_ms(), dry_run=dry_run)
        _say_pruned(target, done, dry_run, as_json)
        return
    directory = _directory(places)
    writer = Writer(
        directory, target, SystemClock(), lambda: token_hex(8), place=places[-1], takeover=takeover,
        lose_epochs=lose_epochs,
    )  # fmt: skip
    how = _How(directory, target, keep, check, incremental, as_json, Catalog(target), writer, access)
    if every is None:
        unpruned = _once(how, CopyProgress(quiet=as_json))
        if unpruned is not None:
            if not as_json:
                tell_error(f"{NOT_REMOVED}: {unpruned}")
            raise SystemExit(unpruned.exit_code)
    else:
        _again_and_again(how, every)


def _check(places: tuple[str, ...], every: float | None, *, makes: bool, modes: int, decides: bool) -> None:
    """Raises UsageError for options that do not fit together. modes: how many of --every, --list and --prune are given.
    decides: --takeover or --lose-epochs is."""
    if len(places) > 2 or modes > 1:
        raise click.UsageError("Give [DIR] DEST, and one of --every, --list and --prune at most.")
    if every == 0:
        raise click.UsageError("--every 0 would never stop copying: give the time between two backups.")
    if decides and (every is not None or not makes):
        raise click.UsageError(
            "--takeover and --lose-epochs decide once: give them to one backup, without --every, --list and --prune."
        )


def _directory(places: tuple[str, ...]) -> Path:
    named = places[0] if len(places) == 2 else os.environ.get("RECOVERY_DIRECTORY")
    if not named:
        raise click.UsageError("Give the recovery directory before DEST, or set RECOVERY_DIRECTORY.")
    return local_path(named)


class _How(NamedTuple):
    """What the options say about each backup."""

    directory: Path
    target: Place
    keep: tuple[KeepRule, ...]
    check: bool
    incremental: bool
    as_json: bool
    catalog: Catalog
    writer: Writer
    access: OwnerAccess


def _once(how: _How, progress: CopyProgress, line: bool = False) -> RecoveryError | None:
    """Make a backup, prune, and report both. Returns the error that stopped the pruning: the backup already counts."""
    from recovery.backup.make import make_backup
    from recovery.backup.repository import prune

    clock, target, keep = SystemClock(), how.target, how.keep
    with looked_at(how.directory, how.access) as store, files_of(store) as directory:
        made = make_backup(
            directory, target, clock=clock, random_id=lambda: token_hex(4), check=how.check,
            incremental=how.incremental, observe=progress.observe, catalog=how.catalog, writer=how.writer,
            home=how.directory,
        )  # fmt: skip
    removed: Pruned | None = None
    unpruned: RecoveryError | None = None
    try:
        if keep:
            removed = prune(target, keep, clock.wall_ms(), how.catalog, made.manifest)
    except RecoveryError as error:
        unpruned = error
    if how.as_json:
        print_json(_made_facts(target, made, removed, unpruned), line=line)
        return unpruned
    _say_made(made)
    if removed is not None and removed.removed:
        say(f"removed {len(removed.removed)} older, {format_size(removed.stored_bytes)}; {len(removed.kept)} left")
    return unpruned


def _again_and_again(how: _How, every_s: float) -> None:
    """Make a backup at each interval. Passing errors are reported, and the next interval tries again."""
    clock = SystemClock()
    signals = StopSignals()
    once = partial(_once, how, CopyProgress(quiet=True), line=True)
    pause_s = 0.0
    while not signals.came_within(pause_s):
        began_s = clock.elapsed_s()
        try:
            with answering("the backup under way"):
                _or_say_why(once, how.as_json)
        except OSError as error:
            if not of_output(error):
                raise
            tell(f"{format_time(clock.wall_ms())} standard output cannot be written: {error}")
        pause_s = max(0.0, every_s - (clock.elapsed_s() - began_s))


def _or_say_why(once: Callable[[], RecoveryError | None], as_json: bool) -> None:
    """Make a backup, or report a temporary failure. Raises errors that are not temporary."""
    try:
        unpruned = once()
        if unpruned is not None and not isinstance(unpruned, PASSING):
            raise unpruned
        if unpruned is None or as_json:
            return
        failed, found = NOT_REMOVED, one_line(unpruned.found)
    except PASSING as error:
        if as_json:
            print_json(error.as_json(), line=True)
            return
        failed, found = "failed", one_line(error.found)
    tell(f"{format_time(SystemClock().wall_ms())} {failed}, it will be retried: {found}")


def _made_facts(target: Place, made: Made, removed: Pruned | None, unpruned: RecoveryError | None) -> dict[str, Any]:
    from recovery.backup.repository import manifest_json

    return {
        "destination": target.shown,
        **manifest_json(made.manifest),
        "stored": made.stored,
        "changes_stored": made.linked,
        "unchanged": made.reused,
        "whole_because": dict(made.whole_because),
        "read_bytes": made.read_bytes,
        "stored_bytes": made.stored_bytes,
        "elapsed_s": made.elapsed_s,
        "removed": list(removed.removed) if removed else [],
        "pruning_problem": unpruned.as_json() if unpruned else None,
    }


def _say_made(made: Made) -> None:
    stored = [f"{counted(made.stored, 'partition')} stored"] if made.stored or not made.linked else []
    stored += [f"changes of {counted(made.linked, 'partition')} stored"] if made.linked else []
    stored += [f"{made.reused} unchanged"] if made.reused else []
    size = f"{format_size(made.read_bytes)} as {format_size(made.stored_bytes)}"
    say(
        f"backup {made.manifest.id} of epoch {made.manifest.epoch}: {', '.join(stored)}, {size} "
        f"in {made.elapsed_s:.1f} s"
    )
    for why, names in _by_reason(made.whole_because):
        say(f"{names} stored whole: {why}")


def _by_reason(whole_because: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each reason with the files that it applies to."""
    return [
        (why, ", ".join(sorted(name for name, each in whole_because.items() if each == why)))
        for why in sorted(set(whole_because.values()))
    ]


def _say_pruned(target: Place, done: Pruned, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "destination": target.shown,
                "dry_run": dry_run,
                "kept": list(done.kept),
                "removed": list(done.removed),
                "leftovers": list(done.leftovers),
                "objects": done.objects,
                "bytes": done.stored_bytes,
            }
        )
        return
    removed = "would remove" if dry_run else "removed"
    for each in done.removed:
        say(one_line(f"{removed} backup {each}"))
    for each in done.leftovers:
        say(one_line(f"{removed} {each}, of a backup that is unfinished or damaged"))
    say(
        f"{removed} {counted(len(done.removed), 'backup')} and {counted(done.objects, 'object')}, "
        f"{format_size(done.stored_bytes)}; {counted(len(done.kept), 'backup')} left"
    )


def _show(target: Place, listing: Listing, as_json: bool) -> None:
    if not listing.manifests and not listing.unreadable:
        _check_place(target)
    if as_json:
        print_json(listing.as_json(target.shown))
        return
    chains = any(copy.changes for manifest in listing.manifests for copy in manifest.copies)
    rows = [
        (
            manifest.id,
            format_time(manifest.started_ms),
            manifest.epoch,
            len(manifest.copies),
            sum(manifest.id in copy.origin for copy in manifest.copies),
            *((max(len(copy.objects) for copy in manifest.copies),) if chains else ()),
            format_size(sum(copy.description.size_bytes for copy in manifest.copies)),
            format_size(sum(copy.stored_by(manifest.id) for copy in manifest.copies)),
        )
        for manifest in listing.manifests
    ]
    if rows:
        heads = ("backup", "taken", "epoch", "partitions", "new", *(("chain",) if chains else ()), "size", "stored")
        say(table(heads, rows))
    else:
        say(one_line(f"no finished backup in {target.shown}"))
    for entry in listing.unreadable:
        say(one_line(f"{entry.name} cannot be read: it is unfinished or damaged, so it is not used"))
    for line in lines_text(listing.lines):
        say(line)


def _check_place(target: Place) -> None:
    """Raises NoBackupError for a place that clearly does not hold backups."""
    from recovery.places.directory import DirectoryPlace

    if not isinstance(target, DirectoryPlace):
        return
    if not target.root.is_dir():
        found = "it is not a directory" if target.root.exists() else "there is no such directory"
        raise NoBackupError(found, path=target.root)
    if any(target.root.glob("part-*.sqlite3")):
        raise NoBackupError(
            "it holds recovery partitions, or copies of them",
            path=target.root,
            cause="This is a recovery directory, not a backup destination.",
            remedy="Name the destination that backups were written to.",
        )
