"""The state of Spark's own operators at any held epoch, read with Spark's `statestore` source from its checkpoint.

A frame reads its checkpoint only when it is computed, so the checkpoint stays until the interpreter exits: in a
temporary directory of this process, or at an address that all hosts reach. The checkpoint of an epoch is made once at
each place.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from recovery.base.addresses import incomplete, local_path
from recovery.errors import ConfigurationError, StateValueError
from recovery.hadoop.home import HadoopHome
from recovery.host.storage_errors import storage_errors
from recovery.operators.choose import JOIN_SIDES, WantedState, choose_operator
from recovery.operators.held import held_operators, materialise
from recovery.places.address import file_system
from recovery.places.hadoop import HadoopFiles
from recovery.spark.clusters import check_one_host
from recovery.spark.jvm.connect_sessions import check_classic
from recovery.storage.snapshot import Snapshot, snapshot_at, snapshots_at

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What Spark raises: the second, when a task failed."""
EQUAL = "equal"
"""The kind of change of a key whose value is equal in both frames."""


def native_state(
    spark: SparkSession,
    directory: str | Path,
    *,
    operator: int = 0,
    epoch: int | None = None,
    store: str | None = None,
    variable: str | None = None,
    since: int | None = None,
    timers: bool = False,
    scratch_directory: str | None = None,
) -> DataFrame:
    """Return the state of one stateful operator as a frame with the columns `key`, `value` and `partition_id`.

    operator: its number, see `native_operators`. epoch: one that all partitions hold; None: the newest.
    store: for an operator with several stores, such as a join: a store's name, or "left" or "right" for the rows of a
    side.
    variable: for transformWithState, the name of the state variable.
    timers: for transformWithState, return the registered timers instead, one row each; the column
    `expiration_timestamp_ms`, in milliseconds since 1970, replaces `value`.
    since: an older epoch; then the columns are `change` ("added", "changed" or "removed"), `key`, `before`, `after`.
    scratch_directory: an address that all hosts of a cluster reach, such as s3a://bucket/scratch.
    The directory is only read, so a run may be active. The epoch's checkpoint is written to a temporary directory, or
    to one at `scratch_directory`, which is removed when the interpreter exits. Raises EpochNotHeldError,
    StateNotFoundError, ConfigurationError, CorruptPartitionError, StorageError.
    """
    path = local_path(directory)
    wanted = WantedState(operator, store, variable, timers)
    return state_frame(spark, path, *snapshots_at(path, epoch, since), wanted, scratch_directory)


def state_frame(
    spark: SparkSession,
    directory: Path,
    now: Snapshot,
    before: Snapshot | None,
    wanted: WantedState,
    scratch_directory: str | None = None,
) -> DataFrame:
    """Return the frame of `native_state` for these snapshots."""
    check_classic(spark)
    place = _place(spark, scratch_directory, "native_state")
    if before is None:
        return _read(spark, directory, now, wanted, place)
    old, new = frames_by_key(spark, (directory, before), (directory, now), wanted, place)
    return _changes(old, new, wanted.timers)


def frames_by_key(
    spark: SparkSession,
    before: tuple[Path, Snapshot],
    after: tuple[Path, Snapshot],
    wanted: WantedState,
    place: tuple[str, str] | None = None,
) -> tuple[DataFrame, DataFrame]:
    """Return the state in two snapshots, of the same directory or of two, a row for each key. A side on which the
    operator has no state yet is empty. Raises what `native_state` raises, of `after` if the key is in neither frame."""
    there = [any(each.number == wanted.operator for each in held_operators(at)) for _, at in (before, after)]
    if there == [True, False]:
        frame = _read(spark, *before, wanted, place, by_key=True)
        return frame, frame.limit(0)
    frame = _read(spark, *after, wanted, place, by_key=True)
    return _read(spark, *before, wanted, place, by_key=True) if there[0] else frame.limit(0), frame


def native_operators(
    spark: SparkSession,
    directory: str | Path,
    *,
    epoch: int | None = None,
    scratch_directory: str | None = None,
) -> DataFrame:
    """Return the stateful operators that have state at an epoch, one row for each of their stores.

    The columns are those of Spark's `state-metadata` source: `operatorId`, `operatorName`, `stateStoreName`,
    `numPartitions`, `minBatchId`, `maxBatchId`. All else is as in `native_state`.
    """
    path = local_path(directory)
    check_classic(spark)
    place = _place(spark, scratch_directory, "native_operators")
    made = _checkpoints.of(path, snapshot_at(path, epoch), place)
    return spark.read.format("state-metadata").load(made)


def _place(spark: SparkSession, scratch_directory: str | None, function: str) -> tuple[str, str] | None:
    """Return the file system and the path of the place for checkpoints; None: a directory of this host."""
    found = None if scratch_directory is None else file_system(scratch_directory, "scratch_directory")
    if scratch_directory is not None and found is None:
        raise incomplete(scratch_directory, "scratch_directory", "Leave the option out on one host.")
    if found is None:
        check_one_host(spark.sparkContext.master, function)
    return found


def of_key(frame: DataFrame, key: str) -> DataFrame:
    """Return the rows of a state frame whose key is `key`: a JSON object of the key's columns, or the text of a key of
    one text column. Raises ConfigurationError if `key` is neither."""
    schema = frame.schema["key"].dataType
    fields = schema.fields if isinstance(schema, StructType) else []
    if not key.lstrip().startswith("{") and len(fields) == 1:
        key = json.dumps({fields[0].name: key})
    try:
        given = json.loads(key)
        if not isinstance(given, dict) or set(given) != {field.name for field in fields}:
            raise ValueError("other columns")
        wanted = F.from_json(F.lit(key), schema, {"mode": "FAILFAST"})
        return frame.where(F.col("key").eqNullSafe(wanted))
    except ValueError as error:
        raise ConfigurationError(
            f"{key!r:.120} is not a key of this state",
            cause="A key is a JSON object of its columns.",
            remedy=f"Give all of {', '.join(field.name for field in fields)}, as `state list --operator` shows them.",
        ) from error


def rows_as_json(frame: DataFrame, limit: int | None) -> tuple[list[dict[str, Any]], bool]:
    """Return the first `limit` rows of a frame in the order of their JSON, and whether there are more.

    Raises StateValueError if Spark cannot compute them.
    """
    texts = frame.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("row")).orderBy("row")
    try:
        found = [row.row for row in (texts if limit is None else texts.limit(limit + 1)).collect()]
    except SPARK_ERRORS as error:
        raise StateValueError(
            f"Spark cannot read this state: {first_line(error)}",
            cause="The key has another type, or the state is of a newer version of Spark.",
            remedy="See how keys are written: python -m recovery checkpoint show DIR --operator N",
        ) from error
    return [json.loads(text) for text in found[:limit]], limit is not None and len(found) > limit


def _read(
    spark: SparkSession,
    directory: Path,
    at: Snapshot,
    wanted: WantedState,
    place: tuple[str, str] | None,
    *,
    by_key: bool = False,
) -> DataFrame:
    """Return the state in a snapshot. by_key: one row per key, where Spark would otherwise give one per element of a
    list or per row of a join."""
    choose_operator(held_operators(at), wanted, at.epoch)
    with reading(directory, wanted):
        return sound(reader_of(spark, wanted, by_key=by_key).load(_checkpoints.of(directory, at, place)), wanted)


def reader_of(spark: SparkSession, wanted: WantedState, *, by_key: bool) -> DataFrameReader:
    """Return Spark's reader of a state. by_key: as for `_read`."""
    reader = spark.read.format("statestore").option("operatorId", wanted.operator)
    store = wanted.store
    if store in JOIN_SIDES and by_key:
        store = f"{store}-keyWithIndexToValue"
    if store in JOIN_SIDES:
        reader = reader.option("joinSide", store)
    elif store is not None:
        reader = reader.option("storeName", store)
    if wanted.variable is not None:
        reader = reader.option("stateVarName", wanted.variable).option("flattenCollectionTypes", not by_key)
    if wanted.timers:
        reader = reader.option("readRegisteredTimers", True)
    return reader


def sound(frame: DataFrame, wanted: WantedState) -> DataFrame:
    """Return Spark's frame of a state so that `to_json` can read it: the values of a side of a join have a field more
    than their schema."""
    kind = frame.schema["value"].dataType if wanted.store in JOIN_SIDES else None
    if not isinstance(kind, StructType):
        return frame
    return frame.withColumn("value", F.struct(*(F.col("value")[name].alias(name) for name in kind.names)))


@contextmanager
def reading(directory: Path, wanted: WantedState) -> Iterator[None]:
    """Raise StateValueError, with the directory, for what Spark says when it cannot read a state."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise StateValueError(
            f"Spark cannot read the state of operator {wanted.operator}: {first_line(error)}",
            path=directory,
            cause="",
            remedy="Check --store, --variable and the key; its files may be of a newer version of Spark.",
        ) from error


def _changes(before: DataFrame, after: DataFrame, timers: bool) -> DataFrame:
    """Return the keys whose value differs or exists in only one of the two frames."""
    return compared(before, after, timers).where(F.col("change") != EQUAL)


def compared(before: DataFrame, after: DataFrame, timers: bool) -> DataFrame:
    """Return every key of two frames, with both values and how they differ. A key may have several timers, each of
    which is compared by itself and can only be added or removed."""
    [value] = [name for name in after.columns if name not in ("key", "partition_id")]
    old = before.select(F.col("key").alias("old_key"), F.col(value).alias("before"), F.lit(True).alias("was"))
    new = after.select(F.col("key").alias("new_key"), F.col(value).alias("after"), F.lit(True).alias("is"))
    together = _same(old, "old_key", new, "new_key")
    if timers:
        together = together & _same(old, "before", new, "after")
    joined = old.join(new, together, "full_outer")
    kind = F.when(F.col("was").isNull(), "added").when(F.col("is").isNull(), "removed")
    kind = kind.when(_same(old, "before", new, "after"), EQUAL).otherwise("changed")
    return joined.select(kind.alias("change"), F.coalesce("old_key", "new_key").alias("key"), "before", "after")


def _same(left: DataFrame, one: str, right: DataFrame, other: str) -> Any:
    """Return the condition that two columns are equal. The condition compares JSON for maps, which Spark cannot
    compare, and for different types, such as one that got a new field."""
    types = left.schema[one].dataType, right.schema[other].dataType
    if types[0] == types[1] and not _has_map(types[0]):
        return F.col(one).eqNullSafe(F.col(other))
    return _json(one).eqNullSafe(_json(other))


def _json(column: str) -> Any:
    return F.to_json(F.struct(F.col(column).alias("value")), {"ignoreNullFields": "false"})


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return True
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    return isinstance(kind, StructType) and any(_has_map(field.dataType) for field in kind.fields)


class _Checkpoints:
    """The checkpoints made in this process, one for each requested epoch and place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._home: Path | None = None
        self._made: dict[object, str] = {}

    def of(self, directory: Path, at: Snapshot, place: tuple[str, str] | None) -> str:
        """Return the URI of a snapshot's checkpoint; make it on the first request. place: a file system, and a path
        there; None: a temporary directory."""
        with self._lock:
            # The cut contains the execution's random id, so no other directory has the same one.
            wanted = os.path.realpath(directory), at.cut, place
            known = self._made.get(wanted)
            if known is not None:
                return known
            if self._home is None:
                with storage_errors(Path(tempfile.gettempdir())):
                    self._home = Path(tempfile.mkdtemp(prefix="recovery-native-"))
                atexit.register(shutil.rmtree, self._home, ignore_errors=True)
            target = self._home / str(len(self._made) + 1)
            try:
                if place is None:
                    materialise(directory, at, target)
                    made = f"file:{target}"
                else:
                    made = _copied(directory, at, target, *place)
            except BaseException:
                shutil.rmtree(target, ignore_errors=True)
                raise
            self._made[wanted] = made
            return made


def _copied(directory: Path, at: Snapshot, target: Path, system: str, path: str) -> str:
    """Write a snapshot's checkpoint at an address that all hosts reach, by way of `target`; return its URI. Spark's JVM
    removes the copy when the JVM ends."""
    files = HadoopFiles(system)
    root = Path(path, f"recovery-state-{secrets.token_hex(8)}")
    home = HadoopHome(files, system, root, target)
    materialise(directory, at, target, location=home.location)
    try:
        with closing(home):
            home.put()
        files.delete_at_exit(root)
    except BaseException:
        with suppress(Exception):
            files.delete(root)
        raise
    shutil.rmtree(target)
    return home.location


_checkpoints = _Checkpoints()


def first_line(error: Exception) -> str:
    """Return the first non-empty line of an error's text, of Java's if it is from there, or else its class name."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
    return next((line.strip() for line in str(text).splitlines() if line.strip()), type(error).__name__)
