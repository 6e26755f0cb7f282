"""The record of a run in the run history, and that of its rewind."""

from __future__ import annotations

from recovery.base.clock import Clock
from recovery.config import RecoveryConfig
from recovery.operational.backends.backend import Backend
from recovery.operational.backends.open import choose, open_backend
from recovery.operational.backends.owned import documents_of
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.flows import FlowRecord
from recovery.operational.rewinds import check_start, note_start
from recovery.planning.resume import ResumePlan
from recovery.planning.values import Execution
from recovery.spark.run.parts.part import Part
from recovery.storage.locations import Locations


class RunRecord(Part):
    """What the run history says of a run: when it began, how far it is, and how it ended."""

    name = "run history"

    def __init__(self, plan: ResumePlan, config: RecoveryConfig, places: Locations, clock: Clock) -> None:
        """Raises what `check_start` raises for the plan."""
        self._plan = plan
        self._config = config
        self._beside = documents_of(places, clock, RetryPolicy())
        """The operational state that lies with the partitions."""
        self._clock = clock
        self._record: FlowRecord | None = None
        check_start(plan, config, clock, self._beside)

    def begun(self, execution: Execution) -> None:
        """Record that the execution began, and its rewind: both before the execution can close an epoch."""
        note_start(self._plan, self._config, self._clock, self._beside)
        self._record = FlowRecord(self._history(), execution, self._clock)

    def note(self, epoch: int, batches: int, rows: int) -> None:
        """Record the run's progress; it is written with the next heartbeat."""
        if self._record is not None:
            self._record.note(epoch, batches, rows)

    def end(self, error: BaseException | None) -> None:
        """Record how the run ended."""
        if self._record is not None:
            self._record.end(error)

    def _history(self) -> Backend:
        """Where the run history is kept."""
        chosen = choose(self._config.path, self._config.state_backend)
        return self._beside if chosen == self._config.path else open_backend(chosen, self._clock, RetryPolicy())
