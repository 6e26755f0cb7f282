"""The counters of one run: the cost of its micro-batches and epochs, in total and per epoch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from recovery.base.clock import Clock
from recovery.base.ids import BatchId, Epoch
from recovery.metrics.memory import Memory, measure_memory
from recovery.planning.health import Finding, Target, of_epoch
from recovery.planning.measures import ClosedPartition, Measure, measure_json, summed

MEMORY_EVERY_S = 2.0
RECENT_BATCHES = 100


class BatchMeasure(NamedTuple):
    """One micro-batch: rows that reached steps, keys written and looked up, seconds of the tasks in storage, and its
    duration as the driver saw it."""

    rows: int
    touched: int
    looked_up: int
    seam_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts of a run since its start, and its newest micro-batch and epoch."""

    batches: int = 0
    batch_s: float = 0.0
    input_rows: int = 0
    rows: int = 0
    touched: int = 0
    looked_up: int = 0
    seam_s: float = 0.0
    epochs: int = 0
    snapshot_s: float = 0.0
    pause_s: float = 0.0
    written: int = 0
    written_bytes: int = 0
    collected: int = 0
    collect_s: float = 0.0
    last_batch: int | None = None
    last_batch_s: float | None = None
    last_epoch: Measure | None = None
    last_closed_s: float | None = None
    memory: Memory = field(default_factory=Memory)
    findings: tuple[Finding, ...] = ()


class Meter:
    """Counts micro-batches and epochs. The micro-batch's thread and the one that closes epochs call it; it is quick and
    never raises.

    A micro-batch belongs to the first epoch that is closed as of it or of a later one.
    """

    def __init__(
        self,
        execution: int,
        clock: Clock,
        targets: Sequence[Target],
        memory: Callable[[int], Memory] = measure_memory,
        *,
        closes: bool = True,
    ) -> None:
        """closes: whether epochs will be closed; if so, the data to measure them is kept until then."""
        self._execution = execution
        self._clock = clock
        self._targets = targets
        self._measure_memory = memory
        self._closes = closes
        self._lock = threading.Lock()
        self._batches: dict[BatchId, BatchMeasure] = {}
        self._input: dict[int, int] = {}
        self._operators: dict[int, Mapping[int, int]] = {}
        self._closed_batch = -1
        self._recent: dict[int, BatchMeasure] = {}
        self._pauses: dict[BatchId, float] = {}
        self._memory_at_s: float | None = None
        self._totals = Totals()
        self._worst: dict[str, Finding] = {}
        self.resume_s = 0.0

    @property
    def totals(self) -> Totals:
        """The totals so far, as of one moment."""
        with self._lock:
            return self._totals

    @property
    def exceeded(self) -> list[Finding]:
        """The targets that this run missed, each at its worst."""
        with self._lock:
            return list(self._worst.values())

    def started(self, resume_s: float) -> Measure:
        """Record that the execution has restored its position; return the measure of the start."""
        self.resume_s = resume_s
        return Measure(
            execution=self._execution, epoch=0, measured_ms=self._clock.wall_ms(), resume_s=resume_s, **self._memory()
        )

    def progress(self, batch: int, rows: int, operators: Mapping[int, int]) -> None:
        """Record Spark's report of a micro-batch: the rows read for it, and the rows in the state of Spark's own
        operators after it, by operator number, as far as known."""
        with self._lock:
            if self._closes and batch > self._closed_batch:
                self._input[batch] = rows
                self._operators[batch] = operators
            self._totals = replace(self._totals, input_rows=self._totals.input_rows + rows)

    def batch(self, batch: BatchId, measured: BatchMeasure) -> None:
        """Record a processed micro-batch."""
        with self._lock:
            self._recent[batch] = measured
            if self._closes:
                self._batches[batch] = measured
            self._recent.pop(batch - RECENT_BATCHES, None)
            t = self._totals
            self._totals = replace(
                t,
                batches=t.batches + 1,
                batch_s=t.batch_s + measured.duration_s,
                rows=t.rows + measured.rows,
                touched=t.touched + measured.touched,
                looked_up=t.looked_up + measured.looked_up,
                seam_s=t.seam_s + measured.seam_s,
                last_batch=batch,
                last_batch_s=measured.duration_s,
            )

    def paused(self, batch: BatchId, pause_s: float) -> None:
        """Record how long the stream stopped for the end of the epoch that is closed as of this micro-batch."""
        with self._lock:
            self._pauses[batch] = self._pauses.get(batch, 0.0) + pause_s
            self._totals = replace(self._totals, pause_s=self._totals.pause_s + pause_s)

    def closed(
        self,
        epoch: Epoch,
        batch: BatchId,
        duration_s: float,
        partitions: Sequence[ClosedPartition],
        backup_lag_s: float | None = None,
    ) -> tuple[Measure, tuple[Finding, ...]]:
        """Record an epoch that was closed as of a micro-batch; return its measure, and the targets that it misses.

        backup_lag_s: the age of the newest backup; None: there is none.
        """
        memory = self._memory()
        with self._lock:
            ended = {each: self._batches.pop(each) for each in sorted(self._batches) if each <= batch}
            batches = list(ended.values())
            # Spark reports the rows read after the micro-batch, which may be too late for the last one of an epoch.
            read = sum(self._input.get(each, measured.rows) for each, measured in ended.items())
            self._input = {each: rows for each, rows in self._input.items() if each > batch}
            operators = self._operators.get(batch, {})
            self._operators = {each: found for each, found in self._operators.items() if each > batch}
            self._closed_batch = batch
            pause_s = sum(self._pauses.pop(each) for each in sorted(self._pauses) if each <= batch)
            measure = Measure(
                execution=self._execution,
                epoch=epoch,
                measured_ms=self._clock.wall_ms(),
                resume_s=self.resume_s,
                batch=batch,
                batches=len(batches),
                batch_s=sum(each.duration_s for each in batches),
                input_rows=read,
                rows=sum(each.rows for each in batches),
                touched=sum(each.touched for each in batches),
                looked_up=sum(each.looked_up for each in batches),
                seam_s=sum(each.seam_s for each in batches),
                snapshot_s=duration_s,
                pause_s=pause_s,
                written=sum(each.written for each in partitions),
                written_bytes=sum(each.written_bytes for each in partitions),
                collected=sum(each.collected for each in partitions),
                collect_s=max((each.collect_s for each in partitions), default=0.0),
                steps=summed(each.sizes for each in partitions),
                operators=dict(operators),
                **memory,
            )
            found = of_epoch(measure, self._targets, backup_lag_s)
            missed = tuple(each for each in found if each.level.severity)
            self._note(missed)
            t = self._totals
            self._totals = replace(
                t,
                epochs=t.epochs + 1,
                snapshot_s=t.snapshot_s + duration_s,
                written=t.written + measure.written,
                written_bytes=t.written_bytes + measure.written_bytes,
                collected=t.collected + measure.collected,
                collect_s=t.collect_s + measure.collect_s,
                last_epoch=measure,
                last_closed_s=self._clock.elapsed_s(),
                findings=found,
            )
        return measure, missed

    def as_json(self, batch: int) -> dict[str, Any]:
        """Return the JSON values that a listener gets with the progress of a micro-batch."""
        with self._lock:
            t, measured = self._totals, self._recent.get(batch)
        last = t.last_epoch
        return {
            "execution": self._execution,
            "resume_s": self.resume_s,
            "batch": None if measured is None else measured._asdict(),
            "batches": t.batches,
            "batch_s": t.batch_s,
            "input_rows": t.input_rows,
            "rows": t.rows,
            "touched": t.touched,
            "looked_up": t.looked_up,
            "seam_s": t.seam_s,
            "epochs": t.epochs,
            "snapshot_s": t.snapshot_s,
            "pause_s": t.pause_s,
            "written_bytes": t.written_bytes,
            "collect_s": t.collect_s,
            "epoch": None if last is None else measure_json(last),
            "memory": {
                "driver_bytes": t.memory.driver_bytes,
                "jvm_bytes": t.memory.jvm_bytes,
                "workers_bytes": t.memory.workers_bytes,
            },
            "health": [each.as_json() for each in t.findings],
        }

    def _note(self, missed: Iterable[Finding]) -> None:
        for each in missed:
            before = self._worst.get(each.target.name)
            if before is None or (each.value or 0) > (before.value or 0):
                self._worst[each.target.name] = each

    def _memory(self) -> dict[str, Any]:
        """Return the memory, measured again only after some time, because it examines every process of the machine."""
        now_s = self._clock.elapsed_s()
        if self._memory_at_s is None or now_s - self._memory_at_s >= MEMORY_EVERY_S:
            self._memory_at_s = now_s
            found = self._measure_memory(os.getpid())
            with self._lock:
                self._totals = replace(self._totals, memory=found)
        memory = self._totals.memory
        return {
            "memory_driver_bytes": memory.driver_bytes,
            "memory_jvm_bytes": memory.jvm_bytes,
            "memory_workers_bytes": memory.workers_bytes,
        }
