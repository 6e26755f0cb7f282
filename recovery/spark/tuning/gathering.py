"""Gathering a small micro-batch's rows in one task, instead of exchanging them between as many as there are partitions.

Of a micro-batch of a hundred rows, the exchange takes longer than all that is done with them: a stage of its own, a
shuffle, and a second stage whose tasks wait for it. So where the last micro-batch was small, a strategy of ours has the
planner put one task in the exchange's place (Gathering.java), and that does the work of all partitions. It hashes the
keys, too: planning that and generating code for it takes Spark longer than the hashing. What a source tells of its size
is believed, and a micro-batch that turns out large is done all the same. Between such tasks their process keeps the
deltas open: see `recovery.storage.deltas.open_deltas`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from recovery.spark.jvm.java_sources import planner_strategy
from recovery.spark.steps.definition import EVERYWHERE, HASH_BITS, PLACE, UNHASHED

FEW_ROWS = 2000
LONG_S = 0.25
PAUSE = 20
"""So many micro-batches are exchanged after a gathered one that took long, and longer than exchanged ones do; twice as
many after the next such one."""
MOST_PAUSE = 1280


class Gathering:
    """How the micro-batches of one run are planned."""

    def __init__(self, spark: SparkSession, hash_columns: Sequence[str]) -> None:
        """`hash_columns` are those by which the steps' rows are spread."""
        self._strategy = planner_strategy(spark, "Gathering", _places)
        self._hash_columns = hash_columns
        # Attempts of one task at the same moment would read their input twice, and may find different keys in it.
        self._allowed = spark.sparkContext.getConf().get("spark.speculation", "false").lower() != "true"
        self._pause = 0
        self._next_pause = PAUSE
        self._exchanged_s: float | None = None
        self._expect(False)

    def learn(self, rows: int, seconds: float) -> None:
        """A micro-batch had so many rows, or keys, and took so long: tell the planner what to expect of the next."""
        few = rows <= FEW_ROWS
        if self._pause:
            self._pause -= 1
            if few:
                self._exchanged_s = seconds if self._exchanged_s is None else min(self._exchanged_s, seconds)
        elif few and self._few and seconds <= LONG_S:
            self._next_pause = PAUSE
        elif few and self._few and (self._exchanged_s is None or seconds > self._exchanged_s):
            # It may have been long for another reason than the one task: the pause will show.
            self._pause, self._exchanged_s = self._next_pause, None
            self._next_pause = min(2 * self._next_pause, MOST_PAUSE)
        few = few and self._allowed and not self._pause
        if few != self._few:
            self._expect(few)

    def _expect(self, few: bool) -> None:
        for each in self._hash_columns:
            self._strategy.expect(each, few)
        self._few = few


def _places(jvm: Any) -> tuple[Any, ...]:
    return PLACE, jvm.Long(EVERYWHERE << HASH_BITS), jvm.Long(UNHASHED << HASH_BITS)
