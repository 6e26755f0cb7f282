"""What differs between the supported versions of Spark. Code elsewhere is written for the newest PySpark, and takes
from here what older versions lack. `docs/upgrading.md` says what each version supports.

| what | since |
| --- | --- |
| fields that are never NULL have a value in a struct that is NULL, so that Arrow can cast it | 4.3 |
| Python sources are asked with the start of the micro-batch and know Trigger.AvailableNow: `stream_readers.py` | 4.2 |
| sources have names; the Arrow types of timestamps take a time zone; Java 24 and newer | 4.2 |
| `repartitionById`; the type TIME; a session's own source of a name that Spark has found by itself | 4.1 |
| packages below `execution.streaming` (`hadoop.writing` needs one, too) | 4.1 |

Importing this does not import PySpark: a session's settings are made while the JVM starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from recovery.spark.jvm.installed import installed_version, version_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    Leaf: TypeAlias = Callable[[pa.DataType], pa.DataType]

VERSION = version_of(installed_version() or "")
_STREAMING = "org.apache.spark.sql.execution.streaming."
FILE_MANAGER = f"{_STREAMING}{'checkpointing.' if VERSION >= (4, 1) else ''}FileSystemBasedCheckpointFileManager"
"""The class that writes a checkpoint's files with the fewest processes."""
STATE_WRITER = f"{_STREAMING}{'operators.stateful.' if VERSION >= (4, 1) else ''}StateStoreWriter"
"""The class of physical operators that keep state."""
REPLACES_FORMATS = VERSION >= (4, 1)
"""Whether a session can register a Python source under the name of one that Spark has found by itself."""
NEWEST_JAVA = None if VERSION >= (4, 2) else 23
"""The newest Java that Spark starts with; None: each Java that was tried."""


def to_arrow_schema(schema: StructType, timezone: str, prefers_large_types: bool = False) -> pa.Schema:
    """Return the Arrow schema of a Spark schema, in which timestamps have this time zone."""
    from pyspark.sql.pandas import types

    if VERSION >= (4, 2):
        return types.to_arrow_schema(schema, timezone=timezone, prefers_large_types=prefers_large_types)
    return _mapped(types.to_arrow_schema(schema, prefers_large_types=prefers_large_types), _moved_to(timezone))


def to_arrow_type(kind: DataType, timezone: str) -> pa.DataType:
    """Return the Arrow type of a Spark type, in which timestamps have this time zone."""
    from pyspark.sql.pandas import types

    if VERSION >= (4, 2):
        return types.to_arrow_type(kind, timezone=timezone)
    return _mapped_type(types.to_arrow_type(kind), _moved_to(timezone))


def as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column that Spark gave to Python. Before 4.3, fields that are declared never NULL are NULL in a struct
    that is, and Arrow refuses to cast it."""
    if VERSION >= (4, 3):
        return column.cast(kind)
    return _declared(column.cast(_mapped_type(kind, lambda leaf: leaf, nullable=True)), kind)


def time_types() -> tuple[type[DataType], ...]:
    """Return the class of the type TIME, if this version has it."""
    from pyspark.sql import types

    return (types.TimeType,) if VERSION >= (4, 1) else ()


def source_name(node: Any) -> str | None:
    """The name that the flow's code gives a source of the plan. Before 4.2 sources have none."""
    if VERSION < (4, 2):
        return None
    label = node.sourceIdentifyingName()
    return str(label.name()) if label.getClass().getSimpleName() == "UserProvided" else None


def repartition_by_id(frame: DataFrame, count: int, place: Column) -> DataFrame:
    """Exchange rows so that each is in the partition that the integer column `place` says, from 0 to count - 1."""
    if VERSION >= (4, 1):
        return frame.repartitionById(count, place)
    from pyspark.sql import functions as F

    return frame.repartition(count, F.element_at(F.lit(_hashed_to(count)), place + 1))


def _declared(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same values under a type that differs in which fields may be NULL."""
    import pyarrow as pa

    if column.type == kind:
        return column
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        parts = [_declared(column.field(place), field.type) for place, field in enumerate(fields)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=column.is_null())
    inner = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
    values = _declared(column.values, inner)
    return pa.Array.from_buffers(kind, len(column), column.buffers()[:2], offset=column.offset, children=[values])


def _hashed_to(count: int) -> list[int]:
    """Return a number for each of `count` partitions that Spark's exchange by hash puts there."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < count:
        found.setdefault(_murmur3(number) % count, number)
        number += 1
    return [found[place] for place in range(count)]


def _murmur3(number: int) -> int:
    """Spark's hash of an int that is not negative, with its sign: Murmur3 with seed 42."""
    mask = 0xFFFFFFFF
    mixed = number * 0xCC9E2D51 & mask
    mixed = ((mixed << 15 | mixed >> 17) & mask) * 0x1B873593 & mask
    hashed = 42 ^ mixed
    hashed = ((hashed << 13 | hashed >> 19) & mask) * 5 + 0xE6546B64 & mask
    hashed ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashed = (hashed ^ hashed >> shift) * factor & mask
    return hashed - (hashed >> 31 << 32)


def _moved_to(timezone: str) -> Leaf:
    import pyarrow as pa

    def moved(kind: pa.DataType) -> pa.DataType:
        zoned = pa.types.is_timestamp(kind) and kind.tz is not None
        return pa.timestamp(kind.unit, timezone) if zoned else kind

    return moved


def _mapped(schema: pa.Schema, leaf: Leaf, nullable: bool | None = None) -> pa.Schema:
    """Return a schema with other types at its leaves. nullable: of all fields within others; None: as they are."""
    import pyarrow as pa

    fields = [field.with_type(_mapped_type(field.type, leaf, nullable)) for field in schema]
    return pa.schema(fields, schema.metadata)


def _mapped_type(kind: pa.DataType, leaf: Leaf, nullable: bool | None = None) -> pa.DataType:
    import pyarrow as pa

    def inner(field: pa.Field) -> pa.Field:
        changed = field.with_type(_mapped_type(field.type, leaf, nullable))
        return changed if nullable is None else changed.with_nullable(nullable)

    if pa.types.is_struct(kind):
        return pa.struct([inner(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(_mapped_type(kind.key_type, leaf, nullable))
        return pa.map_(key, inner(kind.item_field), kind.keys_sorted)
    if pa.types.is_large_list(kind):
        return pa.large_list(inner(kind.value_field))
    return pa.list_(inner(kind.value_field)) if pa.types.is_list(kind) else leaf(kind)
