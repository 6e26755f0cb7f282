"""Which superseded snapshots may go: a pure function of what was closed when, and of the backup interval."""

from __future__ import annotations

from collections.abc import Sequence

from recovery.ids import NO_EPOCH, Epoch


def collection_floor(closed: Sequence[tuple[Epoch, int]], now_ms: int, backup_interval_ms: float) -> Epoch:
    """The newest epoch that every partition had closed at or before now − backup interval; 0 when there is none.

    `closed` holds (epoch, when) of epochs that are closed in *all* partitions, on the recovery clock: an epoch that is
    being closed is not among them, so it is never collected past by its own closing. Snapshots at the floor stay,
    what is only needed to go back below it may go.
    """
    return max((epoch for epoch, at_ms in closed if at_ms <= now_ms - backup_interval_ms), default=NO_EPOCH)
