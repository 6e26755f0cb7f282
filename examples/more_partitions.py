"""Count words on two partitions, go on with five, and go back behind the change. The output has each row once.

    mkdir -p logs && echo 'to be or not to be' > logs/hamlet.txt
    python -m recovery init db/ 2
    python -m recovery run examples/more_partitions.py -r db/ -b 1h
    python -m recovery repartition --in-place db/ 5
    echo 'that is the question' >> logs/hamlet.txt
    python -m recovery run examples/more_partitions.py -r db/ -b 1h
    python -m recovery run examples/more_partitions.py -r db/ -b 1h --resume-after 1
    python -m recovery repartition --drop-old db/

The third run goes back to the epoch that two partitions had closed, and reads the second line again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery import FileSink, Flow, GroupState, stateful


def build(spark: SparkSession) -> DataFrame:
    """The words of the files in logs/."""
    lines = spark.readStream.format("appended").load("logs/")
    words = lines.select(F.explode(F.split(F.lower("value"), r"\W+")).alias("word")).where("word <> ''")
    return words.transform(stateful("count", key="word", update=count, output="word string, n long"))


def count(word: str, rows: list[Any], state: GroupState) -> Iterator[tuple[str, int]]:
    """Called once per word and micro-batch, with the rows of that word."""
    n = (state.getOption or 0) + len(rows)
    state.update(n)
    yield word, n


flow = Flow("words", build, FileSink("out", "json"))
