"""Which superseded snapshots can be collected: a pure function of closing times and the backup interval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from recovery.base.ids import NO_EPOCH, Epoch
from recovery.planning.values import PartitionDescription


def collection_floor(closed: Sequence[tuple[Epoch, int]], now_ms: int, backup_interval_ms: float) -> Epoch:
    """Return the newest epoch that every partition had closed at or before now − backup interval; 0 without one.

    `closed` holds (epoch, recovery clock) of epochs that are closed in *all* partitions. An epoch that is being closed
    is not among them, so its own closing never collects up to it. Snapshots at the floor stay; data that only older
    snapshots need can go.
    """
    return max((epoch for epoch, at_ms in closed if at_ms <= now_ms - backup_interval_ms), default=NO_EPOCH)


def shared_history(partitions: Sequence[PartitionDescription], shared: Iterable[Epoch]) -> list[tuple[Epoch, int]]:
    """Return each epoch of `shared` with the time at which the last partition closed it, oldest first."""
    wanted = set(shared)
    closed: dict[Epoch, int] = {}
    for description in partitions:
        for each in description.epochs:
            if each.epoch in wanted:
                closed[each.epoch] = max(closed.get(each.epoch, 0), each.clock_ms)
    return sorted(closed.items())
