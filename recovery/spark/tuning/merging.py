"""Merging a declared aggregate's rows in the driver, where Spark has combined those of a micro-batch to few.

Such a step runs no code of the user's in Python, and of half a million rows with a thousand keys Spark leaves two
thousand. Python workers take longer to be given those than to merge them: a shuffle, and a second stage whose tasks
wait for processes, which have to be started for the first one. So the driver takes the combined rows instead, does what
the one task of a gathered micro-batch does, and gives the sink what comes of it.

How many rows there will be is known from the micro-batch before. Of a run's first one, and where a source does not tell
how much there is to read, the exchange is run by a job of its own, and counts them. If they are few, the driver takes
them from there; if not, Spark goes on behind the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from recovery.base.ids import BatchId
from recovery.spark.jvm.plan_nodes import seq, with_children
from recovery.spark.steps.aggregate import Aggregation
from recovery.spark.steps.definition import EVERYWHERE, HASH_BITS, KEY, PLACE, UDF_NAME, StepDefinition
from recovery.spark.tasks.arrow_task import ArrowStepTask
from recovery.spark.tasks.step_task import run_tasks
from recovery.spark.tuning.collecting import Collector, local_frame
from recovery.spark.tuning.row_width import RowWidth, bytes_to_read
from recovery.storage.connect import connect_task

FEW_ROWS = 10_000
MOST_BYTES = 64 << 20
"""What there is to read where rows are taken before they are counted: the driver has memory for them, whatever they
are."""
PAUSE = 20
"""So many micro-batches are left to Spark after one that had many rows against expectation."""
_ABOVE = {"Project", "Filter"}
"""What may stand between the step and the sink."""


class _Place(NamedTuple):
    """Where a micro-batch's plan has an aggregate: the nodes from the top to its function, and its exchange."""

    step: StepDefinition
    path: list[Any]
    exchange: Any


@dataclass(frozen=True)
class Merged:
    """A micro-batch whose last step the driver has done: the rows of that step's output."""

    place: _Place
    rows: pa.Table

    @property
    def is_all(self) -> bool:
        """Whether the sink is to be given those rows, as they are."""
        return len(self.place.path) == 1

    def frame(self, planned: DataFrame) -> DataFrame:
        """What the sink is to be given for the micro-batch that Spark planned as `planned`, without running a step
        again; a local frame, where it `is_all`."""
        spark = planned.sparkSession
        output = local_frame(spark, self.rows, self.place.step.output, self.place.step.time_zone)
        if self.is_all:
            return output
        jvm = spark._jvm
        assert jvm is not None
        *above, step = self.place.path
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
    """What the driver does of one run's micro-batches: the last step, if that is an aggregate."""

    def __init__(self, steps: Sequence[StepDefinition], tasks: int, row_width: RowWidth) -> None:
        """tasks: over how many rows are exchanged. row_width: of what steps below the aggregate are given."""
        self._steps = {f"{UDF_NAME}{each.token}": each for each in steps if isinstance(each.update, Aggregation)}
        self._tasks = tasks
        self._row_width = row_width
        self._collector: Collector | None = None
        self._few: bool | None = None
        """What is expected; None for nothing."""
        self._weighted = all(each.weight is not None for each in self._steps.values())
        self._pause = 0
        self._merged = False

    def learn(self, rows: int, keys: int) -> None:
        """The last micro-batch had so many rows, as its steps count them, and changed so many keys."""
        if not self._merged:
            most = min(rows, keys * self._tasks) if self._weighted else rows
            self._few = None if most <= FEW_ROWS else False
        self._merged = False

    def run(self, query: Any, spark: SparkSession, address: str, batch: BatchId) -> Merged | None:
        """Run the micro-batch that the JVM's query is about to run, in its session; None if Spark is to do it.

        Raises what goes wrong in the flow's expressions, and StateValueError.
        """
        paused, self._pause = self._pause > 0, max(0, self._pause - 1)
        if query is None or not self._steps or self._few is False or paused:
            return None
        place = self._find(query.streamingQuery().lastExecution().executedPlan())
        if place is None:
            return None
        if self._collector is None:
            self._collector = Collector(spark)
        with self._row_width.expected(query):
            taken = self._taken(place.exchange, query, self._collector)
            if taken is None:
                return None
            rows = self._collector.collect(taken)
        self._merged, self._few = True, sum(map(len, rows)) <= FEW_ROWS
        return Merged(place, self._merge(place.step, rows, address, batch))

    def _find(self, plan: Any) -> _Place | None:
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
        return _Place(step, path, rows) if name == "Exchange" else None

    def _taken(self, exchange: Any, query: Any, collector: Collector) -> Any:
        """The node of the plan whose rows the driver takes; None for none."""
        if self._few and bytes_to_read(query) <= MOST_BYTES:
            return exchange.child()
        if collector.count(exchange) <= FEW_ROWS:
            return exchange
        self._pause = PAUSE
        return None

    def _merge(self, step: StepDefinition, rows: Sequence[pa.RecordBatch], address: str, batch: BatchId) -> pa.Table:
        """The step over the rows of all recovery partitions."""
        connect = partial(connect_task, address)
        output = run_tasks(step, (_placed(step, each) for each in rows), connect, batch, ArrowStepTask, self._tasks)
        return pa.Table.from_batches(list(output), to_arrow_schema(step.output, timezone=step.time_zone))


def _placed(step: StepDefinition, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows from before the exchange, with the columns that a task sees behind it, of all partitions."""
    names = [*step.columns] if step.key_in_place else [*step.columns, KEY]
    everywhere = pc.bit_wise_or(rows.column(step.hash_column), EVERYWHERE << HASH_BITS)
    return pa.RecordBatch.from_arrays([*map(rows.column, names), everywhere], [*names, PLACE])


def _is_transparent(name: str) -> bool:
    """Whether a node of that name passes rows on as they are."""
    return name.startswith("WholeStageCodegen") or name == "InputAdapter"
