"""Two snapshots compared: the state of one of Spark's own operators, read by Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from recovery.operational.ids import matches
from recovery.operational.steps.comparison import CHANGED, ONLY_A, ONLY_B, KeyDifference, StepCounts
from recovery.operators.choose import WantedState
from recovery.planning.comparing import ABSENT, Comparison
from recovery.spark.clusters import check_one_host
from recovery.spark.jvm.connect_sessions import check_classic
from recovery.spark.sources.operator_state import EQUAL, compared, frames_by_key, reading
from recovery.storage.snapshot import Snapshot


def compare_operator(
    spark: SparkSession,
    a: tuple[Path, Snapshot],
    b: tuple[Path, Snapshot],
    wanted: WantedState,
    comparison: Comparison,
    counts: StepCounts,
    pattern: str | None = None,
) -> Iterator[KeyDifference]:
    """Yield the keys of an operator that differ between two snapshots, by key, and add all of them to `counts`.

    Reads all keys of both snapshots. A key is the text of its only column, or a JSON object of its columns. A timer is
    compared by itself: a timer can only be on one side. Raises what `native_state` raises.
    """
    check_classic(spark)
    check_one_host(spark.sparkContext.master, "diff")
    equal = 0
    with reading(b[0], wanted):
        frame = compared(*frames_by_key(spark, a, b, wanted), wanted.timers)
        values = [F.when(F.col("change") != EQUAL, _as_json(name)).alias(name) for name in ("before", "after")]
        rows = frame.select("change", _as_json("key").alias("key"), *values).orderBy("key", "change", *values)
        for row in rows.toLocalIterator():
            key = _key_text(json.loads(row.key)["value"])
            if not matches(key, pattern):
                continue
            found = None
            if row.change != EQUAL:
                found = _difference(f"operator {wanted.operator}", key, row.change, row.before, row.after, comparison)
            if found is None:
                equal += 1
            else:
                counts.counts[found.what] += 1
                yield found
    counts.equal = equal


def _difference(
    step: str, key: str, change: str, before: str, after: str, comparison: Comparison
) -> KeyDifference | None:
    one, other = (json.loads(text)["value"] for text in (before, after))
    if change == "added":
        return KeyDifference(step, key, ONLY_B, ABSENT, other, (), (None, None))
    if change == "removed":
        return KeyDifference(step, key, ONLY_A, one, ABSENT, (), (None, None))
    differences = comparison.differences(one, other)
    return KeyDifference(step, key, CHANGED, one, other, tuple(differences), (None, None)) if differences else None


def _as_json(column: str) -> Any:
    return F.to_json(F.struct(F.col(column).alias("value")), {"ignoreNullFields": "false"})


def _key_text(key: Any) -> str:
    if isinstance(key, dict) and len(key) == 1 and isinstance(only := next(iter(key.values())), str):
        return only
    return json.dumps(key, ensure_ascii=False, separators=(",", ":"))
