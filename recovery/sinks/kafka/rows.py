"""The rows of a micro-batch as records of Kafka: which column or expression is what, and whether its type fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from recovery.base.printable import one_line
from recovery.errors import ConfigurationError, FlowFailedError
from recovery.hadoop.writing import write_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Expression: TypeAlias = "str | Column | None"

RECORDS_PER_FILE = 100_000
"""One file is read whole while it is produced."""
HEADER_BYTES = 10
"""The most that the lengths of a header take."""
# The files are read once and removed: a dictionary of the values would not pay.
_OPTIONS = {"maxRecordsPerFile": str(RECORDS_PER_FILE), "parquet.enable.dictionary": "false"}
_PAIRS = "headers=\"array(struct('name' AS key, cast(x AS binary) AS value))\""
_NESTED = ("array", "struct", "map", "variant")


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """What makes a record: names of columns, or expressions of SQL or PySpark; None: the column of that name, if there
    is one."""

    key: Expression = None
    value: Expression = None
    headers: Expression = None
    partition: Expression = None
    timestamp: Expression = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            given = getattr(self, name)
            if given is not None and not (isinstance(given, str) and given) and not hasattr(given, "_jc"):
                raise ConfigurationError(
                    f"KafkaSink: {name}={type(given).__name__}",
                    remedy='Give the name of a column, or an expression like "to_json(struct(*))".',
                )


def write_records(batch: DataFrame, columns: RecordColumns, address: str) -> None:
    """Write the rows of a micro-batch as records, in Parquet files, into a directory that is missing or empty. Raises
    FlowFailedError for columns that make no record; otherwise like `write_files`."""
    write_files(as_records(batch, columns), address, "parquet", _OPTIONS)


def as_records(batch: DataFrame, columns: RecordColumns) -> DataFrame:
    """Return the records: key, value, headers, partition, timestamp in milliseconds, and size in bytes: -1 where a
    header has no name."""
    from pyspark.sql import functions as F

    chosen = _chosen(batch, columns)
    types: Mapping[str, str] = {field.name: field.dataType.simpleString() for field in chosen.schema.fields}
    key, value, headers = (F.col(name) for name in ("key", "value", "headers"))
    for name in ("key", "value"):
        if types[name] not in ("string", "binary", "void"):
            raise _unfit(name, types[name], "text or bytes", _remedy(name, types[name], getattr(columns, name)))
    given = types["headers"]
    if given not in ("void", *(f"array<struct<key:string,value:{each}>>" for each in ("binary", "string"))):
        raise _unfit(
            "headers",
            given,
            "array<struct<key:string,value:binary>>",
            f"Give {_PAIRS}.",
        )
    if types["partition"] not in ("void", "tinyint", "smallint", "int"):
        raise _unfit("partition", types["partition"], "an int", "Cast it: partition='cast(… AS int)'.")
    if types["timestamp"] not in ("void", "timestamp"):
        raise _unfit("timestamp", types["timestamp"], "a timestamp", "Cast it: timestamp='cast(… AS timestamp)'.")
    size = _bytes(key) + _bytes(value)
    if given == "void":
        pairs = F.lit(None).cast("array<struct<key:string,value:binary>>")
    else:
        pairs = headers.cast("array<struct<key:string,value:binary>>")
        size = size + F.coalesce(F.aggregate(pairs, F.lit(0), lambda sum, pair: sum + _bytes_of_pair(pair)), F.lit(0))
        size = F.when(F.exists(pairs, lambda pair: pair["key"].isNull()), F.lit(-1)).otherwise(size)
    return chosen.select(
        key.cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        pairs.alias("headers"),
        F.col("partition").cast("int").alias("partition"),
        F.unix_millis(F.col("timestamp").cast("timestamp")).alias("timestamp"),
        size.cast("int").alias("size"),
    )


def _chosen(batch: DataFrame, columns: RecordColumns) -> DataFrame:
    """Return the columns of records, each of the type that the user gave it. Raises FlowFailedError."""
    from pyspark.errors import PySparkException

    try:
        return batch.select(*[_column(batch, name, getattr(columns, name)).alias(name) for name in columns.__slots__])
    except PySparkException as error:
        given = {name: getattr(columns, name) for name in columns.__slots__}
        texts = ", ".join(f"{name}={text!r}" for name, text in given.items() if text is not None)
        raise FlowFailedError(
            one_line(f"KafkaSink: {texts}: {error.getMessage() or str(error).splitlines()[0]}"),
            cause=f"No column has this name, or the expression does not fit; the flow's rows have {_names(batch)}.",
            remedy='Give the name of a column, or an expression like "to_json(struct(*))".',
        ) from None


def _column(batch: DataFrame, name: str, given: Expression) -> Any:
    from pyspark.sql import functions as F

    if given is None and name not in batch.columns:
        if name == "value":
            raise FlowFailedError(
                f"KafkaSink: the flow's rows have no column 'value'; they have {_names(batch)}",
                cause="The sink was not given what the value of a record is.",
                remedy='Give it a column or an expression: KafkaSink(…, value="to_json(struct(*))").',
            )
        return F.lit(None)
    if given is not None and not isinstance(given, str):
        return given
    text = name if given is None else given
    return F.col("`{}`".format(text.replace("`", "``"))) if text in batch.columns else F.expr(text)


def _bytes(column: Any) -> Any:
    from pyspark.sql import functions as F

    return F.coalesce(F.octet_length(column), F.lit(0))


def _bytes_of_pair(pair: Any) -> Any:
    return _bytes(pair["key"]) + _bytes(pair["value"]) + HEADER_BYTES


def _names(batch: DataFrame) -> str:
    return one_line(", ".join(batch.columns))


def _remedy(name: str, found: str, given: Expression) -> str:
    column = given if isinstance(given, str) else name
    how = f"to_json({column})" if found.startswith(_NESTED) else f"cast({column} AS string)"
    return f"Say how it becomes text: {name}={how!r}."


def _unfit(name: str, found: str, needed: str, remedy: str) -> FlowFailedError:
    return FlowFailedError(
        f"KafkaSink: the {name} of a record has to be {needed}, and is of type {found}",
        cause="Kafka keeps bytes, and only the flow knows how its values become bytes.",
        remedy=remedy,
    )
