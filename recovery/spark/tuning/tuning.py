"""All tactics that make a run's micro-batches faster, as one object: the run knows nothing of the single tactics.

Each tactic expects the next micro-batch to be like the last one. Results do not depend on whether it is right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from recovery.base.ids import BatchId
from recovery.sinks.delivery import Delivery
from recovery.spark.steps.definition import StepDefinition
from recovery.spark.tuning.combining import install
from recovery.spark.tuning.gathering import Gathering
from recovery.spark.tuning.merging import Merging
from recovery.spark.tuning.outcome import Outcome
from recovery.spark.tuning.row_width import RowWidth


class Tuning:
    """The tactics of one run."""

    def __init__(
        self,
        spark: SparkSession,
        steps: Sequence[StepDefinition],
        tasks: int,
        *,
        combined: Sequence[str],
        steps_only: bool,
    ) -> None:
        """tasks: the number that rows are exchanged over. combined: the names of the plan's placeholder functions at
        which rows can be combined. steps_only: nothing else in the plan gives rows to Python."""
        self._row_width = RowWidth(spark, steps_only=steps_only)
        self._combiner = install(spark, combined)
        self._gathering = Gathering(spark, [each.hash_column for each in steps]) if steps else None
        self._merging = Merging(steps, tasks, self._row_width) if steps else None

    @contextlib.contextmanager
    def run_batch(
        self, query: Any, batch: DataFrame, batch_id: BatchId, address: str, delivery: Delivery
    ) -> Iterator[DataFrame | None]:
        """Yield what the sink gets of a micro-batch: its plan, or its rows, computed once and completely, so that no
        step runs again whatever the sink does with them. None if nothing is left to compute and the sink discards the
        rows.

        query: the JVM's handle. address: where tasks find the partitions.
        """
        if self._merging is not None:
            merged = self._merging.run(query, batch.sparkSession, address, batch_id)
            if merged is not None and merged.is_all:
                yield None if delivery.discards else merged.frame(batch)
                return
            batch = batch if merged is None else merged.frame(batch)
        as_expected = self._row_width.expected(query)
        if delivery.single_action:
            with as_expected if delivery.as_it_is else contextlib.nullcontext():
                yield batch
            return
        with as_expected:
            copy = batch.localCheckpoint(eager=True)
        try:
            yield copy
        finally:
            copy._jdf.queryExecution().analyzed().rdd().unpersist(False)

    def learn(self, outcome: Outcome) -> None:
        """Take what a micro-batch was; expect the same of the next."""
        for tactic in (self._combiner, self._gathering, self._merging, self._row_width):
            if tactic is not None:
                tactic.learn(outcome)
