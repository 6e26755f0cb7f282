"""All tactics that make a run's micro-batches faster, as one object: the run knows nothing of the single tactics.

Each tactic expects the next micro-batch to be like the last one. Results do not depend on whether it is right, nor on
which tactics are switched off: the environment variable RECOVERY_TUNING names those when a run starts, for instance
"-gathering,-merging".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from recovery.base.ids import BatchId
from recovery.errors import ConfigurationError
from recovery.sinks.delivery import Delivery
from recovery.spark.clusters import is_cluster
from recovery.spark.steps.definition import StepDefinition
from recovery.spark.tuning.combining import install
from recovery.spark.tuning.gathering import Gathering
from recovery.spark.tuning.lending import Lending
from recovery.spark.tuning.merging import Merging
from recovery.spark.tuning.outcome import Outcome
from recovery.spark.tuning.row_width import RowWidth

VARIABLE = "RECOVERY_TUNING"
TACTICS = frozenset({"appended-lines", "combining", "gathering", "lending", "merging", "row-width"})


def is_switched_on(tactic: str) -> bool:
    """Whether a tactic is to be used. Raises ConfigurationError."""
    return tactic in switched_on(os.environ.get(VARIABLE, ""))


def switched_on(text: str) -> frozenset[str]:
    """The tactics to use, by the value of RECOVERY_TUNING. Raises ConfigurationError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    off = {word.removeprefix("-") for word in words if word.startswith("-")}
    if len(off) < len(set(words)) or not off <= TACTICS:
        raise ConfigurationError(
            f"{VARIABLE}={text} does not name tactics to switch off",
            cause="The environment variable was set by hand.",
            remedy=f"List some of {', '.join(f'-{name}' for name in sorted(TACTICS))}, or unset it.",
        )
    return TACTICS - off


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
        lends: bool,
    ) -> None:
        """tasks: the number that rows are exchanged over. combined: the names of the plan's placeholder functions at
        which rows can be combined. steps_only: nothing else in the plan gives rows to Python. lends: the plan may run
        more than once in a micro-batch, in any thread."""
        # On a cluster the host of an executor may be lost while the sink reads.
        self._storage_level = StorageLevel.MEMORY_AND_DISK_2 if is_cluster(spark.sparkContext.master) else None
        on = switched_on(os.environ.get(VARIABLE, ""))
        self._row_width = RowWidth(spark, steps_only=steps_only and "row-width" in on)
        self._combiner = install(spark, combined, combines="combining" in on)
        # Made even if it is off: it takes back what an earlier run of the same frame made the planner expect.
        hash_columns = [each.hash_column for each in steps]
        self._merging = Merging(steps, tasks, self._row_width) if steps and "merging" in on else None
        # The driver needs no Python worker to merge the first micro-batch, but the one task does.
        first = self._merging is None or not self._merging.has_aggregates
        self._gathering = Gathering(spark, hash_columns, allowed="gathering" in on, first=first) if steps else None
        self._lending = Lending(spark, allowed=lends and "lending" in on)

    @contextlib.contextmanager
    def run_batch(
        self, query: Any, batch: DataFrame, batch_id: BatchId, address: str, delivery: Delivery
    ) -> Iterator[DataFrame | None]:
        """Yield what the sink gets of a micro-batch: its plan, or its rows, computed once and completely, so that no
        step runs again whatever the sink does with them. None if nothing is left to compute and the sink discards the
        rows. When this ends without an error, the whole plan has run.

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
            with as_expected if delivery.keeps_plan else contextlib.nullcontext():
                yield batch
            return
        if self._lending.lends:
            with self._lending.lent(batch, unlimited=self._row_width.is_expected(query)) as lent:
                yield lent
            return
        with as_expected:
            copy = batch.localCheckpoint(True, self._storage_level)
        try:
            with self._lending.watched(copy) as frame:
                yield frame
        finally:
            copy._jdf.queryExecution().analyzed().rdd().unpersist(False)

    def learn(self, outcome: Outcome) -> None:
        """Take the outcome of a micro-batch; expect the next one to be alike."""
        for tactic in (self._combiner, self._gathering, self._merging, self._row_width):
            if tactic is not None:
                tactic.learn(outcome)
