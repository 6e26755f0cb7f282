"""Readers of Python streaming sources, written as Spark 4.2 calls them, for versions before it, too.

Earlier versions ask a reader for its newest offset without the start of the micro-batch, and have no
Trigger.AvailableNow for it. In the plan of a flow, `send_starts` therefore puts a table of this package
(StartedTables.java) around that of the source. Spark gives this table the start and the trigger, and the table sends
both to the reader first. The reader is in a process that Spark has made for it, which passes on unread only what is
committed: so start and trigger are sent as a commit, which `adapted` makes a reader understand.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from recovery.errors import UnsupportedPlanError
from recovery.spark.jvm.java_sources import new
from recovery.spark.jvm.plan_nodes import PlanNode
from recovery.spark.jvm.versions import VERSION

if TYPE_CHECKING or VERSION >= (4, 2):
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )
else:

    class SupportsTriggerAvailableNow:
        """A reader that can fix the end of its input."""

    class ReadLimit:
        """How much a micro-batch reads."""

    @dataclass
    class ReadAllAvailable(ReadLimit):
        """A read limit without a limit: all input that is there."""

    @dataclass
    class ReadMaxBytes(ReadLimit):
        """A number of bytes."""

        max_bytes: int


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "SupportsTriggerAvailableNow", "adapted", "send_starts"]

_making = threading.Lock()
_made: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_START, _AVAILABLE_NOW = "recovery_start", "recovery_available_now"


def adapted(reader: Any, name: str) -> Any:
    """Return a reader of source `name` in the form that this version of Spark calls."""
    return reader if VERSION >= (4, 2) else _OlderReader(reader, name)


def send_starts(spark: SparkSession, plan: Any, names: tuple[str, ...]) -> Any:
    """Return the plan, in which the readers of the Python sources of these names get the starts of micro-batches."""
    if VERSION >= (4, 2):
        return plan
    top = PlanNode.read(plan)
    return _with_starts(spark, top, names, _tables(spark)) if any(_is_named(e, names) for e in top.walk()) else plan


def _tables(spark: SparkSession) -> Any:
    """Return the maker of tables, one for each JVM: Py4J remembers methods by the name of their class."""
    gateway = spark.sparkContext._gateway
    with _making:
        if gateway not in _made:
            _made[gateway] = new(spark, "StartedTables", room="jvm")
        return _made[gateway]


def _with_starts(spark: SparkSession, node: PlanNode, names: tuple[str, ...], tables: Any) -> Any:
    if _is_named(node, names):
        read = node.handle
        rest = (read.extraOptions(), read.output(), read.catalog(), read.identifier(), read.v1Relation())
        return read.copy(read.source(), read.sourceName(), tables.around(read.table()), *rest)
    return node.with_children(spark._jvm, [_with_starts(spark, each, names, tables) for each in node.children])


def _is_named(node: PlanNode, names: tuple[str, ...]) -> bool:
    """Whether a node reads such a source. A source that the JVM reads (tuning/AppendedLines.java) has the start
    anyway."""
    if node.name != "StreamingRelationV2" or node.handle.sourceName().lower() not in names:
        return False
    return bool(node.handle.table().getClass().getSimpleName() == "PythonTable")


class _OlderReader(DataSourceStreamReader):
    """A reader as versions before 4.2 call it."""

    def __init__(self, reader: Any, name: str) -> None:
        self._reader = reader
        self._name = name
        self._start: Mapping[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return dict(self._reader.initialOffset())

    def latestOffset(self) -> dict[str, Any]:
        if self._start is None:
            raise UnsupportedPlanError(
                f"the format {self._name!r} is read by a query that this package has not started",
                cause="Before version 4.2 Spark does not give a source written in Python the start of a micro-batch.",
                remedy="Start the query with recovery.start or recovery.run, or install PySpark 4.2 or newer.",
            )
        return dict(self._reader.latestOffset(self._start, self._reader.getDefaultReadLimit()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return list(self._reader.partitions(start, end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter(self._reader.read(partition))

    def commit(self, end: dict[str, Any]) -> None:
        if _START in end:
            self._start = end[_START]
        elif _AVAILABLE_NOW in end:
            self._reader.prepareForTriggerAvailableNow()
        else:
            self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()
