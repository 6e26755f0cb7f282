"""Columns that Spark computes for a step, computed for rows of its quarantine that are to be replayed.

The step may compute them otherwise than when the rows came: that is how it was fixed. So the quarantine keeps the
input's own columns, and a run that replays rows lets Spark evaluate the step's expressions for them while the run
builds its flow. Tasks get the result with the step's definition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery.base.ids import StepId
from recovery.errors import ConfigurationError, CorruptPartitionError, shown
from recovery.spark.steps.definition import PREFIX, Waiting, arrow_schema, replaying
from recovery.values import quarantined_rows
from recovery.values.tables import columns_of

_ROW = PREFIX + "row"


def replayed(
    frame: DataFrame, step_id: str, columns: Sequence[str], inputs: Mapping[str, Column], zone: str
) -> quarantined_rows.Replayed | None:
    """Return what Spark computes for the entries in quarantine that are to be replayed; None if none are.

    columns: the input's own. inputs: what is computed, by the names of the columns. zone: the session's, by Arrow's
    name for it. Raises ConfigurationError if only a row of this very frame has what is computed.
    """
    schema = T.StructType([frame.schema[name] for name in columns])
    spark = frame.sparkSession
    try:
        _without_rows(spark, schema).select(*inputs.values())
    except AnalysisException as error:
        # What the frame does not have either was reported before.
        raise ConfigurationError(
            f"step {step_id!r} names columns by their frame: {str(error).splitlines()[0]}",
            cause="Rows in quarantine are no rows of that frame when they are replayed.",
            remedy="Name the columns alone: F.col('x') or SQL text in place of frame['x'], frame.x or alias.x.",
        ) from error
    entries = replaying.get()(StepId(step_id))
    if entries is None:
        return None
    places, tables = list[tuple[str, int]](), list[pa.Table]()
    for place, table in _fitting(step_id, entries, arrow_schema(schema, zone)):
        count = len(table)
        index = pa.array([len(places)] * count, pa.int32())
        tables.append(
            table.append_column(quarantined_rows.ENTRY, index).append_column(_ROW, pa.array(range(count), pa.int32()))
        )
        places.append(place)
    if not tables:
        return quarantined_rows.Replayed((), b"")
    given = T.StructType(
        [*schema, T.StructField(quarantined_rows.ENTRY, T.IntegerType()), T.StructField(_ROW, T.IntegerType())]
    )
    rows = spark.createDataFrame(pa.concat_tables(tables), given)
    computed = rows.select(
        quarantined_rows.ENTRY, _ROW, *(column.alias(name) for name, column in inputs.items())
    ).toArrow()
    computed = (
        computed.sort_by([(quarantined_rows.ENTRY, "ascending"), (_ROW, "ascending")])
        .drop_columns([_ROW])
        .combine_chunks()
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, computed.schema) as writer:
        writer.write_table(computed)
    return quarantined_rows.Replayed(tuple(places), sink.getvalue().to_pybytes())


def _without_rows(spark: SparkSession, schema: T.StructType) -> DataFrame:
    """Return a frame without rows. createDataFrame would send them through a file of Python's, which counts as a file
    that the flow has read."""
    return spark.range(0).select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in schema))


def _fitting(step_id: str, entries: Waiting, schema: pa.Schema) -> Iterator[tuple[tuple[str, int], pa.Table]]:
    """Yield key, number and rows of the entries whose rows have the columns of the input, in types that fit."""
    for text, number, entry in entries:
        refuse = lambda why, text=text: CorruptPartitionError(  # noqa: E731
            f"step {step_id!r}, key {shown(text)}, in quarantine: {why}"
        )
        table = quarantined_rows.unpacked(entry.data, refuse)
        try:
            columns = columns_of(table, schema, table.column_names)
        except ValueError:
            # The task that replays the entry says what does not fit.
            continue
        yield (text, number), pa.Table.from_arrays(columns, schema=schema)
