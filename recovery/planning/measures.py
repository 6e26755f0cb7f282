"""Measures of a run: their values, their form in the partitions, and which of them are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec

from recovery.base.untrusted_json import Moment, Number, Real, Refusal, decode_json
from recovery.planning.sink_work import SinkWork
from recovery.planning.timeline import timeline
from recovery.planning.values import ClosedEpoch, Execution

NEWEST = 1_000


class StepSize(NamedTuple):
    """The live state of one step: its rows, and the bytes of their stored keys and values."""

    rows: Number
    size_bytes: Number


class ClosedPartition(NamedTuple):
    """The effect of closing an epoch in one partition.

    states: the number of step keys whose state entered the snapshot.
    written, written_bytes: rows that entered it, the run's own included, and the bytes of their keys and values.
    collected, collect_s: superseded rows that were deleted, and the seconds that took.
    sizes: the sizes of all steps afterwards, the run's own (`$…`) included.
    """

    states: int
    written: int
    written_bytes: int
    collected: int
    collect_s: float
    sizes: Mapping[str, StepSize]


class OperatorWork(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one of Spark's own operators in some micro-batches, as Spark reports it. Times are summed over tasks.

    updated, removed: rows of its state. remove_s: of the micro-batch that took longest.
    memory_bytes: of its state stores after the last micro-batch; part of the JVM's.
    """

    updated: Number = 0
    update_s: Real = 0.0
    removed: Number = 0
    remove_s: Real = 0.0
    memory_bytes: Number = 0

    @property
    def latency_s(self) -> float | None:
        """Seconds that a task takes to update a row."""
        return self.update_s / self.updated if self.updated else None

    def then(self, later: OperatorWork) -> OperatorWork:
        """Return the work of these micro-batches and of the later ones together."""
        return OperatorWork(
            updated=self.updated + later.updated,
            update_s=self.update_s + later.update_s,
            removed=self.removed + later.removed,
            remove_s=max(self.remove_s, later.remove_s),
            memory_bytes=later.memory_bytes,
        )


class Counter(NamedTuple):
    """How metrics show a count: the name without prefix and suffix, and the help text."""

    metric: str
    help: str


def _counter(metric: str, text: str) -> msgspec.Meta:
    return msgspec.Meta(extra={"counter": Counter(metric, text)})


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What micro-batches and the closing of epochs add up to: of one epoch, or of a run since its start. Times are
    seconds.

    snapshot_s: from when an epoch's micro-batches were sealed until it was durable in all partitions and, if logged
        changes were folded, until that was done.
    pause_s: the part of snapshot_s, and of the sealing, during which the stream stopped.
    """

    batches: Annotated[Number, _counter("batches", "Micro-batches processed.")] = 0
    batch_s: Annotated[Real, _counter("batch_seconds", "Time of the micro-batches, as the driver saw them.")] = 0.0
    input_rows: Annotated[Number, _counter("input_rows", "Rows read from the sources.")] = 0
    rows: Annotated[Number, _counter("step_rows", "Rows that reached a stateful step.")] = 0
    touched: Annotated[Number, _counter("keys_touched", "Keys whose state was written, per micro-batch and step.")] = 0
    looked_up: Annotated[Number, _counter("keys_looked_up", "Keys whose state was read, per micro-batch and step.")] = 0
    seam_s: Annotated[
        Real,
        _counter(
            "state_access_seconds",
            "Time that tasks waited for states to be read and written, summed over tasks. Divided by keys looked up, "
            "the latency of an update.",
        ),
    ] = 0.0
    snapshot_s: Annotated[
        Real, _counter("snapshot_seconds", "Time spent writing snapshots while the stream went on.")
    ] = 0.0
    pause_s: Annotated[Real, _counter("pause_seconds", "Time that the stream waited for epochs to close.")] = 0.0
    written: Annotated[Number, _counter("snapshot_rows", "Rows written to snapshots.")] = 0
    written_bytes: Annotated[Number, _counter("snapshot_bytes", "Keys and values written to snapshots.")] = 0
    collected: Annotated[Number, _counter("collected_rows", "Superseded rows deleted by collection.")] = 0
    collect_s: Annotated[
        Real, _counter("collection_seconds", "Time of collections, each in its slowest partition.")
    ] = 0.0

    @classmethod
    def counters(cls) -> Mapping[str, Counter]:
        """Return how metrics show each count, by its field."""
        hints = get_type_hints(cls, include_extras=True)
        return {
            name: meta.extra["counter"]
            for name in Counts.__struct_fields__
            for meta in hints[name].__metadata__
            if meta.extra
        }


class Measure(Counts, frozen=True, kw_only=True):
    """The measure of one closed epoch or, with epoch 0, of the start of an execution. Times are seconds.

    resume_s: of the execution: reading, planning and restoring the position.
    memory_…: resident bytes of the driver's Python, of its JVM, of Spark's Python workers, and on a cluster of the
        owner's process and of executors; None: unknown.
    operators: the rows in the state of Spark's own operators after micro-batch `batch`, by operator number; an absent
        operator is unknown.
    native: the work of these operators in the epoch's micro-batches, by operator number; None: not measured.
    sink: the work of the sink since the epoch before; None: the sink does not count it.
    """

    execution: Number
    epoch: Number
    measured_ms: Moment
    resume_s: Real
    batch: Number = -1
    memory_driver_bytes: Number | None = None
    memory_jvm_bytes: Number | None = None
    memory_workers_bytes: Number | None = None
    memory_owner_bytes: Number | None = None
    memory_executors_bytes: Number | None = None
    steps: dict[str, StepSize] = {}
    operators: dict[Number, Number] = {}
    native: dict[Number, OperatorWork] | None = {}
    sink: SinkWork | None = None

    @property
    def state_bytes(self) -> int:
        """The bytes of keys and values of all live rows."""
        return sum(size.size_bytes for size in self.steps.values())

    @property
    def state_rows(self) -> int:
        """The number of live rows, the run's own included."""
        return sum(size.rows for size in self.steps.values())

    @property
    def update_latency_s(self) -> float | None:
        """Seconds that a task waits for storage, per key and micro-batch: to read the state and write the new one."""
        return self.seam_s / self.looked_up if self.looked_up else None

    @property
    def native_is_measured(self) -> bool:
        """Whether the work of Spark's own operators is known, if there are any."""
        return self.native is not None and (bool(self.native) or not self.operators)

    @property
    def native_updated(self) -> int:
        """The number of rows that Spark's own operators updated, per micro-batch."""
        return sum(work.updated for work in (self.native or {}).values())

    @property
    def native_latency_s(self) -> float | None:
        """Seconds that a task of Spark's own operators takes to update a row of their state."""
        update_s = sum(work.update_s for work in (self.native or {}).values())
        return update_s / self.native_updated if self.native_updated else None

    @property
    def latency_s(self) -> float | None:
        """The update latency of the steps or of Spark's own operators, whichever is longer."""
        each_s = (self.update_latency_s, self.native_latency_s)
        return max((each for each in each_s if each is not None), default=None)

    @property
    def native_remove_s(self) -> float:
        """Seconds that Spark's own operators took to remove rows from their state, each in its slowest micro-batch."""
        return sum(work.remove_s for work in (self.native or {}).values())

    @property
    def memory_bytes(self) -> int | None:
        """The resident bytes of the run's processes, as far as known: driver, JVM, workers and owner."""
        each_bytes = (self.memory_driver_bytes, self.memory_jvm_bytes, self.memory_workers_bytes,
                      self.memory_owner_bytes)  # fmt: skip
        known = [each for each in each_bytes if each is not None]
        return sum(known) if known else None


def to_text(measure: Measure) -> str:
    """Return the measure as JSON text."""
    return msgspec.json.encode(measure).decode()


def measure_json(measure: Measure) -> dict[str, Any]:
    """Return the measure as JSON values, with the values derived from it."""
    facts: dict[str, Any] = msgspec.to_builtins(measure)
    return {
        **facts,
        "steps": {step: {"rows": size.rows, "bytes": size.size_bytes} for step, size in measure.steps.items()},
        "state_rows": measure.state_rows,
        "state_bytes": measure.state_bytes,
        "update_latency_s": measure.update_latency_s,
        "native_latency_s": measure.native_latency_s,
    }


def from_text(text: str, refuse: Refusal) -> Measure:
    """Parse a measure, ignoring fields of later versions. Raises the error that `refuse` makes of other text."""
    return decode_json(text, refuse, Measure)


def operators_measured(
    measures: Sequence[Measure], executions: Sequence[Execution], snapshot: ClosedEpoch
) -> Measure | None:
    """Return the measure that describes Spark's own operators at a snapshot; None: nothing is known of them.

    The measure is of exactly the snapshot's micro-batch and of an epoch on its timeline: an epoch that edits steps has
    the micro-batch of the epoch before it, and counts of other runs are ignored. `measures`: oldest first.
    """
    parts = timeline(executions, snapshot)
    for measure in reversed(measures):
        if measure.batch == snapshot.batch_id and (measure.operators or measure.native):
            owner = next((p for p in parts if p.first <= measure.epoch <= p.last), None)
            if owner is not None and owner.execution.number == measure.execution:
                return measure
    return None


def operator_rows(
    measures: Sequence[Measure], executions: Sequence[Execution], snapshot: ClosedEpoch
) -> Mapping[int, int]:
    """Return the rows in the state of Spark's own operators at a snapshot, by operator number; absent ones are unknown.
    See `operators_measured`."""
    found = operators_measured(measures, executions, snapshot)
    return {} if found is None else found.operators


def outdated(measure_id: int) -> list[int]:
    """Return the ids of the measures to delete when the one with this id is added; ids count up from 1.

    The newest 1,000 stay; of the 9,000 before those every 10th, of the 90,000 before those every 100th, and so on: 900
    more for each tenfold age.
    """
    gone = []
    age, step = NEWEST, 10
    while age < measure_id:
        old = measure_id - age
        # Only a multiple of the smaller step was still kept until now.
        if old % step and not old % (step // 10):
            gone.append(old)
        age, step = age * 10, step * 10
    return gone


def summed(parts: Iterable[Mapping[str, StepSize]]) -> dict[str, StepSize]:
    """Return the sizes of steps summed over all partitions."""
    sums: dict[str, StepSize] = {}
    for part in parts:
        for step, size in part.items():
            before = sums.get(step, StepSize(0, 0))
            sums[step] = StepSize(before.rows + size.rows, before.size_bytes + size.size_bytes)
    return sums


def work_together(parts: Iterable[Mapping[int, OperatorWork]]) -> dict[int, OperatorWork]:
    """Return the work of operators over all parts, which are in the order of the micro-batches."""
    together: dict[int, OperatorWork] = {}
    for part in parts:
        for number, work in part.items():
            together[number] = together.get(number, OperatorWork()).then(work)
    return together
