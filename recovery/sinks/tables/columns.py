"""The columns of a flow's output, and of the table that it is written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from recovery.errors import SinkRefusedError


def nullable(schema: str) -> str:
    """Return a schema (JSON) in which everything may be NULL, without metadata of columns."""

    def loose(part: Any) -> Any:
        if isinstance(part, dict):
            kept = {name: loose(value) for name, value in part.items() if name != "metadata"}
            flags = {name: True for name in ("nullable", "containsNull", "valueContainsNull") if name in kept}
            return {**kept, **flags, **({"metadata": {}} if "metadata" in part else {})}
        return [*map(loose, part)] if isinstance(part, list) else part

    return msgspec.json.encode(loose(msgspec.json.decode(schema))).decode()


def fields_of(schema: str) -> dict[str, Any]:
    """Return the types of a schema's columns (JSON) by name."""
    return {field["name"]: field["type"] for field in msgspec.json.decode(schema)["fields"]}


def check_columns(table: str, known: Mapping[str, object], written: Mapping[str, object], to_add: str) -> None:
    """Raise SinkRefusedError unless the table has the columns that the flow writes, with their types.

    to_add: how somebody adds a column to such a table.
    """
    for name, kind in written.items():
        if name not in known:
            raise SinkRefusedError(
                f"the table has no column {name!r}, and the flow writes one",
                path=table,
                cause="The flow's output has changed.",
                remedy=f"Add the column ({to_add}), or leave it out of the output.",
            )
        if known[name] != kind:
            raise SinkRefusedError(
                f"column {name!r} has the type {known[name]} in the table, and {kind} in the flow",
                path=table,
                cause="The flow's output has changed, or the table was made with other types.",
                remedy="Cast the column in the flow.",
            )


def is_made_of(kind: Any, simple: frozenset[str]) -> bool:
    """Whether a type of Spark's (JSON) has only these simple types, and decimals, within structs, arrays and maps."""
    if isinstance(kind, str):
        return kind in simple or kind.startswith("decimal(")
    parts = [field["type"] for field in kind.get("fields", [])]
    parts += [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    return kind.get("type") in ("struct", "array", "map") and all(is_made_of(part, simple) for part in parts)


def names_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return column names as a tuple; one name may come as a text."""
    return (names,) if isinstance(names, str) else tuple(names)
