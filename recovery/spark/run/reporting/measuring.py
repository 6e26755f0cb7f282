"""Measures of a run: its input as Spark reports it, and its epochs; how they are kept and served."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from recovery.backup.note import LastBackup, last_backup, last_replaced
from recovery.base.credentials.server_certificate import CertificateFiles, RenewedCertificate
from recovery.base.ids import BatchId, StepId
from recovery.base.wording import age_s
from recovery.config import RecoveryConfig
from recovery.epochs.closer import EpochClosed
from recovery.errors import RecoveryError
from recovery.metrics.exposition import About, Family, exposition, families
from recovery.metrics.memory import ProcessMemory, measure_memory
from recovery.metrics.meter import Meter
from recovery.metrics.owners import seen_families
from recovery.planning.health import Finding, parse_targets, unsaved_s
from recovery.planning.lag import InputLag, PartLag
from recovery.planning.measures import Measure
from recovery.planning.replica import ReplicaState
from recovery.planning.sink_work import SinkWork
from recovery.planning.values import Execution
from recovery.spark.clusters import is_cluster
from recovery.spark.jvm.executors import executors_bytes
from recovery.spark.planner.bind import BoundPlan
from recovery.spark.run.prepare import Prepared
from recovery.spark.run.reporting.events import RunSummary
from recovery.spark.run.reporting.operator_rows import OperatorReports
from recovery.storage.seam import PartitionStore

PROGRESS_LOOKS = 100
PROGRESS_PERIOD_S = 0.01


class InputCount:
    """Counts the input of finished micro-batches when Spark reports them, each once. Several threads call this
    object."""

    def __init__(
        self,
        meter: Meter,
        summary: RunSummary,
        bound: BoundPlan,
        batch: BatchId,
        on_counted: Callable[[BatchId, int], None],
    ) -> None:
        """batch: the newest micro-batch that is already counted. on_counted: called once for each micro-batch, with its
        rows."""
        self.batch = batch
        self._meter = meter
        self._summary = summary
        self._bound = bound
        self._on_counted = on_counted
        self._operators = OperatorReports()
        self._reports = True
        self._lock = threading.Lock()

    def look(self, query: Any) -> None:
        """Add the input rows of the micro-batches whose progress Spark has reported since the last look. Skip reports
        of a stream that waits for input: they have the number of the next micro-batch."""
        with self._lock:
            reported, found = query._jsq.recentProgress(), []
            for place in reversed(range(len(reported))):
                batch = reported[place].batchId()
                if batch <= self.batch:
                    break
                progress = json.loads(reported[place].json())
                if "addBatch" in progress["durationMs"]:
                    operators, work = self._operators.of(query._jsq, progress)
                    found.append((batch, input_rows(progress, self._bound.sources.ticking), operators, work))
            # Count only after all of them were read: otherwise the next look would count some again.
            found.reverse()
            for batch, rows, operators, work in found:
                self.batch = max(self.batch, batch)
                self._summary.rows += rows
                self._meter.progress(batch, rows, operators, work)
        # Without the lock: an observer may end the run, and the end of the run looks once more.
        for batch, rows, *_ in found:
            self._on_counted(batch, rows)

    def wait(self, query: Any, batch: BatchId, over: Callable[[float], bool]) -> None:
        """Wait until Spark reports the micro-batch, if the report gives the rows in Spark's own operators. Called on
        the thread that writes epochs. Spark reports a micro-batch some milliseconds after it has logged it as done, and
        before the next one begins.

        over: waits that many seconds; returns whether nothing more will come.
        """
        if not (self._reports and self._bound.keeps_native_state):
            return
        with contextlib.suppress(Exception):
            for _ in range(PROGRESS_LOOKS):
                if self.batch >= batch:
                    return
                self.look(query)
                if self.batch < batch and over(PROGRESS_PERIOD_S):
                    return
            # Reports may be switched off: do not wait for them again.
            self._reports = False


def input_rows(progress: Mapping[str, Any], ticks: Sequence[bool]) -> int:
    """Return the rows of input in Spark's progress of a micro-batch: without those of tick sources."""
    sources = progress["sources"]
    woken = sum(each["numInputRows"] for each, tick in zip(sources, ticks, strict=False) if tick)
    return int(progress["numInputRows"] - woken)


def _memory(context: Any) -> Callable[[int], ProcessMemory]:
    """Return what measures the memory of a run: of the driver's host, and on a cluster of the executors, too."""
    if not is_cluster(context.master):
        return measure_memory
    return lambda pid: replace(measure_memory(pid), executors_bytes=executors_bytes(context))


def first_summary(prepared: Prepared, execution: Execution) -> RunSummary:
    """The summary of a run that has done nothing yet."""
    return RunSummary(
        flow=prepared.flow_id,
        directory=None if prepared.temporary else str(prepared.config.path),
        execution=execution.number,
        resume_epoch=execution.resume_epoch,
        resume_after=execution.resume_epoch - 1,
        last_epoch=execution.resume_epoch - 1,
        discarded=None if prepared.discarded is None else prepared.discarded.as_json(),
        replaced=[] if prepared.replaced is None else [prepared.replaced.as_json()],
    )


class RunMeasures:
    """Keeps the measures of a run in its partitions, and serves them to Prometheus if configured."""

    def __init__(self, prepared: Prepared, bound: BoundPlan, store: PartitionStore, execution: Execution) -> None:
        self._prepared = prepared
        self._store = store
        self._kept = prepared.temporary is None
        self._certificate_end_ms = _certificate_end_ms(prepared.config)
        self._execution = execution
        self._clock = prepared.clock
        self._targets = parse_targets(prepared.config.thresholds)
        self.wait_s: Callable[[], float] = float
        """How long the run has waited for executors or a source; 0: it does not."""
        self.lag: Callable[[], InputLag | None] = lambda: None
        """What the newest look at the sources has found."""
        self.lag_parts: Callable[[], Sequence[PartLag]] = tuple
        self.sink_work: Callable[[], SinkWork | None] = lambda: None
        """The work of the sink since the run began; None: the sink does not count it."""
        self.quarantine: Callable[[], tuple[Mapping[StepId, int], float | None]] = lambda: ({}, None)
        """How many rows are in quarantine, by step, and for how many seconds the oldest has been."""
        self.meter = Meter(
            execution.number, self._clock, self._targets, _memory(bound.frame.sparkSession.sparkContext),
            closes=self._kept, native=bound.keeps_native_state,
        )  # fmt: skip

    @property
    def url(self) -> str | None:
        """The address where Prometheus finds the metrics; None if they are not served."""
        return None if self._prepared.endpoint is None else self._prepared.endpoint.url

    def started(self, resume_s: float) -> None:
        """Keep the measure of the start, and begin to serve metrics. Until the first epoch is ended, this may write to
        the partitions."""
        self._keep(self.meter.started(resume_s))
        if self._prepared.endpoint is not None:
            places = self._prepared.places
            self._prepared.endpoint.serve(lambda: exposition(chain(self._families(), seen_families(places.seen))))

    def closed(self, closed: EpochClosed) -> tuple[Finding, ...]:
        """Keep the measure of a closed epoch, and return the targets that it misses. Called on the thread that writes
        epochs."""
        lag_s = self._backup_lag_s()
        if lag_s is None:
            executions = (*self._prepared.plan.partitions[0].executions, self._execution)
            lag_s = unsaved_s(executions, self._clock.wall_ms())
        replica, lag = self._replica(), self.lag()
        measure, missed = self.meter.closed(
            closed.epoch, closed.batch, closed.duration_s, closed.partitions, lag_s,
            None if replica is None else replica.lag, None if lag is None else lag.seconds,
            self._prepared.places.seen, self._certificate_end_s(), self.sink_work(), self.quarantine()[1],
        )  # fmt: skip
        self._keep(measure)
        return missed

    def _keep(self, measure: Measure) -> None:
        """Keep a measure in the partitions; a failure to do so does not stop the run."""
        if self._kept:
            with contextlib.suppress(RecoveryError):
                self._store.record(measure)

    def _families(self) -> Iterator[Family]:
        """The current metrics."""
        each = self._execution
        backup = last_backup(self._prepared.config.path)
        totals = self.meter.totals
        closed_s = totals.last_closed_s
        return families(
            About(each.flow_id, each.number, each.resume_epoch, each.version, self._targets),
            totals,
            resume_s=self.meter.resume_s,
            epoch_age_s=None if closed_s is None else self._clock.elapsed_s() - closed_s,
            backup_age_s=self._lag_s(backup),
            backup_objects=None if backup is None else backup.chain,
            replica=self._replica(),
            wait_s=self.wait_s(),
            lag=self.lag(),
            lag_parts=self.lag_parts(),
            owners=self._prepared.places.seen,
            certificate_end_s=self._certificate_end_s(),
            replaced=self._replaced(),
            sink=self.sink_work(),
            quarantined=self.quarantine()[0],
        )

    def _replaced(self) -> int | None:
        """Return how many partitions of lost owners have come back so far; None if none can in this run."""
        config = self._prepared.config
        if config.replace_from is None or not config.owners:
            return None
        found = last_replaced(config.path)
        return 0 if found is None else found.count

    def _replica(self) -> ReplicaState | None:
        return None if self._prepared.replicated is None else self._prepared.replicated.state

    def _certificate_end_s(self) -> float | None:
        end_ms = self._certificate_end_ms()
        return None if end_ms is None else (end_ms - self._clock.wall_ms()) / 1000

    def _backup_lag_s(self) -> float | None:
        """Seconds since `recovery backup` last finished; None if it never did."""
        return self._lag_s(last_backup(self._prepared.config.path))

    def _lag_s(self, backup: LastBackup | None) -> float | None:
        return None if backup is None else age_s(backup.finished_ms, self._clock.wall_ms())


def _certificate_end_ms(config: RecoveryConfig) -> Callable[[], int | None]:
    """Return what says when the certificate of a run ends; None: the run has none, or it cannot be read."""
    if config.tls_cert is not None and config.tls_key is not None:
        with contextlib.suppress(RecoveryError):
            files = CertificateFiles(Path(config.tls_cert), Path(config.tls_key))
            shown = RenewedCertificate(files, None, "", lambda _: None)
            if config.tls_ca is not None:
                return shown.end_ms
            # Tasks that check the certificate with itself do not accept another one, which is not shown then.
            end_ms = shown.end_ms()
            return lambda: end_ms
    return lambda: None
