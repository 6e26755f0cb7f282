"""Count the words of growing text files: one stateful step, resumed where it stopped.

    mkdir -p logs && echo 'to be or not to be' > logs/hamlet.txt
    python -m recovery init db/ 2
    python -m recovery run examples/word_count.py -r db/ -s 10s
    echo 'that is the question' >> logs/hamlet.txt
    python -m recovery run examples/word_count.py -r db/ -s 10s

The second run reads the new line only, and goes on from the counts of the first. To read other files, name
them: "examples/word_count.py:make('/var/log/app/*.log')". Add `--trigger 1s` to go on for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery import Flow, GroupState, stateful


def make(path: str = "logs/") -> Flow:
    """The flow over the files that `path` names: a file, a directory or a glob."""

    def build(spark: SparkSession) -> DataFrame:
        lines = spark.readStream.format("appended").load(path)
        words = lines.select(F.explode(F.split(F.lower("value"), r"\W+")).alias("word")).where("word <> ''")
        return words.transform(stateful("count", key="word", update=count, output="word string, n long"))

    return Flow("wordcount", build, sink=show)


def count(word: str, rows: list[Any], state: GroupState) -> Iterator[tuple[str, int]]:
    """Called once per word and micro-batch, with the rows of that word."""
    n = (state.getOption or 0) + len(rows)
    state.update(n)
    yield word, n


def show(batch: DataFrame, batch_id: int) -> None:
    """An ordinary foreachBatch function: the words of this micro-batch that are most frequent by now."""
    print(f"micro-batch {batch_id}:")
    for row in batch.orderBy(F.desc("n"), "word").take(10):
        print(f"{row.n:8,}  {row.word}")


flow = make()
