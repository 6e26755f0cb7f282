"""`format("recovery")` with the option `quarantine`: the rows in the quarantine of steps, with their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type

from recovery.base.ids import StepId
from recovery.base.reserved import quarantine_of
from recovery.errors import ConfigurationError
from recovery.operational.steps.quarantine import corrupt, steps_that_wait
from recovery.spark.jvm.versions import to_arrow_schema
from recovery.spark.sources.operator_source import DriverAddress, directory_of, number_of
from recovery.spark.sources.state_reader import StateReader
from recovery.storage.snapshot import snapshot_at
from recovery.values import quarantine, quarantined_rows
from recovery.values.quarantine import Entry

EVERY_STEP = "*"
ENTRY = T.StructType([
    T.StructField("step", T.StringType(), False),
    T.StructField("key", T.StringType(), False),
    T.StructField("number", T.LongType(), False),
    T.StructField("epoch", T.LongType(), False),
    T.StructField("batch", T.LongType(), False),
    T.StructField("since", T.TimestampType(), False),
    T.StructField("attempts", T.LongType(), False),
    T.StructField("error", T.StringType()),
    T.StructField("timed_out", T.BooleanType(), False),
])  # fmt: skip
"""The columns beside the last one, `row`."""
ROW = "row"
BATCH_BYTES = 4 << 20
BATCH_ENTRIES = 1000
"""How many bytes and entries become one record batch; only a batch of one entry is larger."""


@dataclass
class WaitingPartition(InputPartition):
    """The rows of one step's quarantine in one recovery partition. inner: where its text is read."""

    step: StepId
    inner: InputPartition


@dataclass(frozen=True)
class WaitingFrame:
    """What waited when the frame was planned: its types, and where its rows are."""

    schema: T.StructType
    partitions: list[WaitingPartition]


def waiting_frame(options: Mapping[str, str], address: DriverAddress | None) -> WaitingFrame:
    """Find the rows in quarantine, and read their types; a column that has other types in other rows is text.

    Raises ConfigurationError, the errors of planning, and CorruptPartitionError.
    """
    wrong = {"step", "operator", "sinceepoch", "other"} & options.keys()
    if wrong or not options.get("path") or not options["quarantine"]:
        raise ConfigurationError(
            'format("recovery") with the option quarantine needs path, and no step, operator, sinceEpoch or other',
            cause="",
            remedy='spark.read.format("recovery").option("quarantine", "STEP or *").load("db/")',
        )
    at = snapshot_at(directory_of(options["path"], address), number_of(options, "epoch"))
    wanted = options["quarantine"]
    steps = steps_that_wait(at) if wanted == EVERY_STEP else [StepId(wanted)]
    found = [
        WaitingPartition(step, inner)
        for step in steps
        for inner in _reader(options, step, address, at.epoch).partitions()
    ]
    kinds: dict[str, list[T.DataType]] = {}
    for partition in found:
        for key, _, entry, _ in _entries(options, partition, address):
            if not entry.timed_out:
                for field in quarantined_rows.schema_of(entry.data, corrupt(partition.step, key)):
                    of_name, kind = kinds.setdefault(field.name, []), from_arrow_type(field.type)
                    if kind not in of_name:
                        of_name.append(kind)
    columns = [T.StructField(name, each[0] if len(each) == 1 else T.StringType()) for name, each in kinds.items()]
    return WaitingFrame(T.StructType([*ENTRY, T.StructField(ROW, T.StructType(columns))]), found)


class WaitingReader(DataSourceReader):
    """Reads what waited when the frame was planned."""

    def __init__(self, frame: WaitingFrame, options: Mapping[str, str], address: DriverAddress | None) -> None:
        self._frame = frame
        self._options = dict(options)
        self._address = address

    def partitions(self) -> list[InputPartition]:
        return list(self._frame.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, WaitingPartition)
        schema = to_arrow_schema(self._frame.schema, "UTC")
        held, held_bytes = list[pa.RecordBatch](), 0
        for key, number, entry, epoch in _entries(self._options, partition, self._address):
            size_bytes = len(entry.data)
            if held and (len(held) == BATCH_ENTRIES or held_bytes + size_bytes > BATCH_BYTES):
                yield pa.concat_batches(held)
                held, held_bytes = [], 0
            held.append(_batch(partition.step, key, number, entry, epoch, schema))
            held_bytes += size_bytes
        if held:
            yield pa.concat_batches(held)


def _reader(options: Mapping[str, str], step: StepId, address: DriverAddress | None, epoch: int | None) -> StateReader:
    at = {} if epoch is None else {"epoch": str(epoch)}
    return StateReader({"path": options["path"], "step": quarantine_of(step), **at}, address)


def _entries(
    options: Mapping[str, str], partition: WaitingPartition, address: DriverAddress | None
) -> Iterator[tuple[str, int, Entry, int]]:
    """Yield the key, number, entry and epoch of each entry of a partition."""
    for batch in _reader(options, partition.step, address, None).read(partition.inner):
        names, texts, epochs = (batch.column(name) for name in ("key", "state", "epoch"))
        for place in range(len(batch)):
            key, number = quarantine.parse_waiting_key(names[place].as_py())
            if number is not None:
                entry = quarantine.entry_from(texts[place].as_py(), corrupt(partition.step, key))
                yield key, number, entry, epochs[place].as_py()


def _batch(step: str, key: str, number: int, entry: Entry, epoch: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of an entry; a call for a timeout is one row, without values."""
    fields = schema.field(ROW).type
    if entry.timed_out:
        count, rows = 1, pa.nulls(1, fields)
    else:
        table = quarantined_rows.unpacked(entry.data, corrupt(step, key), entry.rows)
        count = len(table)
        columns = [_column(table, fields.field(place)) for place in range(fields.num_fields)]
        rows = pa.StructArray.from_arrays(columns, fields=list(fields)) if columns else pa.array([{}] * count, fields)
    since = datetime.fromtimestamp(entry.at_ms / 1000, UTC)
    error = None if entry.failure is None else entry.failure.text
    facts = (step, key, number, epoch, entry.batch, since, entry.attempts, error, entry.timed_out)
    arrays = [pa.array([fact] * count, each.type) for fact, each in zip(facts, schema, strict=False)]
    return pa.RecordBatch.from_arrays([*arrays, rows], schema=schema)


def _column(table: pa.Table, field: pa.Field) -> pa.Array[Any]:
    """Return a column of rows in the type of the frame; NULL where the rows lack it."""
    if field.name not in table.column_names:
        return pa.nulls(len(table), field.type)
    found = table.column(field.name).combine_chunks()
    if from_arrow_type(found.type) != from_arrow_type(field.type):
        return pa.array(quarantined_rows.texts(field.name, table), pa.string())
    return found.cast(field.type) if found.type != field.type else found
