"""Columns of Spark as columns of an Iceberg table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from recovery.sinks.tables.columns import is_made_of

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

_NAMES = {
    "string": "string", "byte": "int", "short": "int", "integer": "int", "long": "long", "float": "float",
    "double": "double", "boolean": "boolean", "binary": "binary", "date": "date", "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}  # fmt: skip


def has_type(kind: Any) -> bool:
    """Whether Iceberg has a type of Spark's, in the form of a schema's JSON."""
    return is_made_of(kind, frozenset(_NAMES))


def schema_of(schema: str) -> Schema:
    """Return the schema of a table for Spark's columns (JSON), in which everything may be NULL. A catalog numbers its
    fields again."""
    from pyiceberg.schema import Schema

    return Schema(**_struct(msgspec.json.decode(schema), count(1)))


def _struct(kind: Mapping[str, Any], ids: Iterator[int]) -> dict[str, Any]:
    """Return a struct as Iceberg's JSON has it."""
    fields = [
        {"id": next(ids), "name": field["name"], "required": False, "type": _type(field["type"], ids)}
        for field in kind["fields"]
    ]
    return {"type": "struct", "fields": fields}


def _type(kind: Any, ids: Iterator[int]) -> Any:
    if isinstance(kind, str):
        return _NAMES.get(kind) or re.sub(r"\s", "", kind).replace(",", ", ")
    if kind["type"] == "struct":
        return _struct(kind, ids)
    if kind["type"] == "array":
        element = {"element-id": next(ids), "element-required": False, "element": _type(kind["elementType"], ids)}
        return {"type": "list", **element}
    key = {"key-id": next(ids), "key": _type(kind["keyType"], ids)}
    return {
        "type": "map",
        **key,
        "value-id": next(ids),
        "value-required": False,
        "value": _type(kind["valueType"], ids),
    }


def types_of(schema: Schema) -> dict[str, str]:
    """Return the types of a table's columns by name, as text without what may differ: numbers of fields, whether they
    may be NULL, and comments."""
    return {field.name: _text(field.field_type) for field in schema.fields}


def _text(kind: Any) -> str:
    if kind.is_struct:
        return f"struct<{', '.join(f'{field.name}: {_text(field.field_type)}' for field in kind.fields)}>"
    if hasattr(kind, "element_type"):
        return f"list<{_text(kind.element_type)}>"
    if hasattr(kind, "key_type"):
        return f"map<{_text(kind.key_type)}, {_text(kind.value_type)}>"
    return str(kind)


def unmapped(table: Any, written: Schema) -> str | None:
    """Return the first column, or part of a column, that the table's name mapping lacks or has for another field; None
    if the mapping has all. Files that Spark wrote have no field numbers, so a reader finds their columns by this
    mapping."""
    mapping = table.name_mapping()
    if mapping is None:
        return None
    known, schema = dict(_mapped(mapping, "")), table.schema()
    names = (str(written.find_column_name(number)) for number in sorted(written.field_ids))
    return next((name for name in names if known.get(name) != schema.find_field(name).field_id), None)


def _mapped(fields: Iterable[Any], within: str) -> Iterator[tuple[str, int | None]]:
    """Yield the names in a mapping, with dots, and the field of each."""
    for field in fields:
        for name in field.names:
            yield f"{within}{name}", field.field_id
            yield from _mapped(field.fields, f"{within}{name}.")
