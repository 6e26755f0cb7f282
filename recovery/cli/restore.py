"""`recovery restore SRC DIR`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import click

from recovery.base.clock import Clock, SystemClock
from recovery.base.intervals import format_interval
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.backup_progress import CopyProgress
from recovery.cli.common import DIRECTORY, format_size, format_time, json_option, print_json, say, table, umask_option
from recovery.errors import BackupTargetError, StorageError
from recovery.host.durable import PRIVATE, make_directories, sync
from recovery.planning.backups import RestorePlan
from recovery.planning.going_back import after_text
from recovery.storage.hydration import Progress, Stop, hydrate_directory, hydrating
from recovery.storage.initialize import clear_killed_attempt

if TYPE_CHECKING:
    # It imports Arrow, which other commands need not wait for.
    from recovery.backup.sources import Source


class MomentType(click.ParamType[int]):
    """A time in local time, or with an offset; converted to milliseconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return int(datetime.fromisoformat(value).astimezone().timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is not a time. Write it like 2026-11-21T16:30:00, if needed with +01:00 or Z.")


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("directory", metavar="DIR", type=DIRECTORY, envvar="RECOVERY_DIRECTORY")
@click.option("--epoch", type=click.IntRange(min=0), help="Restore the state after this epoch; 0: before the first.")
@click.option("--at", "at_ms", type=MomentType(), help="Restore the newest epoch closed at or before this time.")
@click.option("--lazy", is_flag=True, help="Let runs use DIR immediately: pages that they read are fetched first, and "
              "the rest meanwhile. Run it again to continue.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be restored and what would be lost; write nothing.")
@umask_option
@json_option
def restore(
    source: str,
    directory: Path,
    epoch: int | None,
    at_ms: int | None,
    lazy: bool,
    dry_run: bool,
    umask: bool,
    as_json: bool,
) -> None:
    """Put copies of partitions back together in DIR, which holds none yet: all of them, or nothing.

    SRC is a place of backups (a directory, s3://, gs://, azure://), or a plain directory of copied files. Of all copies
    the newest set with a common epoch is taken; what that loses is said before anything is written.
    """
    if epoch is not None and at_ms is not None:
        raise click.UsageError("Give --epoch or --at, not both.")
    from recovery.backup.places import lasting_place, open_target

    if lazy and not dry_run and any(each.place == lasting_place(source) for each in hydrating(directory)):
        continue_hydration(directory, CopyProgress(quiet=as_json))
        if as_json:
            print_json({"directory": str(directory), "dry_run": False, "continued": True})
        return
    from recovery.backup.restore import look_into_chains, plan_from
    from recovery.backup.restore import restore as restore_copies
    from recovery.backup.sources import open_source
    from recovery.host.scratch import scratch_directory

    clock = SystemClock()
    with scratch_directory("restore") as scratch:
        found = open_source(open_target(source), scratch, clock)
        lazy_from = lasting_place(source) if lazy else None
        if dry_run:
            look_into_chains(found, epoch, at_ms)
            plan = plan_from(found, epoch=epoch, at_ms=at_ms)
            if as_json:
                facts = {**plan_facts(plan, found, clock.wall_ms()), "directory": str(directory), "dry_run": True}
                print_json({**facts, **reads_facts(plan, found, lazy)})
            else:
                say(plan_text(plan, found, clock.wall_ms()))
                say(reads_text(plan, found, lazy))
            return
        progress = CopyProgress(quiet=as_json)
        done = restore_copies(
            found,
            directory,
            clock=clock,
            random_id=lambda: token_hex(4),
            epoch=epoch,
            at_ms=at_ms,
            umask=umask,
            lazy_from=lazy_from,
            announce=announcing(progress, found, clock),
            observe=progress.observe,
        )
    if lazy and not as_json:
        say(f"{one_line(directory)} can be used after {done.timings.total_s:.1f} s; fetching the rest")
    if lazy:
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


def restore_missing(place: str, directory: Path, *, replicate: str | None, takeover: bool, quiet: bool) -> None:
    """Restore the newest backup at a place lazily into a directory, unless that holds partitions already. replicate:
    where the run replicates to. The directory takes that place's lease before the backups are read, so that what its
    writer publishes is in them; without `takeover` it is refused instead, before anything is restored."""
    progress = CopyProgress(quiet=quiet)
    clear_killed_attempt(directory)
    if any(directory.glob("part-*.sqlite3*")):
        progress.say(one_line(f"{directory} holds partitions; nothing was restored"))
        return
    from recovery.backup.places import lasting_place, open_target
    from recovery.backup.restore import restore as restore_copies
    from recovery.backup.sources import open_source
    from recovery.host.scratch import scratch_directory

    clock = SystemClock()
    lasting = lasting_place(place)
    if replicate is not None:
        _claim(replicate, directory, clock, takeover)
    with scratch_directory("restore") as scratch:
        found = open_source(open_target(place), scratch, clock)
        done = restore_copies(
            found, directory, clock=clock, random_id=lambda: token_hex(4), lazy_from=lasting,
            announce=announcing(progress, found, clock), observe=progress.observe,
        )  # fmt: skip
    progress.say(f"{one_line(directory)} can be used after {done.timings.total_s:.1f} s")


def _claim(place: str, directory: Path, clock: Clock, takeover: bool) -> None:
    from recovery.backup.conditional import open_documents
    from recovery.backup.lease import claim_to_restore

    try:
        make_directories(directory)
        sync(directory.absolute().parent)
    except OSError as error:
        raise StorageError(str(error), path=directory) from error
    # The run may begin while its replica cannot be reached.
    with contextlib.nullcontext() if takeover else contextlib.suppress(BackupTargetError):
        claim_to_restore(open_documents(place, PRIVATE), directory, clock, lambda: token_hex(8), takeover=takeover)


def continue_hydration(directory: Path, progress: CopyProgress) -> None:
    """Fetch the rest of a lazy restore."""
    from recovery.backup.progress import Progressed, Step

    def observe(found: Progress) -> None:
        step: Step = "hydrated" if found.is_whole else "fetch"
        progress.observe(Progressed(step, found.path.name, found.there_bytes, found.total_bytes))

    hydrate_directory(directory, Stop(), observe)


def announcing(progress: CopyProgress, source: Source, clock: Clock) -> Callable[[RestorePlan, Sequence[str]], None]:
    """Return a function that reports the plan, and the copies left out, before anything is written."""

    def announce(plan: RestorePlan, left_out: Sequence[str]) -> None:
        for each in left_out:
            progress.say(one_line(f"left out: {each}"))
        progress.say(plan_text(plan, source, clock.wall_ms()))

    return announce


def plan_text(plan: RestorePlan, source: Source, now_ms: int) -> str:
    """Return what will be restored and what will be lost, for people."""
    lines = []
    if plan.snapshot is None:
        lines.append("will restore the beginning: the copies hold no closed epoch")
    else:
        lines.append(
            f"will restore the state after epoch {plan.epoch}, closed {format_time(plan.snapshot.closed_ms)}, "
            f"{_ago(now_ms - plan.snapshot.closed_ms)}"
        )
    lines.append(_loss_text(plan))
    if plan.abandoned:
        lines.append("This epoch was abandoned: a later execution went back to an earlier one.")
    rows = [
        (
            f"part-{copy.index}.sqlite3",
            _backup_of(copy.origin),
            format_time(copy.taken_ms),
            f"{copy.description.oldest_epoch} to {copy.description.newest_epoch}",
        )
        for copy in plan.copies
    ]
    lines.append(table(("file", "from", "copied", "epochs"), rows))
    lines += [one_line(f"not used: {problem}") for problem in source.problems]
    return "\n".join(lines)


def reads_text(plan: RestorePlan, source: Source, lazy: bool) -> str:
    """Return what the restore would read, for people. lazy: what of it before the directory can be used."""
    found = [(copy, each) for copy in plan.copies for each in source.reads(copy, lazily=lazy)]
    total, before = sum(each.size_bytes for _, each in found), sum(each.before_bytes for _, each in found)
    head = ["file", "read", "size", *(["before the start"] if lazy else [])]
    rows = []
    for copy, each in found:
        row = (f"part-{copy.index}.sqlite3", one_line(each.name), format_size(each.size_bytes))
        rows.append((*row, format_size(each.before_bytes)) if lazy else row)
    lines = [f"it would read {counted(len(found), 'file')}, {format_size(total)}", table(head, rows)]
    if lazy:
        lines.append(
            f"before the directory can be used at least {format_size(before)}, and the pages that beginning reads; "
            f"the rest, up to {format_size(total - before)}, in the background"
        )
    return "\n".join(lines)


def reads_facts(plan: RestorePlan, source: Source, lazy: bool) -> dict[str, Any]:
    """Return the same for programs."""
    found = [each for copy in plan.copies for each in source.reads(copy, lazily=lazy)]
    return {
        "objects": [
            {"name": each.name, "bytes": each.size_bytes, "bytes_before_start": each.before_bytes} for each in found
        ],
        "read_bytes": sum(each.size_bytes for each in found),
        "read_bytes_before_start": sum(each.before_bytes for each in found),
    }


def plan_facts(plan: RestorePlan, source: Source, now_ms: int) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "source": source.shown,
        "store_id": plan.resume.store_id,
        "flow": plan.resume.flow_id,
        "epoch": plan.epoch,
        "resume_epoch": plan.resume.resume_epoch,
        "resume_after": plan.resume.resume_epoch - 1,
        "closed_ms": plan.snapshot.closed_ms if plan.snapshot else None,
        "age_ms": now_ms - plan.snapshot.closed_ms if plan.snapshot else None,
        "newest_epoch": plan.newest.epoch if plan.newest else 0,
        "newest_closed_ms": plan.newest.closed_ms if plan.newest else None,
        "lost_epochs": plan.lost_epochs,
        "lost_ms": plan.lost_ms,
        "abandoned": plan.abandoned,
        "limiting": [f"part-{index}.sqlite3" for index in plan.limiting],
        "copies": [
            {
                "file": f"part-{copy.index}.sqlite3",
                "from": copy.origin,
                "copied_ms": copy.taken_ms,
                "oldest_epoch": copy.description.oldest_epoch,
                "newest_epoch": copy.description.newest_epoch,
            }
            for copy in plan.copies
        ],
        "problems": source.problems,
    }


def _loss_text(plan: RestorePlan) -> str:
    if plan.newest is None or (not plan.lost_epochs and not plan.lost_ms):
        return "nothing in the copies will be lost; input after the newest copy is processed again"
    span = "everything" if plan.lost_ms is None else format_interval(plan.lost_ms / 1000)
    epochs = counted(plan.lost_epochs, "epoch")
    limits = ", ".join(f"part-{index}" for index in plan.limiting)
    why = f"; there is no newer copy of {limits}" if limits else ""
    return (
        f"will be lost: {epochs}, {span}, up to epoch {plan.newest.epoch} of {format_time(plan.newest.closed_ms)}, "
        f"the newest seen{why}"
    )


def _backup_of(origin: str) -> str:
    """Return the id of the backup that stored an object, or a plain file's own name."""
    from recovery.backup.manifest import OBJECTS

    if not origin.startswith(OBJECTS):
        return origin
    return origin.rpartition("/")[2].removesuffix(".sqlite3.zst").removesuffix(".changes.zst")


def _ago(elapsed_ms: int) -> str:
    return f"{format_interval(max(0, round(elapsed_ms / 1000)))} ago"
