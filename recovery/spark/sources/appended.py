"""The Spark format `appended`: growing text files as a streaming source.

    lines = spark.readStream.format("appended").load("logs/")      # value string, file string, offset bigint

This module adapts `recovery.appended`, which does all the work, to Spark's data source API.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from recovery.appended.content import Shape, read_task
from recovery.appended.files import LocalFiles
from recovery.appended.options import COLUMNS, Options, parse_options
from recovery.appended.plan import Slice
from recovery.appended.planner import Planner
from recovery.appended.reach import TaskFiles
from recovery.errors import ConfigurationError
from recovery.spark.jvm.startup.sitecustomize import end_with_parent, serves_a_jvm
from recovery.spark.jvm.stream_readers import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
    adapted,
)
from recovery.spark.jvm.versions import to_arrow_schema


class AppendedDataSource(DataSource):
    """Lines of growing text files: the line's `value`, its `file`, and the byte `offset` where it begins."""

    @classmethod
    def name(cls) -> str:
        return "appended"

    def schema(self) -> str:
        parse_options(self.options)
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return adapted(AppendedStreamReader(parse_options(self.options), schema), self.name())


class LinesPartition(InputPartition):
    """The slices of one task."""

    def __init__(self, slices: tuple[Slice, ...]) -> None:
        super().__init__(slices)


class AppendedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in one process beside the driver, and reads in the tasks; Spark sends only options and schema to them."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._kept_planner: Planner | None = None

    @property
    def _planner(self) -> Planner:
        if self._kept_planner is None:
            # In a session that `recovery` did not create, the planning process does not do this by itself.
            if serves_a_jvm(sys.orig_argv):
                end_with_parent()
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            self._kept_planner = Planner(self._options, LocalFiles(), cores)
        return self._kept_planner

    def initialOffset(self) -> dict[str, Any]:
        return self._planner.initial()

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.fix_end()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._planner.latest(start, limit.max_bytes if isinstance(limit, ReadMaxBytes) else None)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        return [LinesPartition(slices) for slices in self._planner.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        shape = Shape(to_arrow_schema(self._schema, "UTC"), self._options.encoding_errors)
        with TaskFiles(LocalFiles(), shared=self._options.shared_files == "true") as files:
            yield from read_task(partition.value, files, shape)


def check_schema(schema: StructType) -> None:
    """Check that the schema has one or more of the source's columns, with their types. Raises ConfigurationError."""
    asked = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    wrong = [f"{name} {kind}" for name, kind in asked if COLUMNS.get(name) != kind]
    if wrong or not asked or len(set(asked)) < len(asked):
        raise ConfigurationError(
            f"The appended format cannot give the schema {schema.simpleString()}.",
            cause=f"The format has no {', '.join(wrong)}." if wrong else "",
            remedy="Ask for one or more of: " + ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()),
        )
