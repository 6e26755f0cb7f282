"""Replication of a run: begun with it, and around the closing of its epochs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

from recovery.backup.note import last_replica
from recovery.backup.standby.promote import promote
from recovery.base.clock import Clock
from recovery.base.ids import Epoch
from recovery.config import RecoveryConfig
from recovery.errors import ConfigurationError
from recovery.places.secrets import shown_address
from recovery.planning.replica import NOTHING, Shipped, lag_of
from recovery.planning.resume import ResumePlan
from recovery.replication.process import Replication
from recovery.storage.hydration import Stop, hydrate_directory, hydrating
from recovery.storage.standby import is_standby
from recovery.storage.store import OwnerAccess

REPLICATED_KEEPS_S = 600.0
"""How long a run that replicates keeps what later epochs supersede, if no backup interval was ever given: a place may
be away for so long without a whole copy afterwards."""
READY_S = 5.0
READY_SYNC_S = 120.0
"""How long a start waits for the place's first answer. The place was asked before Spark started."""


def replicated(config: RecoveryConfig | None, place: str | os.PathLike[str] | None) -> RecoveryConfig | None:
    """Return the settings with this place of replication, unless it is None. Raises ConfigurationError."""
    if place is None:
        return config
    if config is None:
        raise ConfigurationError(
            "replicate is given, and no recovery directory",
            cause="Without recovery no epoch is closed, so nothing could be shipped.",
            remedy="Give a directory: RecoveryConfig('db/').",
        )
    return replace(config, replicate=place)


def take_over(config: RecoveryConfig, clock: Clock) -> None:
    """Before a run that takes over: make its directory an ordinary one if it is a standby. Another directory, such as a
    restored one, only takes the lease of the place that it replicates to. Raises what `promote` raises."""
    if config.takeover and (is_standby(config.path) or config.replicate is None):
        promote(config.path, clock, lambda: token_hex(8))


def begin_replication(
    config: RecoveryConfig, plan: ResumePlan, scratch: Path, clock: Clock, access: OwnerAccess
) -> Replication | None:
    """Start the shipping process of a run, if it has one. access: the owners of other partitions."""
    if config.replicate is None:
        return None
    place = os.fspath(config.replicate)
    noted = last_replica(config.path)
    known = noted is not None and noted.destination == shown_address(place)
    shipped = Shipped(Epoch(noted.epoch), noted.execution) if noted is not None and known else NOTHING
    partition = plan.partitions[0]
    return Replication(
        config.path,
        partition.store_id,
        place,
        scratch,
        clock=clock,
        keep=config.replicate_keep,
        sync=config.replicate_sync,
        execution=plan.execution_number,
        takeover=config.takeover,
        began=[each for _, each in sorted({(e.number, e.id) for found in plan.partitions for e in found.executions})],
        epoch=min(each.newest_epoch for each in plan.partitions),
        lose_epochs=config.lose_epochs,
        shipped=shipped,
        access=access,
        lag=lag_of(partition.epochs, shipped, clock.wall_ms()),
    )


class ReplicatedClosing:
    """What a run's replication, if it has one, does around the closing of epochs. `is_ending`: whether the run ends."""

    def __init__(self, replication: Replication | None, is_ending: Callable[[], bool]) -> None:
        self._replication = replication
        self._is_ending = is_ending

    def ready(self) -> None:
        """Before anything is written: check that the place can be used. Raises its error."""
        if self._replication is not None:
            self._replication.ready(READY_SYNC_S if self._replication.sync else READY_S)

    def begun(self) -> None:
        """Before the sink goes back, which shows what was closed and not shown: ship the snapshot that the run begins
        from. With sync, wait for the first shipping, and before that for the rest of a lazy restore; raises if either
        fails."""
        if self._replication is not None:
            if self._replication.sync and hydrating(self._replication.directory):
                self._replication.say("--replicate-sync: fetching the rest of the lazy restore first")
                hydrate_directory(self._replication.directory, Stop())
            self._replication.closed(0)
            if self._replication.sync:
                self._replication.wait(lambda: False, once=True)

    def may_close(self) -> None:
        """Before an epoch is written: raise the error of a place that refuses."""
        if self._replication is not None:
            self._replication.check()

    def may_publish(self) -> None:
        """After an epoch is closed: with sync, wait until it is shipped."""
        if self._replication is not None and self._replication.sync:
            self._replication.closed()
            self._replication.wait(self._is_ending)

    def closed(self) -> None:
        """Last, for each closed epoch: have the epoch shipped, unless it was shipped before."""
        if self._replication is not None and not self._replication.sync:
            self._replication.closed()
