"""Ticks: a source that wakes an idle stream when a timeout is due.

Spark runs no micro-batch without new input. A step that uses timeouts therefore reads this source beside its input:
the source yields one row per recovery partition when the earliest timeout has passed. The driver writes the time of
that timeout to a small file, the mailbox, which it replaces atomically.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from recovery.host.durable import replace
from recovery.spark.jvm.stream_readers import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow, adapted
from recovery.spark.steps.definition import TICK

FORMAT = "recovery_ticks"


def read_ticks(spark: SparkSession, mailbox: Path) -> DataFrame:
    """Return the streaming frame of tick rows: one integer column, the recovery partition to wake."""
    spark.dataSource.register(TickDataSource)
    return spark.readStream.format(FORMAT).option("mailbox", str(mailbox)).load()


def write_mailbox(mailbox: Path, due_ms: int | None, partition_count: int) -> None:
    """Tell the source when the next timeout is due (milliseconds since 1970; None: never). Atomic."""
    replace(mailbox, json.dumps({"due_ms": due_ms, "partitions": partition_count}).encode())


class TickDataSource(DataSource):
    """`format("recovery_ticks")`; internal to stateful steps."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return f"{TICK} int"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return adapted(TickReader(Path(self.options["mailbox"])), FORMAT)


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The offset is the time of the last tick in milliseconds; it only grows."""

    def __init__(self, mailbox: Path) -> None:
        self._mailbox = mailbox
        self._end: int | None = None
        self._bounded = False

    def initialOffset(self) -> dict[str, int]:
        return {"tick_ms": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._bounded = True
        self._end = self._due()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        now = self._end if self._bounded else self._due()
        if now is None:
            return start
        if self._bounded:
            self._end = None
        return {"tick_ms": max(now, start["tick_ms"] + 1)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(self._mail()["partitions"])] if end["tick_ms"] > start["tick_ms"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        numbers = pa.array(range(partition.value), pa.int32())
        yield pa.RecordBatch.from_arrays([numbers], names=[TICK])

    def _due(self) -> int | None:
        """Return the current time if a timeout is due, else None."""
        due_ms = self._mail()["due_ms"]
        now_ms = time.time_ns() // 1_000_000
        return now_ms if due_ms is not None and due_ms <= now_ms else None

    def _mail(self) -> dict[str, Any]:
        return dict(json.loads(self._mailbox.read_text()))
