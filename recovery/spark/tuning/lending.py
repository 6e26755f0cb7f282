"""Give a sink the plan of a micro-batch instead of a copy of its rows, if it reads its batches exactly once.

A function may read its batch in part, twice, in threads or not at all, so it gets a copy of the rows. For a small
micro-batch the copy is a second job that takes as long as the step; for a large one it is memory. So a class in the JVM
(Lending.java) notes how often each partition of a frame is begun and read to its end, and by how many stages: several
stages would run the partitions one after the other. After a micro-batch whose copy was read once and completely by one
stage, the sink gets the plan of the next one. If the sink reads only a part of that plan's result, the plan runs once
more; if it reads a partition twice, the step has run twice. State stays exact, because a task may be repeated. But from
then on the sink gets copies until the run ends.

The notes are in the driver's JVM, so this needs tasks that run there. The flow has one step, in the last stage, or
none: only there do jobs from other threads of the sink find the run. Spark's own stateful operators must not be
repeated in one micro-batch.

What lending buys: with a function as the sink, a micro-batch of a hundred rows takes 35 ms instead of 53, and one of
500,000 rows with 320,000 keys 0.90 times the processor time. A run's first micro-batch, with a copy, takes half a
second longer than without: the JVM loads and compiles what it needs for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from recovery.spark.clusters import is_one_process
from recovery.spark.jvm.java_sources import new_for_tasks
from recovery.spark.steps.definition import ADDRESS_PROPERTY, BATCH_PROPERTY, QUARANTINE_PROPERTY, TASKS_PROPERTY
from recovery.spark.tasks.retries import NOTES_PROPERTY
from recovery.spark.tuning.row_width import LIMIT, UNLIMITED

PROPERTIES = (ADDRESS_PROPERTY, TASKS_PROPERTY, BATCH_PROPERTY, NOTES_PROPERTY, QUARANTINE_PROPERTY)
"""What a step's task reads: threads of the sink do not have them."""

ONCE, PARTLY = "ONCE", "PARTLY"
"""Two of the answers of the JVM's class to how a sink has read a batch."""


class Lending:
    """Decides how one run's sink gets its batches."""

    def __init__(self, spark: SparkSession, *, allowed: bool) -> None:
        self._spark = spark
        self._lending: Any = None
        self._never = not (allowed and is_one_process(spark.sparkContext.master))
        self._once = False
        """Whether the sink has read its last batch once and completely."""

    @property
    def lends(self) -> bool:
        """Whether the sink is expected to read the next batch once and completely."""
        return self._once and not self._never

    @contextlib.contextmanager
    def lent(self, batch: DataFrame, *, unlimited: bool) -> Iterator[DataFrame]:
        """Yield the batch for the sink to run, within this context alone; then run it if the sink has run only a part.

        unlimited: whether the steps of the last stage get rows without a limit for an Arrow batch's bytes."""
        loan = self._lend(batch, unlimited)
        try:
            yield DataFrame(loan.frame(), batch.sparkSession)
        finally:
            reading = loan.end()
        self._once = reading == ONCE
        self._never = not self._once
        if reading == PARTLY:
            batch.write.format("noop").mode("overwrite").save()

    @contextlib.contextmanager
    def watched(self, copy: DataFrame) -> Iterator[DataFrame]:
        """Yield a copy of a batch for the sink to read, and learn how it reads."""
        if not self._never and self._lending is None:
            self._load()
        if self._never:
            yield copy
            return
        loan = self._lend(copy, unlimited=False)
        try:
            yield DataFrame(loan.frame(), copy.sparkSession)
        finally:
            self._once = loan.end() == ONCE

    def _load(self) -> None:
        """Not when the run starts: many sinks need no copies."""
        self._lending = new_for_tasks(self._spark, "tuning/Lending.java", "recovery.Lending")
        self._never = self._lending is None
        for each in () if self._never else PROPERTIES:
            self._lending.passOn(each)

    def _lend(self, frame: DataFrame, unlimited: bool) -> Any:
        return self._lending.lend(frame._jdf, *((LIMIT, UNLIMITED) if unlimited else (None, None)))
