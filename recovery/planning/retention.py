"""Which superseded snapshots may go: a pure function of what was closed when, and of the backup interval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from recovery.base.ids import NO_EPOCH, Epoch
from recovery.planning.values import PartitionDescription


def collection_floor(closed: Sequence[tuple[Epoch, int]], now_ms: int, backup_interval_ms: float) -> Epoch:
    """The newest epoch that every partition had closed at or before now − backup interval; 0 when there is none.

    `closed` holds (epoch, when) of epochs that are closed in *all* partitions, on the recovery clock: an epoch that is
    being closed is not among them, so it is never collected past by its own closing. Snapshots at the floor stay,
    what is only needed to go back below it may go.
    """
    return max((epoch for epoch, at_ms in closed if at_ms <= now_ms - backup_interval_ms), default=NO_EPOCH)


def shared_history(partitions: Sequence[PartitionDescription], shared: Iterable[Epoch]) -> list[tuple[Epoch, int]]:
    """When the last partition closed each of the epochs that all share, oldest first."""
    wanted = set(shared)
    closed: dict[Epoch, int] = {}
    for description in partitions:
        for each in description.epochs:
            if each.epoch in wanted:
                closed[each.epoch] = max(closed.get(each.epoch, 0), each.clock_ms)
    return sorted(closed.items())
