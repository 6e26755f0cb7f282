"""What Spark reports of its own operators after a micro-batch: the rows in their state, and their work.

Spark's progress lists the operators in the order in which it finds them in the executed plan, without their numbers.
Order and numbers do not change while a query runs, so its plan is walked once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from recovery.planning.measures import OperatorWork
from recovery.spark.jvm.plan_nodes import PlanNode
from recovery.spark.jvm.versions import STATE_WRITER

_UNTRACKED = re.compile(r"spark\.sql\.streaming\.stateStore\.rocksdb\.trackTotalNumberOfRows", re.IGNORECASE)
_STORES_OF_A_JOIN = 4


@dataclass(frozen=True, slots=True)
class _Operators:
    """The operators of a query, in Spark's order. rocksdb_counts: whether RocksDB is set to count rows; else it reports
    0."""

    numbers: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    rocksdb_counts: bool = False


class OperatorReports:
    """The rows and the work of the operators of one query, by operator number. Finds the numbers on the first call, and
    leaves out what cannot be known."""

    def __init__(self) -> None:
        self._known: _Operators | None = None

    def of(self, query: Any, progress: Mapping[str, Any]) -> tuple[dict[int, int], dict[int, OperatorWork] | None]:
        """The rows of each operator, and the work of all (None: unknown), from the progress of a micro-batch.
        query: the JVM's handle."""
        reported = progress["stateOperators"]
        if not reported:
            return {}, {}
        if self._known is None:
            self._known = _operators(query)
        known = self._known
        if tuple(each["operatorName"] for each in reported) != known.names:
            return {}, None
        once = {number: each for number, each in zip(known.numbers, reported, strict=True) if _ran_once(each)}
        rows = {
            number: each["numRowsTotal"]
            for number, each in once.items()
            if known.rocksdb_counts or not _is_rocksdb(each)
        }
        return rows, {number: _work(each) for number, each in once.items()} if len(once) == len(reported) else None


def _operators(query: Any) -> _Operators:
    try:
        execution = query.streamingQuery().lastExecution()
        found = [(node.stateInfo().get().operatorId(), node.shortName()) for node in _writers(execution.executedPlan())]
        return _Operators(
            tuple(number for number, _ in found), tuple(name for _, name in found), _rocksdb_counts(execution)
        )
    except (Py4JError, PySparkException, TypeError):
        return _Operators()


def _writers(plan: Any) -> Iterator[Any]:
    gateway = SparkContext._gateway
    nodes = (node.handle for node in PlanNode.read(plan).walk())
    return (node for node in nodes if is_instance_of(gateway, node, STATE_WRITER))


def _rocksdb_counts(execution: Any) -> bool:
    # Spark ignores the case of the setting's name.
    settings = execution.sparkSession().conf().getAllAsJava()
    given = _UNTRACKED.findall(settings.keySet().toString())
    return all(settings.get(key) == "true" for key in given)


def _work(reported: Mapping[str, Any]) -> OperatorWork:
    return OperatorWork(
        updated=reported["numRowsUpdated"],
        update_s=reported["allUpdatesTimeMs"] / 1000,
        removed=reported["numRowsRemoved"],
        remove_s=reported["allRemovalsTimeMs"] / 1000,
        memory_bytes=reported["memoryUsedBytes"],
    )


def _ran_once(reported: Mapping[str, Any]) -> bool:
    """Whether every task ran once. Spark adds up what tasks count, so a task that ran again counts twice, for instance
    because the plan is sampled before it is sorted."""
    stores, partitions = reported["numStateStoreInstances"], reported["numShufflePartitions"]
    expected = (1, _STORES_OF_A_JOIN) if reported["operatorName"] == "symmetricHashJoin" else (1,)
    return any(stores == partitions * each for each in expected)


def _is_rocksdb(reported: Mapping[str, Any]) -> bool:
    return any(name.startswith("rocksdb") for name in reported.get("customMetrics", {}))
