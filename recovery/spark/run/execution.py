"""One execution of a flow: begun in the partitions, with everything that its micro-batches need."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from recovery.backup.note import reads_made_keys
from recovery.base import faults
from recovery.base.ids import BatchId, Epoch, StepId
from recovery.base.reserved import quarantine_of
from recovery.checkpoint.capture import Capture
from recovery.config import checkpoint_address
from recovery.epochs.closer import ClosingHooks, ClosingSettings, EpochClosed, EpochCloser
from recovery.epochs.execution import new_execution
from recovery.errors import StaleDirectoryError
from recovery.hadoop.home import HadoopHome, checkpoint_home, discard_earlier
from recovery.host.storage_errors import storage_errors
from recovery.operational.backends.owned import documents_of
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.steps.quarantine import WaitingRows
from recovery.sinks.delivery import Delivery
from recovery.spark.inputs.watch import InputWatch
from recovery.spark.pipelines.incremental import FlowLoads
from recovery.spark.planner.bind import BoundPlan
from recovery.spark.planner.iceberg_tables import IcebergInput
from recovery.spark.run.parts.lagging import LagLooks, group_of
from recovery.spark.run.parts.mailboxes import Mailboxes
from recovery.spark.run.parts.serving import TaskAccess
from recovery.spark.run.parts.waiting import Quarantine
from recovery.spark.run.position import readable, restore_position, resume_of_sink, step_plan
from recovery.spark.run.prepare import Prepared
from recovery.spark.run.reporting.events import Observer, OwnerReplaced, Resumed
from recovery.spark.run.reporting.reports import Reports
from recovery.spark.run.status import RunStatus
from recovery.storage.connect import left_executions
from recovery.storage.restored import end_restored, read_restored

if TYPE_CHECKING:
    from recovery.flow import SinkLike

NEVER = float("inf")


class FlowRun:
    """One execution of a flow. What holds anything is among the `parts` of `prepared`, or is added to them.

    Steps start.3 and start.4 of starting; `Prepared` lists all steps:

    start.3  Restore the position: this shows whether Spark can continue from it, before anything is discarded. Look
             at the input: is what has to be read still there (start.3.looked)? Begin the execution in every partition,
             then let the sink go back.
    start.4  Close an epoch of step edits, or of a position laid out for other sources, if there is any.
    """

    def __init__(self, prepared: Prepared, bound: BoundPlan, sink: SinkLike, observer: Observer | None) -> None:
        """Check what can be checked before anything is written. Whoever makes the object ends the parts."""
        self.clock = clock = prepared.clock
        self.prepared = prepared
        self.parts = prepared.parts
        self.bound = bound
        self.spark = bound.frame.sparkSession
        self.store = store = prepared.open_store()
        self.execution = new_execution(
            prepared.plan,
            prepared.flow_id,
            clock,
            snapshot_interval_s=prepared.config.snapshot_interval_s,
            backup_interval_s=prepared.backup_interval_s,
        )
        self.lease = self.execution.lease
        waiting = self._waiting()
        self.quarantine = self.parts.add(Quarantine(bound.steps, waiting, store, clock, prepared.quarantine_limit))
        self.mailboxes = self.parts.add(Mailboxes(bound.steps, store, self.lease))
        self.status = RunStatus(store, self.lease, bound)
        self.reports = Reports(prepared, bound, store, self.execution, self.status, observer)
        self.reports.summary.quarantined = self.quarantine.rows
        self.reports.measures.quarantine = self.quarantine.now
        self._steps = step_plan(store, prepared.plan, bound, prepared.config)
        self._taken_back: list[str] = []
        self.delivery = self._begin_delivery(sink)
        self.reports.measures.sink_work = lambda: self.delivery.work
        self.parts.add_end("sink", self.delivery.release)
        documents = None if prepared.temporary else documents_of(prepared.places, clock, RetryPolicy())
        self.loads = FlowLoads(documents, clock)
        self.last: BatchId | None = None
        """The micro-batch after which the run ends; None: it ends with the input."""
        self.goes_on = False
        """Whether another execution starts when this one has ended for something to do between the two."""

    def _waiting(self) -> dict[StepId, WaitingRows]:
        """What waits in quarantine, by step of the flow. Only steps that have such rows are read."""
        known = self.store.known_steps(self.prepared.plan.resume_epoch)
        names = {each.definition.step_id: {each.definition.step_id} for each in self.bound.steps}
        for old, new in self.prepared.config.rename_steps.items():
            names.get(StepId(new), set()).add(StepId(old))
        return {
            step: self.prepared.waiting(step)
            for step, ids in names.items()
            if known.intersection(map(quarantine_of, ids))
        }

    def _begin_delivery(self, sink: SinkLike) -> Delivery:
        prepared = self.prepared
        restored = read_restored(prepared.config.path, self.clock.wall_ms())
        resume = resume_of_sink(
            prepared.plan, self.execution, self.store, prepared.origins, prepared.places,
            loses=prepared.config.lose_epochs or restored.counts, accepts_loss=prepared.config.lose_epochs,
            edits=bool(self._steps.edits), say=self._taken_back.append,
        )  # fmt: skip
        try:
            return Delivery(sink, resume, recoverable=prepared.temporary is None)
        except StaleDirectoryError as error:
            if restored.why_not:
                error.cause = f"The mark of its restore does not count: {restored.why_not}."
            raise

    def begin(self) -> None:
        """Perform the steps. Then Spark's query may run."""
        prepared, reports = self.prepared, self.reports
        self._begin_execution()
        faults.reach("start.3")
        reports.show()
        if prepared.replicated is not None:
            prepared.replicated.is_ending = self.status.parked.is_set
            prepared.replicated.report_to(reports.replica_changed)
        self.closer = self._closer()
        self._look_at_lag()
        self.parts.add(reports)
        self.parts.add_end("closer", self.closer.finish)
        self.closer.begin(self._steps, self.position.new_rows, laid_out=self.position.laid_out)
        faults.reach("start.4")
        # Before the stream starts: after that, the partitions belong to the thread that closes epochs.
        reports.measures.started(prepared.planned_s + self.clock.elapsed_s() - reports.began_s)
        plan = prepared.plan
        if prepared.replaced is not None:
            reports.notify(OwnerReplaced(prepared.replaced))
        reports.notify(
            Resumed(self.execution.number, plan.resume_epoch, plan, reports.measures.url, prepared.discarded)
        )
        self.mailboxes.batch_done()

    def _begin_execution(self) -> None:
        """Begin the execution at the position that Spark continues from."""
        prepared, bound, store = self.prepared, self.bound, self.store
        config, plan = prepared.config, prepared.plan
        # Without such state only this host writes the checkpoint.
        address = checkpoint_address(config) if bound.keeps_native_state else None
        left = left_executions(prepared.scratch, config.path)
        scratch = store.prepare(self.execution)
        self.home = home = checkpoint_home(address, scratch, plan.store_id, self.lease)
        self.parts.add_end("checkpoint", home.discard)
        position = restore_position(store, plan, bound, home, config, self._steps.edits)
        self.tables = IcebergInput(bound.tables, bound.sources, home)
        self.status.tables = self.tables.described
        self.position, self.reports.summary.lost_input, said = readable(
            store, plan, bound, position, home, self.tables, config.lose_input,
            [path / "checkpoint" for path in left.values()],
        )  # fmt: skip
        self._taken_back += said
        for part in self.parts:
            part.ready()
        faults.reach("start.3.looked")
        if prepared.until is not None:
            self.last = prepared.until.lay_out(home.directory, self.position.restored.batch, bound.sources, config)
        with storage_errors(prepared.scratch):
            # Those that were killed before the partitions knew them: this directory's lock is ours.
            discard_earlier(address, plan.store_id, left)
        if isinstance(home, HadoopHome):
            home.put()
        steps = [*(s.definition.step_id for s in bound.steps), *self.quarantine.ids]
        self.settings = self._closing_settings()
        store.start(self.execution, steps, plan.partitions, keeps_log=self.settings.kept_log)
        self.access = self.parts.add(TaskAccess(self.spark.sparkContext, store, self.execution, scratch, config))
        with storage_errors(scratch):
            discard_earlier(address, plan.store_id, (each.lease for each in plan.partitions[0].executions))
        for part in self.parts:
            part.begun(self.execution)
        self.delivery.rollback()
        end_restored(config.path)
        # The check before it and the rollback have both said it.
        for text in dict.fromkeys(self._taken_back):
            with contextlib.suppress(OSError, ValueError):
                print(f"recovery: {text}", file=sys.stderr, flush=True)

    def _look_at_lag(self) -> None:
        prepared, reports = self.prepared, self.reports
        if prepared.temporary is not None:
            return
        group = group_of(prepared.config, prepared.flow_id)
        looks = self.parts.add(
            LagLooks(
                InputWatch(self.bound, self.tables, group, prepared.plan.store_id, self.clock), self.home,
                lambda: (Epoch(reports.summary.last_epoch), self.closer.closed_batch),
                self.execution, prepared.config.path, self.clock, reports.lag_seen,
            )
        )  # fmt: skip
        reports.measures.lag, reports.measures.lag_parts = lambda: looks.lag, lambda: looks.parts

    def _closer(self) -> EpochCloser:
        prepared, bound, restored = self.prepared, self.bound, self.position.restored
        return EpochCloser(
            self.store,
            self.lease,
            prepared.plan,
            Capture(self.home, restored.held, restored.stale, sources=bound.sources.numbers),
            # The loads come last: a mark that somebody sets while the sink prepares does not replace the epoch's.
            (self.delivery, self.loads),
            self.settings,
            ClosingHooks(
                may_close=self._may_close,
                on_closed=self._on_closed,
                around=self.status.own_thread,
                notes_made=self._notes_made,
                may_publish=self._may_publish,
            ),
            self.clock,
        )

    def _closing_settings(self) -> ClosingSettings:
        """How this run closes epochs, and whether its start keeps what earlier runs have logged."""
        prepared = self.prepared
        found = ClosingSettings(
            snapshot_interval_s=NEVER if prepared.temporary else prepared.config.snapshot_interval_s,
            backup_interval_s=prepared.backup_interval_s,
            may_log=not self.bound.keeps_native_state,
        )
        kept_log = found.keeps_log(prepared.plan, self._steps.edits, notes_made=self._notes_made())
        return replace(found, kept_log=kept_log)

    def _may_close(self) -> None:
        for part in self.parts:
            part.may_close()

    def _may_publish(self) -> None:
        for part in self.parts:
            part.may_publish()

    def _on_closed(self, closed: EpochClosed) -> None:
        try:
            self.reports.epoch_closed(closed)
        finally:
            for part in self.parts:
                part.closed()

    def _notes_made(self) -> bool:
        """Whether an epoch notes the keys that it makes: somebody reads the changes."""
        prepared = self.prepared
        return prepared.replicated is not None or reads_made_keys(
            prepared.config.path, prepared.backup_interval_s, self.clock.wall_ms()
        )
