"""Closing epochs without a stream, for edits of a flow's state and for pipelines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from recovery.base.clock import Clock, RecoveryClock
from recovery.base.ids import NO_BATCH, BatchId, Epoch, StepId
from recovery.base.reserved import CLOCK_STEP
from recovery.epochs.execution import new_execution
from recovery.errors import RecoveryError
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.planning.retention import collection_floor, shared_history
from recovery.planning.values import Execution, FoundFile, PartitionDescription
from recovery.storage.connect import SCRATCH_NAME, FilePartitions
from recovery.storage.seam import CloseRequest
from recovery.values.keys import home_of, shares

StepKey = tuple[str, str]
"""Step id and state key."""

Edited = tuple[str | None, int | None]
"""A value as it is stored, and its timeout in milliseconds since 1970. A value of None discards the key."""


class EpochWriter:
    """One execution that closes epochs with states from its caller, who holds the directory's lock, or fences.

    The constructor abandons everything at or above the plan's resume epoch, in all partitions.
    """

    def __init__(
        self,
        directory: Path,
        plan: ResumePlan,
        flow_id: str,
        clock: Clock,
        *,
        backup_interval_s: float,
        fence: Callable[[ResumePlan], None] | None = None,
    ) -> None:
        """fence: given if another execution may be closing epochs. Once that is no longer possible, the plan is made
        again and passed to `fence`. If `fence` raises, nothing changes and the other execution goes on."""
        self.plan = plan
        self._clock = clock
        self._store = FilePartitions([d.path for d in plan.partitions], directory / SCRATCH_NAME)
        try:
            if fence is not None:
                decide = fence

                def replanned(found: Sequence[PartitionDescription]) -> Execution:
                    self.plan = plan_resume([FoundFile(each.path, each) for each in found])
                    decide(self.plan)
                    return new_execution(self.plan, flow_id, clock, backup_interval_s=backup_interval_s)

                self.execution = self._store.fence(replanned)
            else:
                self.execution = new_execution(self.plan, flow_id, clock, backup_interval_s=backup_interval_s)
                self._store.start(self.execution, [], plan.partitions)
            self._recovery_clock = RecoveryClock(clock, *self.plan.last_clock, self._store.driver_values(CLOCK_STEP))
        except BaseException:
            self._store.release()
            raise
        plan = self.plan
        self.epoch = plan.resume_epoch
        self._batch = plan.snapshot.batch_id if plan.snapshot else NO_BATCH
        self._history = shared_history(plan.partitions, [e for e in plan.window if e < plan.resume_epoch])

    def close(
        self,
        changes: Mapping[StepKey, Edited],
        *,
        batches: int = 0,
        driver_rows: Mapping[StepId, Mapping[str, str | bytes]] | None = None,
    ) -> Epoch:
        """Close an epoch with these changes and return it. batches: the number of micro-batches it counts as.

        driver_rows: the driver's own values, per step and key, each read when it is written.
        When it returns, the epoch is durable in every partition. Raises LeaseLostError, StorageError.
        """
        epoch, count = self.epoch, self._store.partition_count
        now_ms = self._recovery_clock.now_ms()
        floor = collection_floor(self._history, now_ms, self.execution.backup_interval_s * 1000)
        driver_values: dict[StepId, Mapping[str, str | bytes | None]] = {
            **(driver_rows or {}),
            CLOCK_STEP: self._recovery_clock.row(now_ms),
        }
        self._batch = BatchId(self._batch + batches)
        rows: list[dict[StepId, dict[str, Edited]]] = [{} for _ in range(count)]
        for (step, key), edited in changes.items():
            rows[home_of(step, count, key)].setdefault(StepId(step), {})[key] = edited
        divided = {step: shares(values, partial(home_of, step, count), count) for step, values in driver_values.items()}
        requests = [
            CloseRequest(
                epoch=epoch,
                batch=self._batch,
                closed_ms=self._clock.wall_ms(),
                clock_ms=now_ms,
                floor=floor,
                driver_rows={step: share[index] for step, share in divided.items()},
                state_rows=part,
            )
            for index, part in enumerate(rows)
        ]
        self._store.close(self.execution.lease, requests)
        # The epoch counts as closed everywhere from now, not from when its writing began.
        self._history = [(e, at) for e, at in self._history if e >= floor]
        self._history.append((epoch, self._recovery_clock.now_ms()))
        self.epoch = Epoch(epoch + 1)
        # The epoch is closed. A failed checkpoint is tried again later; the logs hold everything until then.
        with contextlib.suppress(RecoveryError):
            self._store.checkpoint()
        return epoch

    def release(self) -> None:
        """Close the files."""
        self._store.release()
