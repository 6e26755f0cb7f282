"""Merge a declared aggregate's rows in the driver, if Spark has combined those of a micro-batch to few.

Such a step runs no user code in Python, and Spark combines half a million rows with a thousand keys to two thousand.
Python workers take longer to receive those than to merge them: a shuffle, and a second stage whose tasks wait for
processes, which have to be started the first time. So the driver takes the combined rows instead, does what the single
task of a gathered micro-batch does, and gives the sink the result.

The previous micro-batch shows how many rows to expect. For a run's first micro-batch, and if a source does not report
how much there is to read, a separate job runs the exchange and counts them. If the rows are few, the driver takes them
from the exchange; if not, Spark continues behind the exchange.

What merging buys: ten million lines over a thousand keys take 18.2 s instead of 22.2, and 141 MiB outside the JVM
instead of 425. Merging loses with ten thousand keys or more: a micro-batch of 200,000 lines takes 281 ms instead of
269.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from recovery.base.credentials.task_key import task_key
from recovery.base.ids import BatchId
from recovery.spark.jvm.plan_nodes import seq, with_children
from recovery.spark.jvm.versions import to_arrow_schema
from recovery.spark.steps.aggregate import Aggregation
from recovery.spark.steps.definition import EVERYWHERE, HASH_BITS, KEY, ROUTE, UDF_NAME, StepDefinition
from recovery.spark.tasks.arrow_task import ArrowStepTask
from recovery.spark.tasks.run_tasks import run_tasks
from recovery.spark.tuning.back_off import BackOff
from recovery.spark.tuning.collecting import Collector, local_frame
from recovery.spark.tuning.outcome import Outcome
from recovery.spark.tuning.row_width import RowWidth, bytes_to_read
from recovery.storage.reach import reach

FEW_ROWS = 10_000
MOST_BYTES = 64 << 20
"""Most bytes to read at which rows are taken before they are counted: the driver has memory for so many bytes, whatever
the rows are."""
MOST_COUNTED_BYTES = 64 << 20
"""Most bytes of counted rows, which may have arrays of long strings."""
PAUSE = 20
"""Number of micro-batches that are left to Spark after a micro-batch that unexpectedly had many rows."""
_ABOVE = {"Project", "Filter"}
"""Nodes that may be between the step and the sink."""


class _AggregateNodes(NamedTuple):
    """An aggregate in a micro-batch's plan: the nodes from the top to its function, and its exchange."""

    step: StepDefinition
    path: list[Any]
    exchange: Any


@dataclass(frozen=True)
class Merged:
    """A micro-batch whose last step the driver has run: the rows of that step's output."""

    nodes: _AggregateNodes
    rows: pa.Table

    @property
    def is_all(self) -> bool:
        """Whether the sink gets exactly those rows."""
        return len(self.nodes.path) == 1

    def frame(self, planned: DataFrame) -> DataFrame:
        """The frame for the sink, for the micro-batch that Spark planned as `planned`, without running a step again; a
        local frame if it `is_all`."""
        spark = planned.sparkSession
        output = local_frame(spark, self.rows, self.nodes.step.output, self.nodes.step.time_zone)
        if self.is_all:
            return output
        jvm = spark._jvm
        assert jvm is not None
        *above, step = self.nodes.path
        plan = jvm.org.apache.spark.sql.execution.RDDScanExec(
            step.output(),
            output._jdf.queryExecution().toRdd(),
            "Merged",
            jvm.org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning(0),
            seq(jvm, []),
            jvm.scala.Option.empty(),
        )
        for node in reversed(above):
            plan = with_children(jvm, node, [plan])
        schema = planned._jdf.schema()
        return DataFrame(spark._jsparkSession.internalCreateDataFrame(plan.execute(), schema, False), spark)


class Merging:
    """Runs the last step of one run's micro-batches in the driver, if that step is an aggregate."""

    def __init__(self, steps: Sequence[StepDefinition], tasks: int, row_width: RowWidth) -> None:
        """tasks: the number that rows are exchanged over. row_width: of the rows that steps below the aggregate get."""
        aggregations = [each for each in steps if isinstance(each.update, Aggregation) and each.hold is None]
        self._steps = {f"{UDF_NAME}{each.token}": each for each in aggregations}
        self._tasks = tasks
        self._row_width = row_width
        self._collector: Collector | None = None
        self._few: bool | None = None
        """Whether few rows are expected; None if nothing is expected."""
        self._weighted = all(each.weight is not None for each in self._steps.values())
        # Every pause is as long as the first one.
        self._back_off = BackOff(PAUSE, PAUSE)
        self._merged = False

    @property
    def has_aggregates(self) -> bool:
        """Whether the run has steps that the driver may run."""
        return bool(self._steps)

    def learn(self, outcome: Outcome) -> None:
        """Decide whether to expect few rows in the next micro-batch."""
        if not self._merged:
            most = min(outcome.rows, outcome.keys * self._tasks) if self._weighted else outcome.rows
            self._few = None if most <= FEW_ROWS else False
        self._merged = False

    def run(self, query: Any, spark: SparkSession, address: str, batch: BatchId) -> Merged | None:
        """Run the micro-batch that the JVM's query is about to run, in its session; return None to leave it to Spark.

        Raises errors of the flow's expressions, and StateValueError.
        """
        paused = self._back_off.count()
        if query is None or not self._steps or self._few is False or paused:
            return None
        nodes = self._find(query.streamingQuery().lastExecution().executedPlan())
        if nodes is None:
            return None
        if self._collector is None:
            self._collector = Collector(spark)
        with self._row_width.expected(query):
            taken = self._node_to_collect(nodes.exchange, query, self._collector)
            if taken is None:
                return None
            rows = self._collector.collect(taken)
        self._merged, self._few = True, sum(map(len, rows)) <= FEW_ROWS
        if self._few and sum(each.nbytes for each in rows) > MOST_COUNTED_BYTES:
            # Files may be compressed: the bytes to read do not bound those of the next rows.
            self._few = None
        return Merged(nodes, self._merge(nodes.step, rows, address, batch))

    def _find(self, plan: Any) -> _AggregateNodes | None:
        path = [plan]
        while (name := plan.nodeName()) in _ABOVE or _is_transparent(name):
            plan = plan.children().head()
            path.append(plan)
        step = self._steps.get(str(plan.func().name())) if name == "MapInArrow" else None
        if step is None:
            return None
        rows = plan.child()
        while (name := rows.nodeName()) == "Project" or _is_transparent(name):
            rows = rows.child()
        return _AggregateNodes(step, path, rows) if name == "Exchange" and _gives_all(rows, step) else None

    def _node_to_collect(self, exchange: Any, query: Any, collector: Collector) -> Any:
        """The node of the plan whose rows the driver takes; None if it takes none."""
        if self._few and bytes_to_read(query) <= MOST_BYTES:
            return exchange.child()
        if collector.count(exchange, MOST_COUNTED_BYTES) <= FEW_ROWS:
            return exchange
        self._back_off.pause()
        return None

    def _merge(self, step: StepDefinition, rows: Sequence[pa.RecordBatch], address: str, batch: BatchId) -> pa.Table:
        """Run the step over the rows of all recovery partitions, and return its output."""
        connect = partial(reach, address, task_key=task_key())
        output = run_tasks(step, (_placed(step, each) for each in rows), connect, batch, ArrowStepTask, self._tasks)
        return pa.Table.from_batches(list(output), to_arrow_schema(step.output, step.time_zone))


def _placed(step: StepDefinition, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of all partitions from before the exchange, with the columns that a task sees behind it."""
    names = _taken(step)
    everywhere = pc.bit_wise_or(rows.column(step.hash_column), EVERYWHERE << HASH_BITS)
    return pa.RecordBatch.from_arrays([*map(rows.column, names), everywhere], [*names, ROUTE])


def _taken(step: StepDefinition) -> list[str]:
    """The columns of the step's input that a task needs besides the hash."""
    return [*step.columns] if step.key_in_place else [*step.columns, KEY]


def _gives_all(exchange: Any, step: StepDefinition) -> bool:
    """Whether the exchange has all columns of the step's input: Spark adds constant ones only behind the exchange."""
    output = exchange.output()
    names = {output.apply(place).name() for place in range(output.length())}
    return names.issuperset([*_taken(step), step.hash_column])


def _is_transparent(name: str) -> bool:
    """Whether a node of that name passes rows on unchanged."""
    return name.startswith("WholeStageCodegen") or name == "InputAdapter"
