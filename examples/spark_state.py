r"""Visits of a site by a `transformWithState` processor with timers, as Spark has them; its state is in the partitions.

    mkdir clicks
    printf 'ann,100\nann,110\nbob,190\nbob,1980\n' > clicks/1.csv
    python -m recovery init db/ 2
    python -m recovery run examples/spark_state.py -r db/ -s 1s
    printf 'bob,2100\nann,4100\n' > clicks/2.csv
    python -m recovery run examples/spark_state.py -r db/ -s 1s

A visit ends after half an hour (of event time) without a click. The first run tells nothing of bob, whose visit is
still open; the second one goes on with it. Spark needs the package protobuf for such processors (pip install protobuf).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from recovery import Flow

IDLE_MS = 1_800_000
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Visits(StatefulProcessor):
    """Counts the pages of a visit, and tells it when its timer expires."""

    def init(self, handle: Any) -> None:
        """The state of one user."""
        self._handle = handle
        self._pages = handle.getValueState("pages", "pages long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803 - Spark calls it so
        """Count, and put off the end."""
        pages = self._pages.get()[0] if self._pages.exists() else 0
        latest_ms = 0
        for frame in rows:
            pages += len(frame)
            latest_ms = max(latest_ms, int(frame["at"].max().timestamp() * 1000))
        self._pages.update((pages,))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(latest_ms + IDLE_MS)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        """The visit is over."""
        yield pd.DataFrame({"user": [key[0]], "pages": [self._pages.get()[0]]})
        self._pages.clear()

    def close(self) -> None:
        """Nothing to give back."""


def build(spark: SparkSession) -> DataFrame:
    """One file is one micro-batch."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    clicks = spark.readStream.schema("user string, second long").option("maxFilesPerTrigger", 1).csv("clicks/")
    timed = clicks.select("user", F.timestamp_seconds("second").alias("at")).withWatermark("at", "1 minute")
    return timed.groupBy("user").transformWithStateInPandas(
        Visits(), "user string, pages long", "append", timeMode="EventTime"
    )


def show(batch: DataFrame, batch_id: int) -> None:
    """The visits that are over."""
    for row in batch.collect():
        print(f"{row.user}: {row.pages} pages")


flow = Flow("visits", build, sink=show)
