"""A windowed query as plain Spark runs it, without this project: run as a script, or built by a test's own flow.

    python windows.py INPUT CHECKPOINT OUTPUT [--store hdfs|rocksdb] [--kill BATCH] [--query windows|variables]

Writes the rows of micro-batch b to OUTPUT/<b>.json. --kill: dies within this micro-batch, which Spark has logged as
begun by then.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

STORES = {
    "hdfs": {},
    "rocksdb": {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
}


def write_events(directory: Path, first: int, count: int) -> None:
    """Files of events, key and second and value; each moves on by 20 seconds, and some events are late."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        generator = random.Random(number)
        lines = []
        for _ in range(40):
            second = 20 * number + generator.randrange(25) - (40 if generator.random() < 0.1 else 0)
            lines.append(f"k{generator.randrange(6)},{max(0, second)},{generator.randrange(100)}\n")
        file = directory / f"{number:04}.csv"
        file.write_text("".join(lines))
        # The file source takes files in order of their time of change.
        os.utime(file, (1_700_000_000 + number,) * 2)


def build(spark, directory):
    """Count and sum of distinct events per key and window of 30 seconds; two stateful operators."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).schema("key string, second long, value long")
    events = lines.csv(str(directory)).withColumn("at", F.timestamp_seconds("second"))
    distinct = events.withWatermark("at", "20 seconds").dropDuplicatesWithinWatermark(["key", "value"])
    return distinct.groupBy(F.window("at", "30 seconds"), "key").agg(F.count("*").alias("n"), F.sum("value").alias("v"))


def build_join(spark, directory):
    """Events of one key that came within ten seconds of each other."""

    def events(side):
        lines = spark.readStream.option("maxFilesPerTrigger", 1).schema("key string, second long, value long")
        named = (
            lines.csv(str(directory)).withColumn("at", F.timestamp_seconds("second")).withWatermark("at", "20 seconds")
        )
        return named.select(*(F.col(name).alias(f"{side}_{name}") for name in ("key", "at", "value")))

    near = "left_at BETWEEN right_at - INTERVAL 10 SECONDS AND right_at"
    return events("left").join(events("right"), F.expr(f"left_key = right_key AND {near}"))


class Counter(StatefulProcessor):
    """Counts rows, and keeps their values in a list."""

    def init(self, handle):
        self._count = handle.getValueState("count", "n long")
        self._values = handle.getListState("values", "value long")

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - Spark's names
        count = self._count.get()[0] if self._count.exists() else 0
        for frame in rows:
            count += len(frame)
            self._values.appendList([(int(value),) for value in frame["value"]])
        self._count.update((count,))
        yield pd.DataFrame({"key": [key[0]], "n": [count]})

    def close(self):
        """Nothing is held."""


def build_variables(spark, directory):
    """The rows of each key so far, by an operator with state variables."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).schema("key string, second long, value long")
    counted = lines.csv(str(directory)).groupBy("key")
    return counted.transformWithStateInPandas(Counter(), "key string, n long", "append", "none")


def writer(output: Path, kill: int | None = None):
    """A foreachBatch function that writes a file of sorted rows for each micro-batch."""
    output.mkdir(parents=True, exist_ok=True)

    def write(batch, batch_id):
        rows = sorted([str(value) for value in row] for row in batch.collect())
        if batch_id == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        (output / f"{batch_id}.json").write_text(json.dumps(rows))

    return write


def outputs(output: Path) -> dict[int, list]:
    """What the micro-batches gave, by their number."""
    return {int(file.stem): json.loads(file.read_text()) for file in output.glob("*.json")}


def main() -> None:
    """The job itself."""
    import argparse

    from pyspark.sql import SparkSession

    # This project is not there.
    sys.modules["recovery"] = None
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs=3, type=Path)
    parser.add_argument("--store", default="hdfs")
    parser.add_argument("--kill", type=int)
    parser.add_argument("--query", default="windows")
    arguments = parser.parse_args()
    source, checkpoint, output = arguments.paths
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "localhost",
        **STORES[arguments.store],
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    query = build if arguments.query == "windows" else build_variables
    stream = query(spark, source).writeStream.foreachBatch(writer(output, arguments.kill))
    stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
