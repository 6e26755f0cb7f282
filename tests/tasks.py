"""Driving the tasks of a vectorised step on real partitions, without Spark: what a micro-batch does, call by call."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from recovery.keys import encode_key, partition_of
from recovery.spark.arrow_worker import ArrowStepTask
from recovery.spark.step import BATCH, KEY, StepDefinition
from tests.stores import STEP, Driver, paths_of, query


def definition(
    update: Any, state_schema: str | T.StructType, output: str | T.StructType, rows: pa.Table, key: Iterable[str]
) -> StepDefinition:
    """A step over tables like `rows`, keyed by the columns named `key`."""
    names = tuple(key)
    kinds = tuple(from_arrow_type(rows.schema.field(name).type) for name in names)
    return StepDefinition(
        step_id=STEP,
        token="token",
        update=update,
        state_type=None,
        state_schema=_parsed(state_schema),
        timeouts=False,
        needs_time=False,
        columns=tuple(rows.column_names),
        key_columns=tuple(rows.column_names.index(name) for name in names),
        key_names=names,
        key_types=kinds,
        key_in_place=kinds == (T.StringType(),),
        sorted_by_spark=False,
        output=_parsed(output),
        time_zone="UTC",
    )


def run_batch(driver: Driver, step: StepDefinition, batch: int, rows: pa.Table, *, piece: int = 1000) -> list[dict]:
    """Run the tasks of one micro-batch over `rows`; returns the output, as Spark would have it."""
    parts = [rows.column(position).to_pylist() for position in step.key_columns]
    texts = [state_key(values) for values in zip(*parts, strict=True)]
    if not step.key_in_place:
        rows = rows.append_column(KEY, pa.array(texts, pa.string()))
    output: list[dict] = []
    for partition in range(driver.count):
        mine = [i for i, text in enumerate(texts) if partition_of(text, driver.count) == partition]
        if not mine:
            continue
        chosen = rows.take(mine).append_column(BATCH, pa.array([partition] * len(mine), pa.int64()))
        store = driver.task()
        try:
            task = ArrowStepTask(step, store, driver.count, batch)
            for found in task.run(iter(chosen.to_batches(max_chunksize=piece))):
                output += found.to_pylist()
        finally:
            store.release()
    return output


def state_key(values: tuple) -> str:
    """The text of a key of strings, integers or NULL."""
    texts = [None if value is None else str(value) for value in values]
    return encode_key(texts[0]) if len(texts) == 1 else json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


def stored(driver: Driver) -> dict[str, Any]:
    """The states of the step in the closed epochs."""
    found: dict[str, Any] = {}
    for path in paths_of(driver.directory):
        rows = query(path, "SELECT state_key, ser_change FROM snaps WHERE step_id = ?", (STEP,))
        found.update((key, msgspec.json.decode(text)) for key, text in rows)
    return found


def _parsed(schema: str | T.StructType) -> T.StructType:
    """Columns like "n bigint, tags array<string>", without asking a JVM."""
    if isinstance(schema, T.StructType):
        return schema
    kinds = {
        "string": T.StringType(), "bigint": T.LongType(), "int": T.IntegerType(), "double": T.DoubleType(),
        "boolean": T.BooleanType(), "date": T.DateType(), "timestamp": T.TimestampType(),
        "array<string>": T.ArrayType(T.StringType()), "array<bigint>": T.ArrayType(T.LongType()),
    }  # fmt: skip
    fields = [each.split() for each in schema.split(",")]
    return T.StructType([T.StructField(name, kinds[kind]) for name, kind in fields])
