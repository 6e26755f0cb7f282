"""`recovery restore SRC DIR`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

import click

from recovery.base.clock import Clock, SystemClock
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.backup_progress import CopyProgress
from recovery.cli.common import DIRECTORY, format_size, json_option, print_json, say, umask_option
from recovery.cli.dry_run import dry_run_option
from recovery.cli.option import ParsedType, epoch_option, option
from recovery.cli.owners import receiving_options
from recovery.cli.restore_missing import missing_to_owners
from recovery.cli.restore_output import announcing, plan_facts, plan_text, reads_facts, reads_text
from recovery.cli.restore_to_owners import RestoreOptions, to_owners
from recovery.errors import BackupTargetError
from recovery.host.durable import PRIVATE, make_directories, sync
from recovery.host.storage_errors import storage_errors
from recovery.planning.going_back import after_text
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.storage.hydration import HydrationProgress, Stop, hydrate_directory, hydrating
from recovery.storage.initialize import clear_killed_attempt
from recovery.storage.scan import scan
from recovery.storage.store import OwnerAccess

if TYPE_CHECKING:
    from recovery.backup.sources import Source


F = TypeVar("F", bound=Callable[..., Any])


class MomentType(ParsedType[int]):
    """A time in local time, or with an offset; converted to milliseconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return int(datetime.fromisoformat(value).astimezone().timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is not a time. Write it like 2026-11-21T16:30:00, if needed with +01:00 or Z.")


def wanted_options(function: F) -> F:
    """Add --epoch and --timestamp: which state to restore, in place of the newest; the command gets `epoch` and
    `at_ms`."""
    text = "Restore the state after this epoch; 0: before the first."
    epoch = epoch_option(text, without="the newest that all copies share")
    moment = option("--timestamp", "at_ms", was="--at", type=MomentType(), metavar="TIME",
                    help="Restore the newest epoch closed at or before this time, such as 2026-11-21T16:30:00 (local "
                         "time), or with Z or an offset.")  # fmt: skip
    return epoch(moment(function))


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("directory", metavar="DIR", type=DIRECTORY, envvar="RECOVERY_DIRECTORY", required=False)
@wanted_options
@option("--lazy", is_flag=True, help="[Let runs use DIR immediately](backup.md#back-before-its-data): the pages that "
        "they read are fetched first, the rest meanwhile. The command ends when all is there; give it again to "
        "continue.")  # fmt: skip
@option("--missing", is_flag=True, help="With --owner: restore only [the partitions that are missing]"
        "(owners.md#replacing), those that neither DIR nor any of the owners has, to the owners that have the fewest "
        "bytes. The others stay.")  # fmt: skip
@dry_run_option("Show what would be restored, what would be lost, and which files and bytes would be read; with "
                "--lazy, how much of them before DIR can be used, and how much meanwhile. If DIR holds partitions, say "
                "what would become of them. Write nothing.")  # fmt: skip
@umask_option
@receiving_options
@json_option
def restore(
    source: str,
    directory: Path | None,
    epoch: int | None,
    at_ms: int | None,
    lazy: bool,
    missing: bool,
    dry_run: bool,
    umask: bool,
    access: OwnerAccess,
    as_json: bool,
) -> None:
    """Restore all partitions from copies into DIR, or nothing.

    DIR must not hold any partitions.

    SRC is a place of backups (a directory, s3://, gs://, azure://), or a plain directory of copied files. Of all copies
    the command takes the newest set with a common epoch, and prints what that loses before it writes anything.

    With --owner, the partitions go to the owners, the same number to each. DIR is then the directory of the run, and
    optional. The command ignores RECOVERY_OWNERS: only the command line says where partitions go.
    """
    if epoch is not None and at_ms is not None:
        raise click.UsageError("Give --epoch or --timestamp, not both.")
    wanted = RestoreOptions(epoch, at_ms, umask, dry_run)
    if missing:
        _check_missing(directory, access, wanted, lazy)
        assert directory is not None
        missing_to_owners(source, directory, access, wanted, as_json)
        return
    if access.owners:
        if lazy:
            raise click.UsageError(
                "--lazy restores to a directory of this host, whose pages runs fetch as they read them; owners get "
                "whole files, which they check before any counts. Leave --lazy out."
            )
        to_owners(source, directory, access, wanted, as_json)
        return
    if directory is None:
        raise click.UsageError("Missing argument 'DIR'.")
    if lazy and not dry_run and _is_begun(source, directory):
        _go_on(directory, as_json)
        return
    _to_directory(source, directory, wanted, lazy, as_json)


def _check_missing(directory: Path | None, access: OwnerAccess, wanted: RestoreOptions, lazy: bool) -> None:
    """Raise UsageError if --missing does not go with the other options."""
    if not access.owners:
        raise click.UsageError(
            "--missing brings partitions to owners. Name all owners of the store: --owner HOST:PORT."
        )
    if directory is None:
        raise click.UsageError("Missing argument 'DIR': the directory of the run, which may have partitions too.")
    if lazy or wanted.epoch is not None or wanted.at_ms is not None:
        given = "--lazy" if lazy else "--timestamp" if wanted.epoch is None else "--epoch"
        raise click.UsageError(
            f"{given} does not go with --missing: owners get whole files, and the partitions that stay decide which "
            "epochs fit."
        )


def _to_directory(place: str, directory: Path, wanted: RestoreOptions, lazy: bool, as_json: bool) -> None:
    from recovery.backup.restore import restore as restore_copies
    from recovery.backup.sources import open_source
    from recovery.host.scratch import scratch_directory
    from recovery.places.opening import lasting_place, open_place, refuse_itself

    refuse_itself(place, directory, "backup")
    clock, progress = SystemClock(), CopyProgress(quiet=as_json)
    with scratch_directory("restore") as scratch:
        found = open_source(open_place(place), scratch, clock)
        lazy_from = lasting_place(place) if lazy else None
        if wanted.dry_run:
            _show(found, place, directory, wanted, lazy, as_json)
            return
        there = _restored_before(found, directory, wanted) if lazy else None
        if there is not None:
            _say_there(directory, there, as_json, continued=False)
            return
        done = restore_copies(
            found,
            directory,
            clock=clock,
            random_id=lambda: token_hex(4),
            epoch=wanted.epoch,
            at_ms=wanted.at_ms,
            umask=wanted.umask,
            lazy_from=lazy_from,
            announce=announcing(progress, found, clock),
            observe=progress.observe,
        )
    if lazy:
        if not as_json:
            say(f"{one_line(directory)} can be used after {done.timings.total_s:.1f} s; fetching the rest")
        continue_hydration(directory, progress)
    if as_json:
        print_json(
            {
                **plan_facts(done.plan, found, clock.wall_ms()),
                "directory": str(directory),
                "dry_run": False,
                "left_out": list(done.left_out),
                "rows": done.rows,
                "bytes": done.size_bytes,
                "elapsed_s": done.timings.total_s,
            }
        )
        return
    say(
        f"restored the state {after_text(done.plan.epoch)}, {counted(len(done.paths), 'partition')}, to "
        f"{one_line(directory)}: {counted(done.rows, 'row')}, "
        f"{format_size(done.size_bytes)} in {done.timings.total_s:.1f} s; the next run resumes at epoch "
        f"{done.plan.resume.resume_epoch}"
    )


def _is_begun(place: str, directory: Path) -> bool:
    """Whether an earlier lazy restore from a place has not fetched all of a directory yet."""
    left = hydrating(directory)
    if not left:
        return False
    from recovery.places.opening import lasting_place

    return any(each.place == lasting_place(place) for each in left)


def _restored_before(found: Source, directory: Path, wanted: RestoreOptions) -> ResumePlan | None:
    """Return the plan of a directory that an earlier lazy restore has made, None if none has."""
    from recovery.backup.restore import restored_before

    return restored_before(found, directory, SystemClock().wall_ms(), epoch=wanted.epoch, at_ms=wanted.at_ms)


def _go_on(directory: Path, as_json: bool) -> None:
    """Fetch the rest of a lazy restore that was ended early."""
    progress = CopyProgress(quiet=as_json)
    left = hydrating(directory)
    missing = sum(each.total_bytes - each.there_bytes for each in left)
    progress.say(
        f"{one_line(directory)} can be used; an earlier restore is continued: {format_size(missing)} of "
        f"{counted(len(left), 'partition')} to fetch"
    )
    continue_hydration(directory, progress)
    _say_there(directory, plan_resume(scan(directory)), as_json, continued=True)


def _say_there(directory: Path, there: ResumePlan, as_json: bool, *, continued: bool) -> None:
    """Say that all of a lazy restore is there. continued: this command has fetched the rest of it."""
    epoch = there.resume_epoch - 1
    if as_json:
        print_json({
            "directory": str(directory), "dry_run": False, "continued": continued, "store_id": there.store_id,
            "epoch": epoch, "resume_epoch": there.resume_epoch,
        })  # fmt: skip
        return
    already = "" if continued else " already"
    say(
        f"all of {one_line(directory)} is there{already}: the state {after_text(epoch)}, "
        f"{counted(len(there.partitions), 'partition')}; the next run resumes at epoch {there.resume_epoch}"
    )


def _show(found: Source, place: str, directory: Path, wanted: RestoreOptions, lazy: bool, as_json: bool) -> None:
    """Show what a restore would do."""
    from recovery.backup.restore import look_into_chains, plan_from

    look_into_chains(found, wanted.epoch, wanted.at_ms)
    plan, now_ms = plan_from(found, epoch=wanted.epoch, at_ms=wanted.at_ms), SystemClock().wall_ms()
    held = sorted(path.name for path in directory.glob("part-*.sqlite3*"))
    if as_json:
        facts = {**plan_facts(plan, found, now_ms), "directory": str(directory), "dry_run": True, "held": held}
        print_json({**facts, **reads_facts(plan, found, lazy)})
        return
    say(plan_text(plan, found, now_ms))
    say(reads_text(plan, found, lazy))
    if held:
        say(f"{one_line(directory)} holds {one_line(', '.join(held))}: {_fate(found, place, directory, wanted, lazy)}")


def _fate(found: Source, place: str, directory: Path, wanted: RestoreOptions, lazy: bool) -> str:
    """Return what a restore would do to a directory that holds partitions."""
    if lazy and _is_begun(place, directory):
        return "the restore that has begun them would be continued"
    if lazy and _restored_before(found, directory, wanted) is not None:
        return "all of it is there already"
    return "it is refused, unless a killed restore left that"


def restore_missing(place: str, directory: Path, *, replicate: str | None, takeover: bool, quiet: bool) -> None:
    """Restore the newest backup at a place lazily into a directory, unless that holds partitions already. replicate:
    where the run replicates to. The directory takes that place's lease before the backups are read, so that what its
    writer publishes is in them; without `takeover` it is refused instead, before anything is restored."""
    progress = CopyProgress(quiet=quiet)
    clear_killed_attempt(directory)
    if any(directory.glob("part-*.sqlite3*")):
        progress.say(one_line(f"{directory} holds partitions; nothing was restored"))
        return
    from recovery.backup.restore import restore as restore_copies
    from recovery.backup.sources import open_source
    from recovery.host.scratch import scratch_directory
    from recovery.places.opening import lasting_place, open_place, refuse_itself

    refuse_itself(place, directory, "backup")
    clock = SystemClock()
    lasting = lasting_place(place)
    if replicate is not None:
        _claim(replicate, directory, clock, takeover)
    with scratch_directory("restore") as scratch:
        found = open_source(open_place(place), scratch, clock)
        done = restore_copies(
            found, directory, clock=clock, random_id=lambda: token_hex(4), lazy_from=lasting,
            announce=announcing(progress, found, clock), observe=progress.observe,
        )  # fmt: skip
    progress.say(f"{one_line(directory)} can be used after {done.timings.total_s:.1f} s")


def _claim(place: str, directory: Path, clock: Clock, takeover: bool) -> None:
    from recovery.backup.conditional import open_documents
    from recovery.backup.lease import claim_to_restore

    with storage_errors(directory):
        make_directories(directory)
        sync(directory.absolute().parent)
    # The run may begin while its replica cannot be reached.
    with contextlib.nullcontext() if takeover else contextlib.suppress(BackupTargetError):
        claim_to_restore(open_documents(place, PRIVATE), directory, clock, lambda: token_hex(8), takeover=takeover)


def continue_hydration(directory: Path, progress: CopyProgress) -> None:
    """Fetch the rest of a lazy restore."""
    from recovery.backup.progress import FileProgress, Step

    def observe(found: HydrationProgress) -> None:
        step: Step = "hydrated" if found.is_whole else "fetch"
        progress.observe(FileProgress(step, found.path.name, found.there_bytes, found.total_bytes))

    hydrate_directory(directory, Stop(), observe)
