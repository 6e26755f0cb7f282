"""The counters of one run: what its micro-batches and epochs cost, in all and per epoch.

To add a counter, measure it in `BatchMeasure` or `planning.measures.ClosedPartition`, and declare it under the same
name in `planning.measures.Counts`: totals, the measures of epochs, metrics and listeners follow.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import msgspec

from recovery.base.clock import Clock
from recovery.base.ids import BatchId, Epoch
from recovery.metrics.memory import ProcessMemory, measure_memory
from recovery.planning.health import Finding, HealthTarget, of_epoch
from recovery.planning.measures import (
    ClosedPartition,
    Counts,
    Measure,
    OperatorWork,
    measure_json,
    summed,
    work_together,
)
from recovery.planning.owner_facts import SeenOwner, owner_findings
from recovery.planning.replica import ReplicaLag
from recovery.planning.sink_work import SinkWork

MEMORY_EVERY_S = 2.0
RECENT_BATCHES = 100


class BatchMeasure(NamedTuple):
    """One micro-batch: rows that reached steps, keys written and read, seconds that its tasks spent in storage, and the
    seconds that the driver saw it take."""

    rows: int
    touched: int
    looked_up: int
    seam_s: float
    duration_s: float


class RunTotals(Counts, frozen=True, kw_only=True):
    """What a run has counted since its start, and its newest micro-batch and epoch.

    native: the work of Spark's own operators; operators: the rows in their state. By operator number.
    """

    epochs: int = 0
    last_batch: int | None = None
    last_batch_s: float | None = None
    last_epoch: Measure | None = None
    last_closed_s: float | None = None
    memory: ProcessMemory = ProcessMemory()
    native: Mapping[int, OperatorWork] = msgspec.field(default_factory=dict)
    operators: Mapping[int, int] = msgspec.field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def plus(self, counts: Mapping[str, float], **newest: Any) -> RunTotals:
        """Return the totals with `counts` added to the fields of the same names, and with the fields of `newest`."""
        sums = {name: getattr(self, name) + count for name, count in counts.items()}
        return msgspec.structs.replace(self, **sums, **newest)


_NOT_FOR_LISTENERS = {"written", "collected"}
"""Counts of rows. Listeners get the bytes and the time of the same work."""
_FOR_LISTENERS = [each for each in (*Counts.__struct_fields__, "epochs") if each not in _NOT_FOR_LISTENERS]


def _of_batches(batches: Sequence[BatchMeasure]) -> dict[str, Any]:
    """Return what micro-batches add to `Counts`."""
    sums = {name: sum(getattr(each, name) for each in batches) for name in BatchMeasure._fields}
    return {"batches": len(batches), "batch_s": sums.pop("duration_s"), **sums}


def _of_closing(duration_s: float, partitions: Sequence[ClosedPartition]) -> dict[str, Any]:
    """Return what closing an epoch adds to `Counts`."""
    return {
        "snapshot_s": duration_s,
        **{name: sum(getattr(each, name) for each in partitions) for name in ("written", "written_bytes", "collected")},
        "collect_s": max((each.collect_s for each in partitions), default=0.0),
    }


class Meter:
    """Counts what a run does. The thread of the micro-batches and the one that closes epochs call it; its methods are
    quick and never raise.

    A micro-batch belongs to the first epoch that is closed as of it or of a later one.
    """

    def __init__(
        self,
        execution: int,
        clock: Clock,
        targets: Sequence[HealthTarget],
        memory: Callable[[int], ProcessMemory] = measure_memory,
        *,
        closes: bool = True,
        native: bool = False,
    ) -> None:
        """closes: whether epochs will be closed; if so, what was measured is kept until then. native: whether operators
        of Spark keep state, so that an epoch without reports of them is not measured."""
        self._execution = execution
        self._clock = clock
        self._targets = targets
        self._measure_memory = memory
        self._closes = closes
        self._native = native
        self._lock = threading.Lock()
        self._batches: dict[BatchId, BatchMeasure] = {}
        self._input: dict[int, int] = {}
        self._operators: dict[int, Mapping[int, int]] = {}
        self._work: dict[int, Mapping[int, OperatorWork]] = {}
        self._closed_batch = -1
        self._recent: dict[int, BatchMeasure] = {}
        self._pauses: dict[BatchId, float] = {}
        self._memory_at_s: float | None = None
        self._totals = RunTotals()
        self._worst: dict[str, Finding] = {}
        self._sink = SinkWork()
        self.resume_s = 0.0

    @property
    def totals(self) -> RunTotals:
        """All counts, as of one moment."""
        with self._lock:
            return self._totals

    @property
    def exceeded(self) -> list[Finding]:
        """The targets that were not met in this run, each at its worst."""
        with self._lock:
            return list(self._worst.values())

    def started(self, resume_s: float) -> Measure:
        """Take the seconds that resuming took, and return the measure of the start to keep."""
        self.resume_s = resume_s
        return Measure(
            execution=self._execution, epoch=0, measured_ms=self._clock.wall_ms(), resume_s=resume_s, **self._memory()
        )

    def progress(
        self, batch: int, rows: int, operators: Mapping[int, int], work: Mapping[int, OperatorWork] | None = None
    ) -> None:
        """Take Spark's report of a micro-batch: how many rows it read, how many rows the state of each of its own
        operators has after it, and their work in it, by the operators' numbers. Operators that are left out are not
        known; of their work, all is known or nothing (None)."""
        with self._lock:
            if self._closes and batch > self._closed_batch:
                self._input[batch] = rows
                self._operators[batch] = operators
                if work is not None:
                    self._work[batch] = work
            native = work_together([self._totals.native, work or {}])
            self._totals = self._totals.plus({"input_rows": rows}, native=native, operators=operators)

    def batch(self, batch: BatchId, measured: BatchMeasure) -> None:
        """Count a processed micro-batch."""
        with self._lock:
            self._recent[batch] = measured
            if self._closes:
                self._batches[batch] = measured
            self._recent.pop(batch - RECENT_BATCHES, None)
            self._totals = self._totals.plus(
                _of_batches([measured]), last_batch=batch, last_batch_s=measured.duration_s
            )

    def paused(self, batch: BatchId, pause_s: float) -> None:
        """Count the time that the stream waited for the end of the epoch that is closed as of this micro-batch."""
        with self._lock:
            self._pauses[batch] = self._pauses.get(batch, 0.0) + pause_s
            self._totals = self._totals.plus({"pause_s": pause_s})

    def closed(
        self,
        epoch: Epoch,
        batch: BatchId,
        duration_s: float,
        partitions: Sequence[ClosedPartition],
        backup_lag_s: float | None = None,
        replica: ReplicaLag | None = None,
        source_lag_s: float | None = None,
        owners: Sequence[SeenOwner] = (),
        certificate_end_s: float | None = None,
        sink: SinkWork | None = None,
        quarantine_s: float | None = None,
    ) -> tuple[Measure, tuple[Finding, ...]]:
        """Count an epoch closed as of a micro-batch; return the measure to keep, and the targets that it does not meet.

        backup_lag_s: the age of the newest backup; None if there is none. replica, source_lag_s, quarantine_s: see
        `findings`. owners: as the run last saw them.
        certificate_end_s: see `owner_findings`. sink: the work of the sink since the run began."""
        memory = self._memory()
        with self._lock:
            closing = _of_closing(duration_s, partitions)
            measure = Measure(
                execution=self._execution,
                epoch=epoch,
                measured_ms=self._clock.wall_ms(),
                resume_s=self.resume_s,
                batch=batch,
                steps=summed(each.sizes for each in partitions),
                sink=None if sink is None else sink.since(self._sink),
                **self._of_epoch(batch),
                **closing,
                **memory,
            )
            found = (
                *of_epoch(measure, self._targets, backup_lag_s, replica, source_lag_s, quarantine_s),
                *owner_findings(owners, self._targets, certificate_end_s),
            )
            self._sink = sink or self._sink
            missed = tuple(each for each in found if each.level.severity)
            self._note(missed)
            self._totals = self._totals.plus(
                {"epochs": 1, **closing},
                last_epoch=measure,
                last_closed_s=self._clock.elapsed_s(),
                findings=found,
            )
        return measure, missed

    def _of_epoch(self, batch: BatchId) -> dict[str, Any]:
        """Return what was measured since the epoch before up to this micro-batch, its last one, and forget that."""
        ended = {each: self._batches.pop(each) for each in sorted(self._batches) if each <= batch}
        # Spark reports what it read after the micro-batch, which may be too late for the last one of an epoch.
        read = sum(self._input.get(each, measured.rows) for each, measured in ended.items())
        self._input = {each: rows for each, rows in self._input.items() if each > batch}
        operators = self._operators.get(batch, {})
        self._operators = {each: found for each, found in self._operators.items() if each > batch}
        work = [self._work[each] for each in sorted(self._work) if each <= batch]
        self._work = {each: found for each, found in self._work.items() if each > batch}
        self._closed_batch = batch
        return {
            "input_rows": read,
            "pause_s": sum(self._pauses.pop(each) for each in sorted(self._pauses) if each <= batch),
            "operators": dict(operators),
            "native": work_together(work) if work or not self._native else None,
            **_of_batches(list(ended.values())),
        }

    def as_json(self, batch: int) -> dict[str, Any]:
        """Return what a listener gets with the progress of a micro-batch."""
        with self._lock:
            t, measured = self._totals, self._recent.get(batch)
        last = t.last_epoch
        return {
            "execution": self._execution,
            "resume_s": self.resume_s,
            "batch": None if measured is None else measured._asdict(),
            **{name: getattr(t, name) for name in _FOR_LISTENERS},
            "epoch": None if last is None else measure_json(last),
            "memory": asdict(t.memory),
            "health": [each.as_json() for each in t.findings],
        }

    def _note(self, missed: Iterable[Finding]) -> None:
        for each in missed:
            before = self._worst.get(each.target.name)
            if before is None or each.is_worse(before):
                self._worst[each.target.name] = each

    def _memory(self) -> dict[str, Any]:
        """Return the memory fields of a measure. Memory is measured at most every MEMORY_EVERY_S, because measuring
        looks at every process of the machine."""
        now_s = self._clock.elapsed_s()
        if self._memory_at_s is None or now_s - self._memory_at_s >= MEMORY_EVERY_S:
            self._memory_at_s = now_s
            found = self._measure_memory(os.getpid())
            with self._lock:
                self._totals = msgspec.structs.replace(self._totals, memory=found)
        return {f"memory_{name}": size for name, size in asdict(self._totals.memory).items()}
