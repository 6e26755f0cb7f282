"""What `restore` and `drill` print: the plan, what it loses, and what is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from recovery.base.clock import Clock
from recovery.base.intervals import format_interval
from recovery.base.printable import one_line
from recovery.base.wording import age_s, ago, counted
from recovery.cli.backup_progress import CopyProgress
from recovery.cli.common import format_size, format_time
from recovery.cli.tables import table
from recovery.planning.backups import RestorePlan

if TYPE_CHECKING:
    # It imports Arrow, which other commands need not wait for.
    from recovery.backup.manifest import Manifest
    from recovery.backup.sources import Source

SHOWN = 3
"""How many unreadable manifests a sentence names."""


def announcing(progress: CopyProgress, source: Source, clock: Clock) -> Callable[[RestorePlan, Sequence[str]], None]:
    """Return a function that reports the plan, and the copies left out, before anything is written."""

    def announce(plan: RestorePlan, left_out: Sequence[str]) -> None:
        for each in left_out:
            progress.say(one_line(f"left out: {each}"))
        progress.say(plan_text(plan, source, clock.wall_ms(), progress.stream))

    return announce


def plan_text(plan: RestorePlan, source: Source, now_ms: int, stream: TextIO | None = None) -> str:
    """Return what will be restored and what will be lost, for people. stream: what gets it; None: standard output."""
    lines = []
    if plan.snapshot is None:
        lines.append("will restore the beginning: the copies hold no closed epoch")
    else:
        lines.append(
            f"will restore the state after epoch {plan.epoch}, closed {format_time(plan.snapshot.closed_ms)}, "
            f"{ago(age_s(plan.snapshot.closed_ms, now_ms))}"
        )
    lines.append(_loss_text(plan, source))
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
    lines.append(table(("file", "from", "copied", "epochs"), rows, stream))
    lines += [one_line(f"not used: {problem}") for problem in source.problems]
    lines += lines_text(source.lines)
    return "\n".join(lines)


def reads_text(plan: RestorePlan, source: Source, lazy: bool) -> str:
    """Return what the restore would read, for people. lazy: what must be read before the directory can be used."""
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
    """Return what a restore goes back to, for programs (`--json`)."""
    found = [each for copy in plan.copies for each in source.reads(copy, lazily=lazy)]
    return {
        "objects": [
            {"name": each.name, "bytes": each.size_bytes, "bytes_before_start": each.before_bytes} for each in found
        ],
        "read_bytes": sum(each.size_bytes for each in found),
        "read_bytes_before_start": sum(each.before_bytes for each in found),
    }


def plan_facts(plan: RestorePlan, source: Source, now_ms: int) -> dict[str, Any]:
    """Return the plan of a restore, for programs (`--json`)."""
    from recovery.backup.repository import lines_json

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
        "unread": source.unread,
        "lines": lines_json(source.lines),
    }


def lines_text(lines: Sequence[Manifest]) -> list[str]:
    """Return a sentence for each line of backups that the latest backup does not continue, for people."""
    return [
        one_line(
            f"another directory wrote here, too: backup {each.id} of epoch {each.epoch}, made on {each.host} in term "
            f"{each.term}, holds what the latest backup {lines[-1].id} does not continue"
        )
        for each in lines[:-1]
    ]


def _loss_text(plan: RestorePlan, source: Source) -> str:
    unread = ""
    if source.unread:
        names = ", ".join(source.unread[:SHOWN])
        unread = one_line(f"; what newer backups hold is not known and will be lost: {names} cannot be read")
    if plan.newest is None or (not plan.lost_epochs and not plan.lost_ms):
        if unread:
            return f"nothing in the copies that can be read will be lost{unread}"
        return "nothing in the copies will be lost; input after the newest copy is processed again"
    span = "everything" if plan.lost_ms is None else format_interval(plan.lost_ms / 1000)
    epochs = counted(plan.lost_epochs, "epoch")
    limits = ", ".join(f"part-{index}" for index in plan.limiting)
    why = f"; there is no newer copy of {limits}" if limits else ""
    return (
        f"will be lost: {epochs}, {span}, up to epoch {plan.newest.epoch} of {format_time(plan.newest.closed_ms)}, "
        f"the newest seen{why}{unread}"
    )


def _backup_of(origin: str) -> str:
    """Return the id of the backup that stored an object, or a plain file's own name."""
    from recovery.backup.manifest import OBJECTS

    if not origin.startswith(OBJECTS):
        return origin
    return origin.rpartition("/")[2].removesuffix(".sqlite3.zst").removesuffix(".changes.zst")
