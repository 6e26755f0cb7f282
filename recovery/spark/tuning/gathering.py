"""Gather a small micro-batch's rows in one task, instead of exchanging them between as many tasks as partitions.

For a micro-batch of a hundred rows, the exchange takes longer than the rest of the work: a stage of its own, a shuffle,
and a second stage whose tasks wait for it. So if the last micro-batch was small, a strategy (Gathering.java) makes the
planner put one task in the exchange's place, which does the work of all partitions. The task hashes the keys, too:
Spark takes longer to plan that and to generate code for it than the hashing takes. Sizes that sources report are
trusted, and a micro-batch that turns out large is processed all the same. A run's first micro-batch is gathered if all
of its sources report that there is little to read. Between such tasks their process keeps the deltas open: see
`recovery.storage.deltas.open_deltas`.

What gathering buys: of a micro-batch of a hundred rows, 59 ms become 43 with two partitions, and 67 become 48 with
sixteen. Gathering loses from ten thousand rows on: 92 ms become 98 with two partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from recovery.spark.jvm.java_sources import planner_strategy
from recovery.spark.jvm.session import settings_in
from recovery.spark.steps.definition import EVERYWHERE, HASH_BITS, ROUTE, UNHASHED
from recovery.spark.tuning.back_off import BackOff
from recovery.spark.tuning.outcome import Outcome

FEW_ROWS = 2000
LONG_S = 0.25
PAUSE = 20
"""Number of micro-batches that are exchanged after a gathered one that took long, and longer than exchanged ones do;
twice as many after the next such micro-batch."""
MOST_PAUSE = 1280
MOST_BYTES = 1 << 20
"""Most bytes to read, as far as sources report them, behind a small micro-batch."""
FIRST_BYTES = 64 << 10
"""Most bytes to read in a run's first micro-batch, by the reports of all its sources."""
_UNKNOWN_BYTES = 1 << 62


class Gathering:
    """Decides which micro-batches of one run are gathered."""

    def __init__(
        self, spark: SparkSession, hash_columns: Sequence[str], *, allowed: bool = True, first: bool = True
    ) -> None:
        """hash_columns: the columns by which the steps' rows are spread. allowed: whether to gather at all. first:
        whether to gather the first micro-batch."""
        self._strategy = planner_strategy(spark, "Gathering", _routes)
        self._hash_columns = hash_columns
        # Simultaneous attempts of one task would read their input twice, and may find different keys in it.
        self._allowed = allowed and settings_in(spark.sparkContext).get("spark.speculation", "false").lower() != "true"
        self._back_off = BackOff(PAUSE, MOST_PAUSE)
        self._exchanged_s: float | None = None
        self._few = False
        """Whether few rows are expected because the last micro-batch had few."""
        # An earlier run of the same frame may have made the planner expect something else.
        self._tell((FIRST_BYTES, _UNKNOWN_BYTES) if self._allowed and first else None)

    def learn(self, outcome: Outcome) -> None:
        """Tell the planner what to expect of the next micro-batch."""
        seconds = outcome.seconds
        few = max(outcome.rows, outcome.keys) <= FEW_ROWS
        if self._back_off.count():
            if few:
                self._exchanged_s = seconds if self._exchanged_s is None else min(self._exchanged_s, seconds)
        elif few and self._few and seconds <= LONG_S:
            self._back_off.reset()
        elif few and self._few and (self._exchanged_s is None or seconds > self._exchanged_s):
            # Something else than the single task may have made it long: the pause will show.
            self._back_off.pause()
            self._exchanged_s = None
        self._few = few and self._allowed and not self._back_off.is_paused
        told = (MOST_BYTES, 0) if self._few else None
        if told != self._told:
            self._tell(told)

    def _tell(self, limits: tuple[int, int] | None) -> None:
        """Tell the planner to gather rows if sources have at most so many bytes to read, where one that reports none
        counts as the second number; None: to exchange them."""
        for each in self._hash_columns:
            if limits is None:
                self._strategy.exchange(each)
            else:
                self._strategy.gather(each, *limits)
        self._told = limits


def _routes(jvm: Any) -> tuple[Any, ...]:
    return ROUTE, jvm.Long(EVERYWHERE << HASH_BITS), jvm.Long(UNHASHED << HASH_BITS)
