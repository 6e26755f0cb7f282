"""How one key of Spark's own operators came to its value: what it was at every held epoch, read by Spark."""

from __future__ import annotations

import json
import tempfile
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery.base.addresses import local_path
from recovery.errors import StateNotFoundError
from recovery.host.storage_errors import storage_errors
from recovery.operational.steps.step_history import History, seen_history
from recovery.operators.choose import JOIN_SIDES, WantedState, choose_operator
from recovery.operators.epochs import EpochsCheckpoint, held_snapshots, write_epochs
from recovery.operators.held import held_operators
from recovery.planning.comparing import ABSENT
from recovery.spark.clusters import check_one_host
from recovery.spark.jvm.connect_sessions import check_classic
from recovery.spark.sources.operator_state import of_key, reader_of, reading, sound
from recovery.storage.snapshot import snapshot_at

FRAMES = 32
"""The most epochs that one job of Spark reads."""


def native_history(
    spark: SparkSession,
    directory: str | Path,
    key: str,
    *,
    operator: int = 0,
    store: str | None = None,
    variable: str | None = None,
    timers: bool = False,
    with_input: bool = False,
) -> History:
    """Return how a key of one stateful operator came to its value: its value at every held epoch at which that changed.

    key: a JSON object of the key's columns, or the text of a key of one text column. Of a side of a join, and of
    timers, the value is the list of all of the key's. with_input: add what each epoch read. All else is as in
    `native_state`, on one host.

    The directory is only read, so a run may be active. Raises StateNotFoundError for a key that has no value at any of
    them, and what `native_state` raises.
    """
    check_classic(spark)
    check_one_host(spark.sparkContext.master, "native_history")
    path, wanted = local_path(directory), WantedState(operator, store, variable, timers)
    at = snapshot_at(path)
    choose_operator(held_operators(at), wanted, at.epoch)
    values: dict[int, Any] = {}
    with storage_errors(Path(tempfile.gettempdir())), tempfile.TemporaryDirectory(prefix="recovery-native-") as scratch:
        for checkpoint in write_epochs(at, operator, Path(scratch)):
            with reading(path, wanted):
                by_batch = _values(spark, checkpoint, wanted, key)
            values |= {int(each.epoch): by_batch.get(each.cut[2], ABSENT) for each in checkpoint.snapshots}
    if all(value is ABSENT for value in values.values()):
        what = "timer" if timers else "state"
        raise StateNotFoundError(
            f"operator {operator} has no {what} of key {key!r:.200} in epochs {at.oldest} to {at.epoch}", path=path
        )
    seen = [(int(each.epoch), values.get(each.epoch, ABSENT)) for each in held_snapshots(at)]
    return seen_history(at, f"operator {operator}", key, seen, with_input=with_input)


def _values(spark: SparkSession, checkpoint: EpochsCheckpoint, wanted: WantedState, key: str) -> dict[int, Any]:
    """Return the value after each micro-batch after which the key has one."""
    several = wanted.timers or wanted.store in JOIN_SIDES
    reader = reader_of(spark, wanted, by_key=not several)
    found: dict[int, list[str]] = {}
    batches = sorted({each.cut[2] for each in checkpoint.snapshots})
    for first in range(0, len(batches), FRAMES):
        frames = (
            _value_at(sound(reader.option("batchId", batch).load(f"file:{checkpoint.path}"), wanted), key, batch)
            for batch in batches[first : first + FRAMES]
        )
        for row in reduce(DataFrame.union, frames).collect():
            found.setdefault(row.batch, []).append(row.value)
    every = {batch: [json.loads(text)["value"] for text in sorted(texts)] for batch, texts in found.items()}
    return every if several else {batch: each[0] if len(each) == 1 else each for batch, each in every.items()}


def _value_at(frame: DataFrame, key: str, batch: int) -> DataFrame:
    [value] = [name for name in frame.columns if name not in ("key", "partition_id")]
    text = F.to_json(F.struct(F.col(value).alias("value")), {"ignoreNullFields": "false"})
    return of_key(frame, key).select(F.lit(batch).alias("batch"), text.alias("value"))
