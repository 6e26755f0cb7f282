"""What differs between the supported versions of Spark. Code elsewhere is written for the newest one, and takes from
here what older ones lack. `docs/upgrading.md` says what each version supports.

Before 4.3, fields that are never NULL have no value in a struct that is NULL, and Arrow refuses to cast it.
"""

from __future__ import annotations

import pyarrow as pa

from recovery.spark.jvm.installed import installed_version, version_of

VERSION = version_of(installed_version() or "")


def as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column that Spark gave to Python."""
    if VERSION >= (4, 3):
        return column.cast(kind)
    return _declared(column.cast(_nullable(kind)), kind)


def _declared(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same values under a type that differs in which fields may be NULL."""
    if column.type == kind:
        return column
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        parts = [_declared(column.field(place), field.type) for place, field in enumerate(fields)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=column.is_null())
    inner = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
    values = _declared(column.values, inner)
    return pa.Array.from_buffers(kind, len(column), column.buffers()[:2], offset=column.offset, children=[values])


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type in which every field within may be NULL."""

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(_nullable(field.type)).with_nullable(True)

    if pa.types.is_struct(kind):
        return pa.struct([inner(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(_nullable(kind.key_type)), inner(kind.item_field), kind.keys_sorted)
    if pa.types.is_large_list(kind):
        return pa.large_list(inner(kind.value_field))
    return pa.list_(inner(kind.value_field)) if pa.types.is_list(kind) else kind
