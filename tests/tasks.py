"""Driving the tasks of a vectorised step on real partitions, without Spark: what a micro-batch does, call by call."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from recovery.spark.steps.definition import HASH_BITS, KEY, ROUTE, UNHASHED, StepDefinition
from recovery.spark.tasks.arrow_task import ArrowStepTask
from recovery.spark.tasks.run_tasks import run_tasks
from recovery.values.keys import encode_key
from tests.stores import STEP, Driver


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


def run_batch(
    driver: Driver,
    step: StepDefinition,
    batch: int,
    rows: pa.Table,
    *,
    piece: int = 1000,
    gathered: int | None = None,
    tasks: int | None = None,
) -> list[dict]:
    """Run the tasks of one micro-batch over `rows`, as many as there are partitions or `tasks`, or the one that has all
    of them where they are `gathered`: EVERYWHERE or UNHASHED. Returns the output, as Spark would have it."""
    tasks = tasks or driver.count
    parts = [rows.column(position).to_pylist() for position in step.key_columns]
    texts = [state_key(values) for values in zip(*parts, strict=True)]
    if not step.key_in_place:
        rows = rows.append_column(KEY, pa.array(texts, pa.string()))
    hashes = [crc32(text.encode()) for text in texts]
    output: list[dict] = []
    connect = lambda keep: (driver.task(), driver.count)  # noqa: E731
    for place in range(tasks) if gathered is None else [gathered]:
        mine = [i for i, number in enumerate(hashes) if place < 0 or number % driver.count % tasks == place]
        places = pa.array([place << HASH_BITS | hashes[i] * (place != UNHASHED) for i in mine], pa.int64())
        batches = rows.take(pa.array(mine, pa.int64())).append_column(ROUTE, places).to_batches(max_chunksize=piece)
        for found in run_tasks(step, iter(batches), connect, batch, ArrowStepTask, tasks):
            output += found.to_pylist()
    return output


def state_key(values: tuple) -> str:
    """The text of a key of strings, integers or NULL."""
    texts = [None if value is None else str(value) for value in values]
    return encode_key(texts[0]) if len(texts) == 1 else json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


def stored(driver: Driver) -> dict[str, Any]:
    """The states of the step in the closed epochs."""
    return {key: msgspec.json.decode(text) for key, text in driver.store.driver_values(STEP).items()}


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
