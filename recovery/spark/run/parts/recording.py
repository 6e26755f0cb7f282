"""The record of a run in the run history, and that of its rewind."""

from __future__ import annotations

import contextlib

from recovery.base.clock import Clock
from recovery.config import RecoveryConfig
from recovery.errors import RecoveryError
from recovery.operational.backends.backend import Backend
from recovery.operational.backends.open import choose, open_backend
from recovery.operational.backends.owned import documents_of
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.rewinds import check_start, note_start
from recovery.operational.runs import FLOW, RunHistory, RunRecorder
from recovery.planning.resume import ResumePlan
from recovery.planning.values import Execution
from recovery.spark.run.parts.part import Part
from recovery.storage.store import Store


class RunRecord(Part):
    """What the run history says of a run, with a heartbeat while it runs. The run starts only if its beginning was
    recorded. Later writes do not stop it: if its end cannot be recorded, the history shows it as dead."""

    name = "run history"

    def __init__(self, plan: ResumePlan, config: RecoveryConfig, places: Store, clock: Clock) -> None:
        """Raises what `check_start` raises for the plan."""
        self._plan = plan
        self._config = config
        self._beside = documents_of(places, clock, RetryPolicy())
        """The operational state that lies with the partitions."""
        self._clock = clock
        self._recorder: RunRecorder | None = None
        check_start(plan, config, clock, self._beside)

    def begun(self, execution: Execution) -> None:
        """Record that the execution began, and its rewind: both before the execution can close an epoch."""
        note_start(self._plan, self._config, self._clock, self._beside)
        facts = {"execution": execution.number, "resume_epoch": execution.resume_epoch}
        self._recorder = RunHistory(self._history(), self._clock).begin(execution.flow_id, FLOW, facts)
        self._recorder.beat()

    def note(self, epoch: int, batches: int, rows: int) -> None:
        """Record the run's progress; it is written with the next heartbeat."""
        if self._recorder is not None:
            self._recorder.note(epoch=epoch, batches=batches, rows=rows)

    def end(self, error: BaseException | None) -> None:
        """Record how the run ended."""
        if self._recorder is not None:
            with contextlib.suppress(RecoveryError):
                self._recorder.end(error)

    def _history(self) -> Backend:
        """Where the run history is kept."""
        chosen = choose(self._config.path, self._config.state_backend)
        return self._beside if chosen == self._config.path else open_backend(chosen, self._clock, RetryPolicy())
