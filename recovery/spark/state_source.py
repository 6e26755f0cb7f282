"""`spark.read.format("recovery")`: the state of a step at any epoch that is held, or what changed between two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from recovery.errors import ConfigurationError, StateValueError
from recovery.planning.resume import Cut
from recovery.state.steps import moment
from recovery.storage.history import KeyState, changes_between, states_at

STATE_SCHEMA = "key string, state string, epoch bigint, timeout timestamp"
CHANGE_SCHEMA = "key string, change string, before string, after string"
ROWS_PER_BATCH = 10_000

STATE_ARROW = pyarrow.schema([
    ("key", pyarrow.string()),
    ("state", pyarrow.string()),
    ("epoch", pyarrow.int64()),
    ("timeout", pyarrow.timestamp("us", tz="UTC")),
])  # fmt: skip
CHANGE_ARROW = pyarrow.schema([(name, pyarrow.string()) for name in ("key", "change", "before", "after")])


class RecoveryDataSource(DataSource):
    """The states of one step as a DataFrame, one partition of it per recovery partition.

    Options: `path`, the recovery directory; `step`; `epoch`, by default the newest that all partitions hold;
    `sinceEpoch`, an older one: then the keys whose state is another one than it was then.
    """

    @classmethod
    def name(cls) -> str:
        return "recovery"

    def schema(self) -> str:
        return CHANGE_SCHEMA if "sinceepoch" in self.options else STATE_SCHEMA

    def reader(self, schema: Any) -> StateReader:
        return StateReader(dict(self.options))


@dataclass
class StatePartition(InputPartition):
    """One recovery partition, as of one cut or between two."""

    path: Path
    cut: Cut
    since: Cut | None


class StateReader(DataSourceReader):
    """Reads from the cuts that were found when the frame was planned: all its rows are of one moment."""

    def __init__(self, options: dict[str, str]) -> None:
        if options.get("operator") is not None:
            raise ConfigurationError(
                'format("recovery") cannot read the state of Spark\'s own operators',
                cause="It is a source written in Python: it runs beside Spark, and cannot call Spark's state stores.",
                remedy='recovery.native_state(spark, "db/", operator=0) gives the same as a DataFrame.',
            )
        if not options.get("path") or not options.get("step"):
            raise ConfigurationError(
                'format("recovery") needs the options path and step',
                cause="",
                remedy='spark.read.format("recovery").option("step", "count").load("db/")',
            )
        self._directory = Path(options["path"])
        self._step = options["step"]
        self._epoch = _epoch(options, "epoch")
        self._since = _epoch(options, "sinceepoch")

    def partitions(self) -> list[StatePartition]:
        now = moment(self._directory, self._epoch)
        since = None if self._since is None else moment(self._directory, self._since)
        if since is not None and since.epoch > now.epoch:
            raise ConfigurationError(
                f"sinceEpoch {since.epoch} is newer than epoch {now.epoch}", cause="", remedy="Give the older one."
            )
        return [StatePartition(path.absolute(), now.cut, since and since.cut) for path in now.paths]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, StatePartition)
        if partition.since is None:
            states = states_at(partition.path, self._step, partition.cut)
            rows = (
                (s.key, self._text(s), s.epoch, None if s.timeout_ms is None else s.timeout_ms * 1000) for s in states
            )
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
            raise StateValueError(f"the value of step {self._step!r} key {state.key!r:.80} is no text", remedy="")
        return state.value


def _batches(rows: Iterator[tuple[Any, ...]], schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    while chunk := list(islice(rows, ROWS_PER_BATCH)):
        columns = zip(*chunk, strict=True)
        arrays = [pyarrow.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _epoch(options: dict[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise ConfigurationError(f"option {name}={text!r} is no epoch", remedy="Epochs are numbered 1, 2, 3 …")
    return int(text)
