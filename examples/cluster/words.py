"""A word count whose lines Spark makes itself, so that no host needs a file: see three_hosts.py and
lost_owner.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from recovery import Flow, GroupState, stateful

WORDS = ("to", "be", "or", "not", "that", "is", "the", "question")
ROWS = 4000
"""Of a micro-batch, in which every word is equally often."""


def count(word: str, rows: list[Any], state: GroupState) -> Iterator[tuple[str, int]]:
    """Called once per word and micro-batch, with the rows of that word."""
    n = (state.getOption or 0) + len(rows)
    state.update(n)
    yield word, n


def build(spark: SparkSession) -> DataFrame:
    """The stream."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    numbers = source.option("numPartitions", 4).option("startTimestamp", 1_700_000_000_000).load()
    words = ", ".join(f"'{word}'" for word in WORDS)
    chosen = numbers.selectExpr(f"element_at(array({words}), cast(value % {len(WORDS)} AS int) + 1) AS word")
    return chosen.transform(stateful("count", key="word", update=count, output="word string, n long"))


def show(batch: DataFrame, batch_id: int) -> None:
    """Print the counts of a micro-batch."""
    print(f"micro-batch {batch_id}: {dict(sorted((row.word, row.n) for row in batch.collect()))}", flush=True)


flow = Flow("words", build, sink=show)
