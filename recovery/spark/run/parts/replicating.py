"""Replication of a run: begins before Spark, and ships each epoch that the run closes."""

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
from recovery.planning.replica import NOTHING, ReplicaState, Shipped, lag_of
from recovery.planning.resume import ResumePlan
from recovery.planning.values import Execution
from recovery.replication.process import Replication
from recovery.spark.run.parts.part import Part
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
) -> ReplicatedClosing | None:
    """Start the shipping process of a run, if it has one. access: the owners of other partitions."""
    if config.replicate is None:
        return None
    place = os.fspath(config.replicate)
    noted = last_replica(config.path)
    known = noted is not None and noted.destination == shown_address(place)
    shipped = Shipped(Epoch(noted.epoch), noted.execution) if noted is not None and known else NOTHING
    partition = plan.partitions[0]
    replication = Replication(
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
    return ReplicatedClosing(replication, complete=config.replicate_complete)


class ReplicatedClosing(Part):
    """The replication of a run: ships each epoch that the run closes."""

    name = "replication"

    def __init__(self, replication: Replication, *, complete: bool = False) -> None:
        """complete: an end without the last epoch at the place is an error."""
        self.is_ending: Callable[[], bool] = lambda: False
        """Whether the run ends: then nothing waits long for the place."""
        self._replication = replication
        self._must_complete = complete
        self._is_started = False

    @property
    def state(self) -> ReplicaState:
        """What the replica has and lacks now."""
        return self._replication.state

    def report_to(self, report: Callable[[ReplicaState], None]) -> None:
        """Report a problem that there is, and each change from now on, on a thread of the replication."""
        self._replication.on_change = report
        if self.state.problem is not None:
            report(self.state)

    def ready(self) -> None:
        """Check that the place can be used. Raises its error."""
        self._replication.ready(READY_SYNC_S if self._replication.sync else READY_S)

    def begun(self, execution: Execution) -> None:
        """Before the sink goes back, which shows what was closed and not shown: ship the snapshot that the run begins
        from. With sync, wait for the first shipping, and before that for the rest of a lazy restore; raises if either
        fails."""
        if self._replication.sync and hydrating(self._replication.directory):
            self._replication.say("--replicate-sync: fetching the rest of the lazy restore first")
            hydrate_directory(self._replication.directory, Stop())
        self._replication.closed(0)
        if self._replication.sync:
            self._replication.wait(lambda: False, once=True)

    def started(self) -> None:
        """From now on, the end waits until everything is shipped."""
        self._is_started = True

    def may_close(self) -> None:
        """Raise the error of a place that refuses."""
        self._replication.check()

    def may_publish(self) -> None:
        """With sync, wait until the epoch is shipped."""
        if self._replication.sync:
            self._replication.closed()
            self._replication.wait(self.is_ending)

    def closed(self) -> None:
        """Have the epoch shipped, unless it was shipped before."""
        if not self._replication.sync:
            self._replication.closed()

    def end(self, error: BaseException | None) -> None:
        """Wait until the last epoch is shipped; after a failed start, wait for nothing."""
        if self._is_started:
            self._replication.end()
            if self._must_complete:
                self._replication.check_complete()
        else:
            self._replication.stop()
