"""Closing epochs without a stream, for edits of a flow's state and for pipelines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from recovery.base.clock import Clock
from recovery.base.ids import NO_BATCH, BatchId, Epoch, StepId
from recovery.epochs.execution import new_execution
from recovery.epochs.snapshot import SharedEpochs
from recovery.errors import RecoveryError
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.planning.values import Execution, FoundFile, PartitionDescription
from recovery.storage.connect import SCRATCH_NAME
from recovery.storage.seam import DriverRows, Edited, FencingStore, PartitionStore
from recovery.storage.store import Store

StepKey = tuple[str, str]
"""Step id and state key."""


class EpochWriter:
    """One execution that closes epochs with states from its caller, who holds the store's locks, or fences.

    The constructor abandons everything at or above the plan's resume epoch, in all partitions.
    """

    def __init__(
        self,
        store: Store,
        plan: ResumePlan,
        flow_id: str,
        clock: Clock,
        *,
        backup_interval_s: float,
        fence: Callable[[ResumePlan], None] | None = None,
    ) -> None:
        """fence: given if another execution, which `store.to_fence` has found, may be closing epochs. Once no other
        execution can close epochs any more, the plan is made again and passed to `fence`. If `fence` raises, nothing
        changes and the execution under way continues."""
        self.plan = plan
        scratch = store.directory / SCRATCH_NAME
        fencing: FencingStore | None = None
        self._store: PartitionStore
        if fence is None:
            self._store = store.connect(plan.partitions, scratch, clock)
        else:
            self._store = fencing = store.connect_fencing(plan.partitions, scratch, clock)
        try:
            if fencing is not None and fence is not None:
                decide = fence

                def replanned(found: Sequence[PartitionDescription]) -> Execution:
                    self.plan = plan_resume([FoundFile(each.path, each) for each in found])
                    decide(self.plan)
                    return new_execution(self.plan, flow_id, clock, backup_interval_s=backup_interval_s)

                self.execution = fencing.fence(replanned)
            else:
                self.execution = new_execution(self.plan, flow_id, clock, backup_interval_s=backup_interval_s)
                self._store.start(self.execution, [], plan.partitions)
            self._epochs = SharedEpochs(
                self._store, self.plan, clock, backup_interval_s=self.execution.backup_interval_s
            )
        except BaseException:
            self._store.release()
            raise
        plan = self.plan
        self.epoch = plan.resume_epoch
        self._batch = plan.snapshot.batch_id if plan.snapshot else NO_BATCH

    def close(
        self,
        changes: Mapping[StepKey, Edited],
        *,
        batches: int = 0,
        driver_rows: DriverRows | None = None,
    ) -> Epoch:
        """Close an epoch with these changes and return it. batches: the number of micro-batches it counts as.

        driver_rows: the driver's own values, per step and key, each read when it is written.
        When `close` returns, the epoch is durable in every partition. Raises LeaseLostError, StorageError.
        """
        epoch, time = self.epoch, self._epochs.time()
        self._batch = BatchId(self._batch + batches)
        states: dict[StepId, dict[str, Edited]] = {}
        for (step, key), edited in changes.items():
            states.setdefault(StepId(step), {})[key] = edited
        requests = self._epochs.requests(epoch, self._batch, time, driver_rows or {}, state_rows=states)
        self._store.close(self.execution.lease, requests)
        self._epochs.add(epoch, time)
        self.epoch = Epoch(epoch + 1)
        # The epoch is closed. A failed checkpoint is tried again later; the logs hold everything until then.
        with contextlib.suppress(RecoveryError):
            self._store.checkpoint()
        return epoch

    def release(self) -> None:
        """Close the files."""
        self._store.release()
