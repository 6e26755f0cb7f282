"""The state of Spark's own operators at any epoch that is held, by Spark's `statestore` source on that checkpoint.

A frame reads its checkpoint when it is computed, so the checkpoint stays until the interpreter exits, in a temporary
directory of this process; the same epoch is made once.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from recovery.checkpoint.operators import NativeOperator
from recovery.errors import ConfigurationError, StateNotFoundError, StateValueError
from recovery.native.held import held_operators, materialise
from recovery.spark.session import check_master
from recovery.state.steps import Moment, moment

JOIN_SIDES = ("left", "right")
_ONE_STORE = "default"


def native_state(
    spark: SparkSession,
    directory: str | Path,
    *,
    operator: int = 0,
    epoch: int | None = None,
    store: str | None = None,
    variable: str | None = None,
    since: int | None = None,
) -> DataFrame:
    """The state of one native operator as a frame with the columns `key`, `value` and `partition_id`.

    operator: its number, see `native_operators`. epoch: one that all partitions hold; None: the newest.
    store: for operators with several, as joins have: the name of one, or "left" or "right" for the rows of a side.
    variable: of transformWithState, the name of the state variable.
    since: an older epoch; then the columns are `change` ("added", "changed" or "removed"), `key`, `before`, `after`.
    Reads only; a run may be going on. The epoch's checkpoint is written to a temporary directory, which is removed when
    the interpreter exits. Raises EpochNotHeldError, StateNotFoundError, ConfigurationError, CorruptPartitionError.
    """
    path = Path(directory)
    check_master(spark.sparkContext.master)
    now = moment(path, epoch)
    if since is None:
        return _read(spark, path, now, operator, store, variable)
    frame = _read(spark, path, now, operator, store, variable, by_key=True)
    before = moment(path, since)
    if before.epoch > now.epoch:
        raise ConfigurationError(
            f"epoch {before.epoch} is newer than epoch {now.epoch}", cause="", remedy="Give the older one as `since`."
        )
    if before.epoch == 0 or not any(each.number == operator for each in held_operators(before)):
        return _changes(frame.limit(0), frame)
    return _changes(_read(spark, path, before, operator, store, variable, by_key=True), frame)


def native_operators(spark: SparkSession, directory: str | Path, *, epoch: int | None = None) -> DataFrame:
    """The native operators that have state at an epoch, one row for each of their stores, as Spark's `state-metadata`
    source tells them: `operatorId`, `operatorName`, `stateStoreName`, `numPartitions`, `minBatchId`, `maxBatchId`.

    As `native_state` otherwise.
    """
    path = Path(directory)
    check_master(spark.sparkContext.master)
    made = _checkpoints.of(path, moment(path, epoch))
    return spark.read.format("state-metadata").load(f"file:{made}")


def choose_operator(found: tuple[NativeOperator, ...], number: int, store: str | None, epoch: int) -> NativeOperator:
    """The operator of this number. Raises StateNotFoundError when it is not there, or has no such store, and
    ConfigurationError when a store must be named."""
    chosen = next((each for each in found if each.number == number), None)
    if chosen is None:
        listed = ", ".join(f"{each.number} ({each.name})" for each in found)
        raise StateNotFoundError(
            f"Spark's operator {number} has no state at epoch {epoch}",
            cause=f"The operators with state are {listed}." if found else "No operator of Spark's own has state.",
            remedy="See which there are: python -m recovery checkpoint show DIR",
        )
    sides = JOIN_SIDES if any(name.startswith(JOIN_SIDES) for name in chosen.stores) else ()
    names = (*sides, *chosen.stores)
    if store is not None and store not in names:
        raise StateNotFoundError(
            f"operator {number} has no store {store!r:.80}", cause="", remedy=f"It has {', '.join(names)}."
        )
    if store is None and _ONE_STORE not in chosen.stores and chosen.stores:
        raise ConfigurationError(
            f"operator {number} ({chosen.name}) has several stores",
            cause="A join keeps the rows of its two sides apart.",
            remedy=f"Name one of them (--store, or store=): {', '.join(names)}.",
        )
    return chosen


def _read(
    spark: SparkSession,
    directory: Path,
    at: Moment,
    operator: int,
    store: str | None,
    variable: str | None,
    *,
    by_key: bool = False,
) -> DataFrame:
    """`by_key`: one row a key, also where Spark would give one for each element of a list or each row of a join."""
    choose_operator(held_operators(at), operator, store, at.epoch)
    reader = spark.read.format("statestore").option("operatorId", operator)
    if store in JOIN_SIDES and by_key:
        store = f"{store}-keyWithIndexToValue"
    if store in JOIN_SIDES:
        reader = reader.option("joinSide", store)
    elif store is not None:
        reader = reader.option("storeName", store)
    if variable is not None:
        reader = reader.option("stateVarName", variable).option("flattenCollectionTypes", not by_key)
    try:
        return reader.load(f"file:{_checkpoints.of(directory, at)}")
    except PySparkException as error:
        needed = "transformWithState needs the name of a state variable: --variable, or variable=."
        raise StateValueError(
            f"Spark cannot read the state of operator {operator}: {_first_line(error)}",
            path=directory,
            cause="",
            remedy=needed if variable is None else "Check the names of store and variable.",
        ) from error


def _changes(before: DataFrame, after: DataFrame) -> DataFrame:
    """The keys whose value is another one, or is there in one of the two frames alone."""
    [value] = [name for name in after.columns if name not in ("key", "partition_id")]
    old = before.select(F.col("key").alias("old_key"), F.col(value).alias("before"), F.lit(True).alias("was"))
    new = after.select(F.col("key").alias("new_key"), F.col(value).alias("after"), F.lit(True).alias("is"))
    joined = old.join(new, _same(old, "old_key", new, "new_key"), "full_outer")
    kind = F.when(F.col("was").isNull(), "added").when(F.col("is").isNull(), "removed").otherwise("changed")
    unequal = F.col("was").isNull() | F.col("is").isNull() | ~_same(old, "before", new, "after")
    return joined.where(unequal).select(
        kind.alias("change"), F.coalesce("old_key", "new_key").alias("key"), "before", "after"
    )


def _same(left: DataFrame, one: str, right: DataFrame, other: str) -> Any:
    """Whether two columns are equal. Maps cannot be compared, and a type may have grown a field: then their JSON is."""
    types = left.schema[one].dataType, right.schema[other].dataType
    if types[0] == types[1] and not _has_map(types[0]):
        return F.col(one).eqNullSafe(F.col(other))
    return _json(one).eqNullSafe(_json(other))


def _json(column: str) -> Any:
    return F.to_json(F.struct(column), {"ignoreNullFields": "false"}).substr(len(column) + 4, 1 << 30)


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return True
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    return isinstance(kind, StructType) and any(_has_map(field.dataType) for field in kind.fields)


class _Checkpoints:
    """The checkpoints that were made in this process, one for each epoch that was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._home: Path | None = None
        self._made: dict[tuple[Path, object], Path] = {}

    def of(self, directory: Path, at: Moment) -> Path:
        """The checkpoint of a moment; made when it is first asked for."""
        with self._lock:
            # The execution's id, which is random, is a part of the cut: another directory never has the same one.
            known = self._made.get((directory.resolve(), at.cut))
            if known is not None:
                return known
            if self._home is None:
                self._home = Path(tempfile.mkdtemp(prefix="recovery-native-"))
                atexit.register(shutil.rmtree, self._home, ignore_errors=True)
            target = self._home / str(len(self._made) + 1)
            try:
                materialise(directory, at, target)
            except BaseException:
                shutil.rmtree(target, ignore_errors=True)
                raise
            self._made[directory.resolve(), at.cut] = target
            return target


_checkpoints = _Checkpoints()


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
