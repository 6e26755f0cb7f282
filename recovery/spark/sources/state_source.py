"""`spark.read.format("recovery")`: the state of a step, or of one of Spark's own operators, at any held epoch, or the
changes between two epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from recovery.base.addresses import local_path
from recovery.errors import ConfigurationError, StateValueError
from recovery.host.identity import this_host
from recovery.operational.step_edits import moment
from recovery.planning.resume import Cut
from recovery.spark.sources.native_source import (
    Address,
    NativeFrame,
    NativeReader,
    check_is_here,
    native_frame,
    number_of,
)
from recovery.storage.history import KeyState, changes_between, states_at

STATE_SCHEMA = "key string, state string, epoch bigint, timeout timestamp_ltz"
CHANGE_SCHEMA = "key string, change string, before string, after string"
LONGEST_MS = (1 << 63) // 1000 - 1
ROWS_PER_BATCH = 10_000

STATE_ARROW = pyarrow.schema([
    ("key", pyarrow.string()),
    ("state", pyarrow.string()),
    ("epoch", pyarrow.int64()),
    ("timeout", pyarrow.timestamp("us", tz="UTC")),
])  # fmt: skip
CHANGE_ARROW = pyarrow.schema([(name, pyarrow.string()) for name in ("key", "change", "before", "after")])


class RecoveryDataSource(DataSource):
    """The states of one step as a DataFrame with one partition per recovery partition, or native state.

    Options: `path`, the recovery directory; `step`; `epoch`, by default the newest that all partitions hold;
    `sinceEpoch`, an older epoch, to read only the keys whose state has changed since then.
    In place of `step`: `operator`, and `store`, `variable` or `timers`, as for `native_state`.
    """

    address: ClassVar[Address | None] = None
    """The driver's address for the session in which the class was registered."""

    _native: NativeFrame | None = None

    @classmethod
    def of(cls, address: Address | None) -> type[RecoveryDataSource]:
        """Return the class to register in one session. Spark pickles it by value for its other processes."""
        return type(cls.__name__, (cls,), {"address": address})

    @classmethod
    def name(cls) -> str:
        return "recovery"

    def schema(self) -> str | StructType:
        if _is_native(self.options):
            self._native = native_frame(self.options, self.address)
            return self._native.schema
        return CHANGE_SCHEMA if "sinceepoch" in self.options else STATE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        if _is_native(self.options):
            # Use the frame that `schema` chose, so that schema and rows are of one moment.
            return NativeReader(self._native or native_frame(self.options, self.address), schema)
        return StateReader(dict(self.options))


@dataclass
class StatePartition(InputPartition):
    """One recovery partition, as of one cut or between two cuts. host: whose file it is."""

    host: str
    path: Path
    cut: Cut
    since: Cut | None


class StateReader(DataSourceReader):
    """Reads the cuts that were found when the frame was planned, so that all its rows are of one moment."""

    def __init__(self, options: dict[str, str]) -> None:
        if not options.get("path") or not options.get("step") or "operator" in options:
            raise ConfigurationError(
                'format("recovery") needs the options path, and step or operator',
                cause="",
                remedy='spark.read.format("recovery").option("step", "count").load("db/")',
            )
        self._directory = local_path(options["path"])
        self._step = options["step"]
        self._epoch = number_of(options, "epoch")
        self._since = number_of(options, "sinceepoch")

    def partitions(self) -> list[StatePartition]:
        now = moment(self._directory, self._epoch)
        since = None if self._since is None else moment(self._directory, self._since)
        if since is not None and since.epoch > now.epoch:
            raise ConfigurationError(
                f"sinceEpoch {since.epoch} is newer than epoch {now.epoch}", cause="", remedy="Give the older one."
            )
        return [StatePartition(this_host(), path.absolute(), now.cut, since and since.cut) for path in now.paths]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, StatePartition)
        check_is_here(partition.host)
        if partition.since is None:
            states = states_at(partition.path, self._step, partition.cut)
            rows = ((s.key, self._text(s), s.epoch, _micros(s.timeout_ms)) for s in states)
            yield from _batches(rows, STATE_ARROW)
            return
        changes = changes_between(partition.path, self._step, partition.since, partition.cut)
        kinds = {(True, False): "added", (False, True): "removed", (False, False): "changed"}
        yield from _batches(
            (
                (c.key, kinds[c.before is None, c.after is None], self._text(c.before), self._text(c.after))
                for c in changes
            ),
            CHANGE_ARROW,
        )

    def _text(self, state: KeyState | None) -> str | None:
        if state is None:
            return None
        if isinstance(state.value, bytes):
            raise StateValueError(f"the value of step {self._step!r} key {state.key!r:.80} is not text", remedy="")
        return state.value


def _micros(timeout_ms: int | None) -> int | None:
    """Return a timeout in microseconds for a timestamp column, limited to the column's range."""
    return None if timeout_ms is None else min(max(timeout_ms, -LONGEST_MS), LONGEST_MS) * 1000


def _batches(rows: Iterator[tuple[Any, ...]], schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    while chunk := list(islice(rows, ROWS_PER_BATCH)):
        columns = zip(*chunk, strict=True)
        arrays = [pyarrow.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _is_native(options: Mapping[str, str]) -> bool:
    return "operator" in options and "step" not in options
