"""Queries that keep their state in Spark's own operators, over a directory of files of events, one a micro-batch."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path

from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout

from recovery import FileSink, Flow, stateful

EVENTS = "key string, t timestamp, value long"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STORES = {
    "hdfs": {},
    "rocksdb": {"spark.sql.streaming.stateStore.providerClass": ROCKSDB},
    "changelog": {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
}
BUSY = {
    # Snapshots and removals every moment, so that they happen under the feet of whoever takes the files.
    "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
    "spark.sql.streaming.minBatchesToRetain": "3",
}


def write_events(directory: Path, seed: int, files: int, rows: int = 60) -> None:
    """Files of events that move on by 10 seconds each; some are late, and some too late. Those that exist stay."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        file = directory / f"{number:05}.csv"
        if file.exists():
            continue
        generator = random.Random(f"{seed} {number}")
        lines = []
        for _ in range(rows):
            second = 10 * number + generator.uniform(0, 12)
            if generator.random() < 0.15:
                second -= generator.uniform(0, 60)
            lines.append(f"k{generator.randrange(12)},{max(0, int(second))},{generator.randrange(100)}\n")
        file.write_text("".join(lines))
        # The file source takes files in order of their time of change.
        os.utime(file, (1_700_000_000 + number,) * 2)


def events(spark, path, prefix=""):
    """The stream, with a watermark of ten seconds."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(path))
    parts = F.split("value", ",")
    return lines.select(
        parts[0].alias(f"{prefix}key"),
        F.timestamp_seconds(parts[1].cast("long")).alias(f"{prefix}t"),
        parts[2].cast("long").alias(f"{prefix}value"),
    ).withWatermark(f"{prefix}t", "10 seconds")


def tumbling(spark, path):
    windows = events(spark, path).groupBy(F.window("t", "20 seconds"), "key")
    return windows.agg(F.count("*").alias("n"), F.sum("value").alias("total"))


def sliding(spark, path):
    return events(spark, path).groupBy(F.window("t", "30 seconds", "10 seconds"), "key").count()


def sessions(spark, path):
    return events(spark, path).groupBy(F.session_window("t", "4 seconds"), "key").count()


def duplicates(spark, path):
    return events(spark, path).dropDuplicates(["key", "t"])


def duplicates_within_watermark(spark, path):
    return events(spark, path).dropDuplicatesWithinWatermark(["key"])


def join(spark, path):
    left, right = events(spark, path), events(spark, path, "other_")
    on = "key = other_key AND value = other_value AND other_t BETWEEN t AND t + INTERVAL 10 SECONDS"
    return left.join(right, F.expr(on), "leftOuter")


def chained(spark, path):
    unique = events(spark, path).dropDuplicatesWithinWatermark(["key", "value"])
    small = unique.groupBy(F.window("t", "10 seconds"), "key").agg(F.sum("value").alias("total"))
    return small.groupBy(F.window("window", "30 seconds")).agg(F.max("total").alias("highest"), F.count("*").alias("n"))


def ranking(spark, path):
    return (
        events(spark, path).groupBy("key").agg(F.sum("value").alias("total")).orderBy(F.desc("total"), "key").limit(5)
    )


def count_until_idle(key, frames, state):
    """applyInPandasWithState: count and sum of a key, put out when it was idle for ten seconds of event time."""
    import pandas as pd

    if state.hasTimedOut:
        count, total = state.get
        state.remove()
        yield pd.DataFrame({"key": [key[0]], "n": [count], "total": [total]})
        return
    count, total = state.get if state.exists else (0, 0)
    latest = state.getCurrentWatermarkMs()
    for frame in frames:
        count += len(frame)
        total += int(frame["value"].sum())
        latest = max(latest, int(frame["t"].max().timestamp() * 1000))
    state.update((count, total))
    state.setTimeoutTimestamp(latest + 10_000)


def pandas_state(spark, path):
    """One key an event in five, so that keys fall idle."""
    keyed = events(spark, path).withColumn("key", F.expr("concat(key, '-', cast(unix_seconds(t) / 7 AS int))"))
    return keyed.groupBy("key").applyInPandasWithState(
        count_until_idle, "key string, n long, total long", "n long, total long", "append",
        GroupStateTimeout.EventTimeTimeout,
    )  # fmt: skip


class Timers(StatefulProcessor):
    """Sums values per key, and tells the sum when a timer of event time expires."""

    def init(self, handle):
        self._handle = handle
        self._total = handle.getValueState("total", "total long")
        self._values = handle.getListState("values", "value long")

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - Spark calls it so
        import pandas as pd

        total = self._total.get()[0] if self._total.exists() else 0
        latest = timerValues.getCurrentWatermarkInMs()
        for frame in rows:
            for value in frame["value"]:
                self._values.appendValue((int(value),))
            total += int(frame["value"].sum())
            latest = max(latest, int(frame["t"].max().timestamp() * 1000))
        self._total.update((total,))
        if not list(self._handle.listTimers()):
            self._handle.registerTimer(latest + 15_000)
        return iter([pd.DataFrame({"key": [key[0]], "total": [total], "told": ["input"]})])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):  # noqa: N802, N803 - Spark calls it so
        import pandas as pd

        held = sum(value for (value,) in self._values.get())
        total = self._total.get()[0]
        self._total.clear()
        self._values.clear()
        yield pd.DataFrame({"key": [key[0]], "total": [total], "told": [f"timer {held}"]})

    def close(self):
        pass


def timers(spark, path):
    return events(spark, path).groupBy("key").transformWithStateInPandas(
        Timers(), "key string, total long, told string", "append", "EventTime"
    )  # fmt: skip


TTL_MS = 30_000


class Remembered(StatefulProcessor):
    """Counts the rows of a key, until none has come for TTL_MS of processing time."""

    def init(self, handle):
        self._count = handle.getValueState("count", "n long", ttlDurationMs=TTL_MS)

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - Spark calls it so
        import pandas as pd

        count = (self._count.get()[0] if self._count.exists() else 0) + sum(map(len, rows))
        self._count.update((count,))
        at_ms = timerValues.getCurrentProcessingTimeInMs()
        return iter([pd.DataFrame({"key": [key[0]], "n": [count], "at_ms": [at_ms]})])

    def close(self):
        pass


def remembered(spark, path):
    return events(spark, path).groupBy("key").transformWithStateInPandas(
        Remembered(), "key string, n long, at_ms long", "update", "ProcessingTime"
    )  # fmt: skip


def add_up(key, rows, state):
    count, total = state.get if state.exists else (0, 0)
    count += len(rows)
    total += sum(row.value for row in rows)
    state.update([count, total])
    yield key, count, total


def unique(spark, path):
    return events(spark, path).dropDuplicatesWithinWatermark(["key", "value"]).select("key", "value")


def both(spark, path):
    """An operator of Spark's and a recovery step: one cut."""
    return unique(spark, path).transform(
        stateful("totals", key="key", update=add_up, output="key string, n long, total long")
    )


def added_up(batches: dict[int, Counter]) -> Counter:
    """What `both` gives for the micro-batches of `unique`, as JSON: a plain loop in the step's place."""
    totals: dict[str, list[int]] = {}
    told: Counter = Counter()
    for _, rows in sorted(batches.items()):
        values = [json.loads(row) for row in rows.elements()]
        for row in values:
            count, total = totals.get(row["key"], (0, 0))
            totals[row["key"]] = [count + 1, total + row["value"]]
        for key in {row["key"] for row in values}:
            count, total = totals[key]
            told[f'{{"key":"{key}","n":{count},"total":{total}}}'] += 1
    return told


QUERIES = {
    "tumbling": (tumbling, "append", "hdfs"),
    "sliding": (sliding, "update", "changelog"),
    "sessions": (sessions, "append", "hdfs"),
    "duplicates": (duplicates, "append", "rocksdb"),
    "duplicates-within-watermark": (duplicates_within_watermark, "append", "changelog"),
    "join": (join, "append", "hdfs"),
    "chained": (chained, "append", "hdfs"),
    "ranking": (ranking, "complete", "hdfs"),
    "applyInPandasWithState": (pandas_state, "append", "hdfs"),
    "transformWithState-timers": (timers, "append", "changelog"),
    "both": (both, "append", "changelog"),
}
"""Name to builder, output mode and state store."""


def settings(name: str) -> dict[str, str]:
    """Spark's settings for a query."""
    return {**STORES[QUERIES[name][2]], **BUSY, "spark.sql.shuffle.partitions": "2"}


class SlowSink(FileSink):
    """Takes its time after a micro-batch is written, and before Spark takes it as done."""

    pause_s = 0.0

    def write(self, batch, batch_id, *rest):
        super().write(batch, batch_id, *rest)
        time.sleep(self.pause_s)


def make(name, path, output, pause_s=0.0):
    """The flow of a query, with its output in files."""
    build, mode, _ = QUERIES[name]
    sink = SlowSink(output, "json")
    sink.pause_s = pause_s
    return Flow(name, lambda spark: build(spark, path).select(F.to_json(F.struct("*")).alias("row")), sink, mode)


def rows_of(output: Path) -> Counter:
    """How often each record is in the files of a FileSink."""
    lines = (line for file in Path(output).glob("*.json") for line in file.read_text().splitlines())
    return Counter(json.loads(line)["row"] for line in lines)
