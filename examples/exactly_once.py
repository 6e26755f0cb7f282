"""Output that appears exactly once: in Parquet files, and in a table of SQLite.

    mkdir -p logs && echo 'to be or not to be' > logs/hamlet.txt
    python -m recovery init db/ 2
    RECOVERY_CRASH_AT=publish.1.file python -m recovery run examples/exactly_once.py -r db/ || echo killed
    python -m recovery run examples/exactly_once.py -r db/
    python examples/exactly_once.py out/
    python -m recovery init db2/ 2
    python -m recovery run examples/exactly_once.py:table -r db2/
    python examples/exactly_once.py words.db

The first run is killed between two steps of publishing: its epoch is closed, and its files are not yet all there.
The second has nothing new to read; it publishes what the first one left.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Iterator
from typing import Any

import pandas
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery import FileSink, Flow, GroupState, UpsertSink, stateful


def build(spark: SparkSession) -> DataFrame:
    """Words, with how often each was seen so far."""
    lines = spark.readStream.format("appended").load("logs/")
    words = lines.select(F.explode(F.split(F.lower("value"), r"\W+")).alias("word")).where("word <> ''")
    return words.transform(stateful("count", key="word", update=count, output="word string, n long"))


def count(word: str, rows: list[Any], state: GroupState) -> Iterator[tuple[str, int]]:
    """Called once per word and micro-batch, with the rows of that word."""
    n = (state.getOption or 0) + len(rows)
    state.update(n)
    yield word, n


def connect() -> sqlite3.Connection:
    """A fresh connection to the database, with the table in it."""
    connection = sqlite3.connect("words.db")
    connection.execute("CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, n INTEGER)")
    return connection


flow = Flow("words in files", build, sink=FileSink("out/"))
table = Flow("words in a table", build, sink=UpsertSink(connect, "words", key=["word"]))


def show(where: str) -> None:
    """Print what is there, as any other program would read it."""
    if where.endswith(".db"):
        with contextlib.closing(connect()) as connection:
            found = pandas.read_sql("SELECT word, n FROM words", connection)
    else:
        found = pandas.read_parquet(where)
    print(found.sort_values(["word", "n"]).to_string(index=False, header=False))


if __name__ == "__main__":
    show(sys.argv[1])
