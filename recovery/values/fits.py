"""Whether a state and a key that a person gives fit what their step declares.

A step reads its states with a type; its declaration describes that type. This module makes a type of the same form from
the description, so a value is taken exactly if the step can read it. What a later version declares, and a type inside
itself, is not looked into.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, Union
from uuid import UUID

import msgspec

from recovery.errors import StateValueError, shown
from recovery.values.codec import StateCodec
from recovery.values.columns import named_place
from recovery.values.declaration import PICKLE, PLAIN, Form
from recovery.values.keys import ESCAPE, is_escaped

Check = Callable[[str], str | None]
"""A function from a text to a sentence that says why it does not fit; None if it fits."""

_TYPES: dict[str, Any] = {
    "none": None, "bool": bool, "int": int, "float": float, "str": str, "bytes": bytes, "bytearray": bytes,
    "datetime": datetime, "date": date, "time": time, "timedelta": timedelta, "decimal": Decimal, "uuid": UUID,
}  # fmt: skip
_COLLECTIONS: dict[str, Any] = {"list": list, "set": set, "frozenset": frozenset}
WHOLE_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""Spark's whole numbers and their sizes."""
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_DECIMAL = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")
_ARRAY = re.compile(r"array<(.*)>")


def limits(kind: str) -> tuple[int, int]:
    """Return the lowest and the highest number of a Spark type of whole numbers."""
    half = 1 << (WHOLE_BITS[kind] - 1)
    return -half, half - 1


def state_check(form: Form) -> Check:
    """Return the check for texts of states of a step that declares this form. Null is no state, whatever the form."""
    read = _reader(form)
    fields = form.get("fields", ()) if isinstance(form, dict) else ()
    names = [str(field[0]) for field in fields if len(field) == 3]

    def check(text: str) -> str | None:
        if text == "null":
            return "null is no state: remove the key in its place"
        try:
            read(text)
        except StateValueError as error:
            return error.found
        except (ValueError, RecursionError) as error:
            return named_place(str(error), names)
        return None

    return check


def key_check(columns: Sequence[tuple[str, str]]) -> Check:
    """Return the check for texts of keys with these columns, pairs of name and Spark's type. A text in another form
    than a run writes it would be the state of a key that no row has."""
    if len(columns) == 1:
        [(name, kind)] = columns
        return lambda text: None if text == ESCAPE else _part(name, kind, text, alone=True)

    def check(text: str) -> str | None:
        wanted = f"it is not a JSON array of {len(columns)} texts, for {', '.join(name for name, _ in columns)}"
        try:
            parts = msgspec.json.decode(text, type=list[str | None])
        except (ValueError, RecursionError):
            return wanted
        if len(parts) != len(columns):
            return wanted
        written = msgspec.json.encode(parts).decode()
        # Spark writes the digits of an escape in upper case.
        if "\\u" not in text and written != text:
            return f"a run writes it as {shown(written)}"
        pairs = zip(columns, parts, strict=True)
        found = (_part(name, kind, part, alone=False) for (name, kind), part in pairs if part is not None)
        return next((each for each in found if each is not None), None)

    return check


def _reader(form: Form) -> Callable[[str], object]:
    """Return a function that raises for a text that is no state of this form."""
    if form == PLAIN:
        codec = StateCodec(None)
        return lambda text: codec.encode(codec.decode(text))
    if form == PICKLE:
        # Its content is not looked at: a pickle may run any code.
        return _read_base64
    try:
        return msgspec.json.Decoder(_type(form)).decode
    except (TypeError, ValueError, LookupError, AttributeError):
        return lambda _: None


def _read_base64(text: str) -> None:
    try:
        base64.b64decode(msgspec.json.decode(text, type=str), validate=True)
    except binascii.Error as error:
        raise ValueError(f"it is not the base64 of a pickle: {error}") from None


def _type(form: Form) -> Any:
    """Return a type of this form; Any for parts that are not checked."""
    if isinstance(form, str):
        return _TYPES.get(form, Any)
    kind = next(iter(form))
    inner = form[kind]
    if kind == "any of":
        return Union[tuple(map(_type, inner))]  # noqa: UP007 - the types are known only here
    if kind in ("enum", "literal"):
        return Literal[tuple(form["values"])]
    if kind == "dict":
        return _limited(dict[_type(inner[0]), _type(inner[1])], form)  # type: ignore[misc]
    if kind == "tuple":
        return tuple[tuple(map(_type, inner))]  # type: ignore[misc]
    if kind == "tuple of any length":
        return _limited(tuple[_type(inner), ...], form)  # type: ignore[misc]
    if kind in _COLLECTIONS:
        return _limited(_COLLECTIONS[kind][_type(inner)], form)
    if "fields" in form:
        return _struct(kind, form)
    return _limited(_TYPES.get(kind, Any), form)


def _struct(kind: str, form: Form) -> Any:
    columns = form[kind] in ("columns", "aggregates") and kind == "struct"
    fields: list[Any] = []
    for number, (name, inner, required) in enumerate(form["fields"]):
        made = _column(inner.rpartition(" as ")[2]) | None if columns else _type(inner)
        given = {} if required else {"default": None}
        fields.append((f"field_{number}", made, msgspec.field(name=name, **given)))
    tag_field, tag = form.get("tag") or (None, None)
    return msgspec.defstruct(
        "State", fields, array_like=kind in ("named tuple", "array struct"), tag_field=tag_field, tag=tag,
        forbid_unknown_fields=True, kw_only=True,
    )  # fmt: skip


def _limited(kind: Any, form: Form) -> Any:
    return Annotated[kind, msgspec.Meta(**form["limits"])] if form.get("limits") else kind


def _column(kind: str) -> Any:
    """Return the type of the JSON values of a column of this Spark type."""
    if kind in WHOLE_BITS:
        low, high = limits(kind)
        return Annotated[int, msgspec.Meta(ge=low, le=high)]
    if found := _ARRAY.fullmatch(kind):
        return list[_column(found[1]) | None]  # type: ignore[misc]
    if _DECIMAL.fullmatch(kind):
        return Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]+(\.[0-9]+)?$")]
    return {
        "boolean": bool, "float": float, "double": float, "string": str, "binary": bytes, "date": date,
        "timestamp": Annotated[datetime, msgspec.Meta(tz=True)],
        "timestamp_ntz": Annotated[datetime, msgspec.Meta(tz=False)],
    }.get(kind, Any)  # fmt: skip


def _part(name: str, kind: str, text: str, *, alone: bool) -> str | None:
    """Return why a text is not one of a key's column; None if it is one, or if the type is not known here."""
    if kind == "string":
        plain = text.replace(ESCAPE * 2, "").replace(f"{ESCAPE}0", "")
        return f"the character {ESCAPE} is written {ESCAPE * 2}" if alone and is_escaped(plain) else None
    if kind in WHOLE_BITS or kind == "timestamp":
        low, high = limits("bigint" if kind == "timestamp" else kind)
        fits = _WHOLE.fullmatch(text) is not None and len(text) < 21 and low <= int(text) <= high
        what = "the microseconds since 1970" if kind == "timestamp" else f"a {kind} as Spark writes it"
        return None if fits else f"{name}: {shown(text)} is not {what}"
    return None if _is_text_of(kind, text) else f"{name}: {shown(text)} is not a {kind} as Spark writes it"


def _is_text_of(kind: str, text: str) -> bool:
    if kind == "boolean":
        return text in ("true", "false")
    if kind == "binary":
        return re.fullmatch("([0-9A-F]{2})*", text) is not None
    if kind == "date":
        return re.fullmatch("[+-]?[0-9]{4,}-[0-9]{2}-[0-9]{2}", text) is not None
    if kind == "timestamp_ntz":
        return (
            re.fullmatch(r"[+-]?[0-9]{4,}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?", text) is not None
        )
    if found := _DECIMAL.fullmatch(kind):
        places = rf"[.][0-9]{{{found[2]}}}" if int(found[2]) else ""
        return re.fullmatch(rf"-?(0|[1-9][0-9]*){places}", text) is not None
    if kind in ("float", "double"):
        return re.fullmatch(r"NaN|-?Infinity|-?[0-9]+[.][0-9]+(E-?[0-9]+)?", text) is not None
    return True
