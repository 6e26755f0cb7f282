"""The run history's records of flow executions."""

from __future__ import annotations

import contextlib

from recovery.base.clock import Clock
from recovery.errors import RecoveryError
from recovery.operational.backends.backend import Backend
from recovery.operational.runs import FLOW, RunHistory
from recovery.planning.values import Execution


class FlowRecord:
    """The record of one execution, with a heartbeat while it runs.

    The execution starts only if its beginning was recorded. Later writes must not stop a run that can continue: if its
    end cannot be recorded, the record shows it as dead.
    """

    def __init__(self, backend: Backend, execution: Execution, clock: Clock) -> None:
        history = RunHistory(backend, clock)
        facts = {"execution": execution.number, "resume_epoch": execution.resume_epoch}
        self._recorder = history.begin(execution.flow_id, FLOW, facts)
        self._recorder.beat()

    def note(self, epoch: int, batches: int, rows: int) -> None:
        """Record the run's progress; it is written with the next heartbeat."""
        self._recorder.note(epoch=epoch, batches=batches, rows=rows)

    def end(self, error: BaseException | None) -> None:
        """Record how the run ended. Safe to repeat: the first call counts."""
        with contextlib.suppress(RecoveryError):
            self._recorder.end(error)
