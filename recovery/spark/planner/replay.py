"""Check that the sources of a flow can be read again from a position, as a run after a crash does.

Such a run gives a source the offsets of the last closed epoch. A source that has its rows in memory only, or that
removes what has been processed, has no rows for these offsets: the run fails, and so does every later run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from recovery.errors import UnsupportedPlanError
from recovery.spark.jvm.plan_nodes import PlanNode

_IN_MEMORY = {
    "TextSocketTable": "Input from a connection exists only in the memory of the process that read it.",
    "MemoryStreamTable": "The rows of a memory stream exist only in the memory of the process that added them.",
}
"""Spark's sources that cannot replay, by the class of their table, and why. A source may have several names."""
_REMEDY = (
    "Let another program write the input to files (format 'appended' reads growing ones) or to Kafka, and read that. "
    "To try the flow only, run it without a recovery directory."
)


def check_sources(spark: SparkSession, plan: PlanNode, keeps_position: bool) -> None:
    """Raise UnsupportedPlanError for a source of an analysed plan that cannot be read again. keeps_position: whether a
    later run continues where this one ends."""
    for node in plan.walk():
        if node.name == "StreamingRelation":
            _check_kept(node.handle)
        elif node.name == "StreamingRelationV2" and keeps_position:
            _check_replays(spark, node.handle)


def options_of(data_source: Any) -> dict[str, str]:
    """The options of a source of Spark's older API."""
    found, options = data_source.options().iterator(), {}
    while found.hasNext():
        option = found.next()
        options[option._1()] = option._2()
    return options


def _check_kept(node: Any) -> None:
    """Refuse sources that clean up: Spark lets them remove input after a micro-batch, before the epoch is closed."""
    for name, value in options_of(node.dataSource()).items():
        if name.lower() == "cleansource" and value.lower() != "off":
            raise UnsupportedPlanError(
                f"a file source removes or moves what it has read: cleanSource={value}",
                cause="Spark removes files after each micro-batch, which a run that was killed has to read again.",
                remedy="Leave it out, and remove files that are older than the epochs you want to go back to.",
            )


def _check_replays(spark: SparkSession, node: Any) -> None:
    kind, name = node.table().getClass().getSimpleName(), node.sourceName()
    if kind in _IN_MEMORY:
        raise UnsupportedPlanError(
            f"the source {name!r} cannot be read again from a position", cause=_IN_MEMORY[kind], remedy=_REMEDY
        )
    reader = _reader_without_replay(spark, name) if kind == "PythonTable" else None
    if reader is not None:
        raise UnsupportedPlanError(
            f"the source {name!r} cannot be read again from a position: its reader {reader} has no readBetweenOffsets",
            cause="Spark calls it for a micro-batch whose offsets it has logged, as after a crash.",
            remedy=f"Implement {reader}.readBetweenOffsets(start, end), which gives the same rows each time.",
        )


def _reader_without_replay(spark: SparkSession, name: str) -> str | None:
    """The simple reader of a registered Python source that cannot replay; None if there is no such reader, or none can
    be seen. Looks at the classes that the source's own code names, and calls none of that code."""
    try:
        sources = spark._jsparkSession.sessionState().dataSourceManager()
        command = sources.lookupDataSource(name).dataSourceCls().command()
        source = cloudpickle.loads(bytes(command.toArray(spark._jvm.scala.reflect.ClassTag.Byte())))
    except Exception:
        # Sources that Spark finds by name only, such as this package's, and those too large to be sent like this.
        return None
    if not _is_kind(source, DataSource) or source.streamReader is not DataSource.streamReader:
        return None
    readers = (each for each in _named(source.simpleStreamReader) if _is_kind(each, SimpleDataSourceStreamReader))
    reader = next(readers, None)
    if reader is None or reader.readBetweenOffsets is not SimpleDataSourceStreamReader.readBetweenOffsets:
        return None
    return str(reader.__name__)


def _is_kind(value: Any, kind: type) -> bool:
    return isinstance(value, type) and issubclass(value, kind)


def _named(function: Any) -> Iterator[Any]:
    """The values that a function's code names: variables of its module and of functions around it."""
    if isinstance(function, FunctionType):
        code: CodeType = function.__code__
        yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
        for cell in function.__closure__ or ():
            # The cell may still be empty.
            with contextlib.suppress(ValueError):
                yield cell.cell_contents
