"""The copies of a store: backups, replica, standby, and what a loss of the disk would cost now."""

from __future__ import annotations

from typing import Any

from recovery.planning.measures import Measure
from recovery.ui.facts.flows import Look, ShownFlow
from recovery.ui.facts.limits import page_of


def copy_facts(flow: ShownFlow, *, after: int | None = None, limit: int | None = None) -> dict[str, Any]:
    """Return {"last_backup", "replica", "standby", "hydrating", "origins", "loss", "place"}; but for the last two as in
    `status --json`.

    loss: what is lost if the disk is lost now: {"from", "epoch", "epochs", "seconds", "rows"}: the copy to restore
    from, its epoch, the closed epochs that it lacks, since when, and the rows that they read; None: there is no copy
    that this host knows, so all is lost. place: of the place of backups that was given, what `backup --list --json`
    prints, with a range of the backups, the newest first: {"destination", "backups", "unfinished", "unread", "lines",
    "count", "next"}; an error as in `problem`; None: no place was given. Listing a place is kept for `PLACE_S`.
    """
    look = flow.look()
    names = ("last_backup", "replica", "standby", "hydrating", "origins")
    place = flow.place_facts()
    if place is not None and "backups" in place:
        rows, following = page_of(place["backups"][::-1], after, limit)
        place = {**place, "backups": rows, "count": len(place["backups"]), "next": following}
    return flow.answer(look, {**{each: look.status[each] for each in names}, "loss": _loss(look), "place": place})


def _loss(look: Look) -> dict[str, Any] | None:
    """Return what the newest copy that the directory's notes name lacks of the newest epoch."""
    backup, replica = look.gathered.backup, look.gathered.replica
    known = [(each.epoch, each.destination) for each in (backup, replica) if each is not None and each.epoch]
    if not known or look.at is None:
        return None
    epoch, destination = max(known)
    missing = [each for each in look.at.epochs if each.epoch > epoch]
    first_ms = min((each.closed_ms for each in missing), default=None)
    return {
        "from": destination,
        "epoch": epoch,
        "epochs": max(0, look.at.epoch - epoch),
        "seconds": 0.0 if first_ms is None else max(0, look.gathered.now_ms - first_ms) / 1000,
        "rows": _rows(look.gathered.epochs, epoch, look.at.epoch),
    }


def _rows(epochs: list[Measure], epoch: int, newest: int) -> int | None:
    """Return the rows that later epochs read; None if not all of them are measured."""
    read = {each.epoch: each.input_rows for each in epochs if each.epoch > epoch}
    return sum(read.values()) if len(read) >= newest - epoch else None
