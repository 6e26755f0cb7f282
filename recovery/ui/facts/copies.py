"""The copies of a store: backups, replica, standby, and what a loss of the disk would cost now."""

from __future__ import annotations

from typing import Any, NamedTuple

from recovery.backup.note import LastBackup, LastReplica
from recovery.base.ids import Epoch
from recovery.base.wording import age_s
from recovery.planning.timeline import fork, timeline_to
from recovery.storage.snapshot import Snapshot
from recovery.ui.facts.flows import Look, ShownFlow
from recovery.ui.facts.limits import page_of


def copy_facts(flow: ShownFlow, *, after: int | None = None, limit: int | None = None) -> dict[str, Any]:
    """Return {"last_backup", "last_drill", "replica", "standby", "hydrating", "origins", "loss", "place"}; but for the
    last two as in `status --json`. last_drill: that of the place, if one was given.

    loss: what is lost if the disk is lost now: {"from", "epoch", "shared_epoch", "epochs", "seconds", "rows"}: the copy
    to restore from, its epoch, the newest epoch that it shares with the directory (an earlier one if a run went back
    since), the closed epochs that the copy lacks, since when, and the rows that these read; None: there is no copy that
    this host knows, so all is lost. place: of the place of backups that was given, what `backup --list --json`
    prints, with a range of the backups, the newest first: {"destination", "backups", "unfinished", "unread", "lines",
    "count", "next", "listed_ms"}; an error as in `problem`; None: no place was given. Listing a place is kept for
    `PLACE_S`.
    """
    look = flow.look()
    names = ("last_backup", "last_drill", "replica", "standby", "hydrating", "origins")
    place = flow.place_facts()
    if place is not None and "backups" in place:
        rows, following = page_of(place["backups"][::-1], after, limit)
        place = {**place, "backups": rows, "count": len(place["backups"]), "next": following}
    facts = {**{each: look.status[each] for each in names}, "loss": _loss(look), "place": place}
    # The place knows of drills since the last backup.
    if place is not None and place.get("last_drill") is not None:
        facts["last_drill"] = place["last_drill"]
    return flow.answer(look, facts)


class _Copy(NamedTuple):
    """A copy that the directory's notes name. shared: up to which epoch the present time line has the epochs of the
    copy; less than `epoch` if a run went back since and abandoned those after it."""

    shared: Epoch
    epoch: int
    destination: str


def _loss(look: Look) -> dict[str, Any] | None:
    """Return what the best copy lacks of the newest epoch."""
    at = look.at
    if at is None:
        return None
    notes = (look.gathered.backup, look.gathered.replica)
    best = max((_copy(at, each) for each in notes if each is not None and each.epoch), default=None)
    if best is None:
        return None
    lacking = range(best.shared + 1, at.epoch + 1)
    known = [each for each in look.measures if each.epoch in lacking]
    closed_ms = [each.closed_ms for each in at.epochs if each.epoch in lacking] + [each.measured_ms for each in known]
    return {
        "from": best.destination,
        "epoch": best.epoch,
        "shared_epoch": best.shared,
        "epochs": len(lacking),
        "seconds": age_s(min(closed_ms), look.gathered.now_ms) if closed_ms else 0.0,
        "rows": sum(each.input_rows for each in known) if len(known) == len(lacking) else None,
    }


def _copy(at: Snapshot, note: LastBackup | LastReplica) -> _Copy:
    """Return how much a copy has of the present time line. A note of an older version does not say which execution
    closed its epoch: the one that ran when the backup was finished."""
    number = note.execution
    if isinstance(note, LastBackup) and number is None:
        number = max((each.number for each in at.executions if each.started_ms <= note.finished_ms), default=0)
    line = timeline_to(at.executions, number or 0, Epoch(note.epoch))
    return _Copy(fork(at.timeline, line), note.epoch, note.destination)
