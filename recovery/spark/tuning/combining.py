"""Combine a micro-batch's rows before the exchange, in the JVM: a partition's rows of one key become one row.

Spark plans every aggregate of a stream with a state store of its own, so the plan holds a placeholder: a function that
the planner, with this package's strategy, replaces by an aggregate over each partition alone. The strategy is Java for
the driver only (Combining.java), compiled by the compiler that Spark has for its own generated code. Spark hashes rows
if all that is kept of a key has a fixed size. Else, as for a string with the time by which it is the last, Spark sorts
each partition's rows by key, in memory that Spark bounds.

What combining buys: with a thousand keys, the JVM's tasks take 7 to 8 s of processor time for ten million lines instead
of 13 to 14. With a million keys combining would cost 3 s more, so it pauses there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from recovery.spark.jvm.java_sources import planner_strategy
from recovery.spark.steps.combine import _declared
from recovery.spark.tuning.outcome import Outcome


class Combiner:
    """Combines rows at the placeholders of one plan."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def learn(self, outcome: Outcome) -> None:
        """Show the planner how far the last micro-batch was combined. If combining was of little use, the next
        micro-batches are not combined for a while."""
        if outcome.query is not None:
            self._strategy.learn(outcome.query.streamingQuery().lastExecution().executedPlan())


def install(spark: SparkSession, names: Sequence[str], *, combines: bool) -> Combiner | None:
    """Make the session's planner plan the placeholders of these functions, and combine rows there if it `combines`;
    return None if there are none."""
    if not names:
        return None
    strategy = planner_strategy(
        spark, "Combining", lambda _: (spark._jsparkSession.sessionState().planner().Aggregation(),)
    )
    for name in names:
        strategy.declare(name, *_declared[name], combines)
    return Combiner(strategy)
