"""Recognize values that come back from JSON unchanged, without decoding their text.

Decoding a state and comparing it with the original costs more than encoding it. For common shapes, the types of the
parts decide. `StateCodec` decodes and compares every other value. The checks run for every key: loops with `type(part)`
are faster in them than `map`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from operator import attrgetter
from types import NoneType
from typing import Any, NamedTuple

from msgspec import inspect

Check = Callable[[Any], bool]
"""Returns whether a value surely comes back equal, with the same types at any depth; False if only decoding can tell.
A declared float may be an int, as StateCodec allows."""

_LONGEST = re.compile(r"-[0-9]{4300}").search
_WHOLE = 1 << 53
"""A float holds every whole number up to this limit."""
_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
_NONE: frozenset[type] = frozenset()
_EXACT: frozenset[type] = frozenset({NoneType, bool, int, str})
"""The classes whose instances JSON gives back. JSON has no NaN and no infinity, so floats are not among them."""


def is_plain(value: Any) -> bool:
    """Return whether a value consists of dicts with string keys, lists, and JSON's scalars, and of no subclass."""
    kind = type(value)
    if kind is int or kind in _EXACT:
        return True
    if kind is float:
        return bool(value - value == 0.0)
    if kind is dict:
        for key, part in value.items():
            kind = type(part)
            if type(key) is not str:
                return False
            if kind is float:
                if part - part != 0.0:
                    return False
            elif kind not in _EXACT and not is_plain(part):
                return False
        return True
    if kind is list:
        for part in value:
            kind = type(part)
            if kind is float:
                if part - part != 0.0:
                    return False
            elif kind not in _EXACT and not is_plain(part):
                return False
        return True
    return False


def is_readable(text: str) -> bool:
    """Return whether msgspec reads all numbers in a text that it wrote: it does not read the longest negative ones."""
    return len(text) <= 4300 or _LONGEST(text) is None


class _TypeCheck(NamedTuple):
    """How a part of a declared type is checked: an instance of `exact` comes back, `check` decides for all other
    values."""

    exact: frozenset[type]
    check: Check


def check_of(info: inspect.Type) -> Check | None:
    """Return the check for values of a declared type; None for a scalar, and if only decoding can tell."""
    part = _part(info, ())
    return None if part is None or part.exact or part.check in (_is_float, _is_moment) else part.check


def _part(info: inspect.Type, within: tuple[type, ...]) -> _TypeCheck | None:
    """within: the classes around the part. A type that contains itself has no check."""
    if any(getattr(info, name, None) is not None for name in _CONSTRAINTS):
        return None
    kind = type(info)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if isinstance(info, inspect.UnionType):
        return _union([_part(each, within) for each in info.types])
    if kind in _COLLECTIONS:
        return _collection(_COLLECTIONS[kind], _part(info.item_type, within))  # type: ignore[attr-defined]
    if isinstance(info, inspect.DictType):
        return _dict(_part(info.key_type, within), _part(info.value_type, within))
    if isinstance(info, inspect.TupleType):
        return _record(tuple, None, [_part(each, within) for each in info.item_types])
    if not isinstance(info, inspect.NamedTupleType | inspect.DataclassType | inspect.StructType) or info.cls in within:
        return None
    names = [field.name for field in info.fields]
    parts = [_part(field.type, (*within, info.cls)) for field in info.fields]
    if isinstance(info, inspect.NamedTupleType):
        return _record(info.cls, None, parts)
    return _record(info.cls, names, parts) if _sets_only(info.cls, names) else None


def _sets_only(kind: type, names: list[str]) -> bool:
    """Return whether decoding does no more than set these fields. `__post_init__` may do anything, and msgspec may
    leave out a field that is not an argument of `__init__`."""
    if not names or hasattr(kind, "__post_init__") or hasattr(kind, "__attrs_attrs__"):
        return False
    return not dataclasses.is_dataclass(kind) or names == [each.name for each in dataclasses.fields(kind) if each.init]


def _union(parts: list[_TypeCheck | None]) -> _TypeCheck | None:
    """Return the part that is one of several; None if more than one of them has a check of its own."""
    known = [each for each in parts if each is not None]
    checks = [each.check for each in known if each.check is not _never]
    if len(known) < len(parts) or len(checks) > 1:
        return None
    return _TypeCheck(_NONE.union(*(each.exact for each in known)), checks[0] if checks else _never)


def _collection(kind: type[Any], item: _TypeCheck | None) -> _TypeCheck | None:
    if item is None:
        return None
    exact, check = item

    def check_items(value: Any) -> bool:
        if type(value) is not kind:
            return False
        for part in value:  # noqa: SIM110 - all() with a generator takes longer
            if type(part) not in exact and not check(part):
                return False
        return True

    return _TypeCheck(_NONE, check_items)


def _dict(key: _TypeCheck | None, value: _TypeCheck | None) -> _TypeCheck | None:
    if key is None or value is None or key not in _KEYS:
        return None
    key_kind, (exact, check) = _KEYS[key], value

    def check_items(value: Any) -> bool:
        if type(value) is not dict:
            return False
        for key, part in value.items():
            if type(key) is not key_kind or (type(part) not in exact and not check(part)):
                return False
        return True

    return _TypeCheck(_NONE, check_items)


def _record(kind: type[Any], names: Sequence[str] | None, parts: Sequence[_TypeCheck | None]) -> _TypeCheck | None:
    """Return the part that is an instance of a class with these fields; names: None for a tuple."""
    known = [each for each in parts if each is not None]
    if len(known) < len(parts):
        return None
    count = len(known)
    get = None if names is None else _getter(names)

    def check_fields(value: Any) -> bool:
        if type(value) is not kind:
            return False
        fields = value if get is None else get(value)
        if len(fields) != count:
            return False
        for part, (exact, check) in zip(fields, known):  # noqa: B905, SIM110 - equal lengths; strict= takes longer
            if type(part) not in exact and not check(part):
                return False
        return True

    return _TypeCheck(_NONE, check_fields)


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


def _never(value: Any) -> bool:
    return False


def _is_float(value: Any) -> bool:
    if type(value) is float:
        return value - value == 0.0
    return type(value) is int and -_WHOLE <= value <= _WHOLE


def _is_moment(value: Any) -> bool:
    """Return whether a moment has no zone or UTC. A moment of another zone comes back with its offset instead."""
    return type(value) is datetime and (value.tzinfo is None or value.tzinfo is UTC)


_SCALARS: dict[type[inspect.Type], _TypeCheck] = {
    inspect.NoneType: _TypeCheck(frozenset({NoneType}), _never),
    inspect.BoolType: _TypeCheck(frozenset({bool}), _never),
    inspect.IntType: _TypeCheck(frozenset({int}), _never),
    inspect.FloatType: _TypeCheck(_NONE, _is_float),
    inspect.StrType: _TypeCheck(frozenset({str}), _never),
    inspect.AnyType: _TypeCheck(_EXACT, is_plain),
    inspect.DateType: _TypeCheck(frozenset({date}), _never),
    inspect.DateTimeType: _TypeCheck(_NONE, _is_moment),
}
_KEYS = {_SCALARS[inspect.StrType]: str, _SCALARS[inspect.IntType]: int, _SCALARS[inspect.AnyType]: str}
_COLLECTIONS: dict[type[inspect.Type], type[Any]] = {
    inspect.ListType: list,
    inspect.SetType: set,
    inspect.FrozenSetType: frozenset,
    inspect.VarTupleType: tuple,
}
