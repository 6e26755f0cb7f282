"""Convert state values to text for SQLite and back. A value that would not come back equal is refused."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import marshal
import pickle
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import msgspec.inspect

from recovery.errors import ConfigurationError, StateValueError, shortened, shown
from recovery.values.columns import Columns
from recovery.values.unchanged import check_of, is_plain, is_readable

StateType = Any
"""None for plain JSON-like values, "pickle", or a type: dataclass, NamedTuple, tuple[int, float], …"""

_NOTE = "__msgspec_cache__"
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_MARSHAL_WITHOUT_REFERENCES = 2
_SMALL = 256
DEEPEST = 20
"""How deep in a value an error looks for the part that cannot be stored."""
MOST_PARTS = 10_000


def _is_numpy_scalar(value: Any) -> bool:
    """Return whether `value` is a NumPy scalar. While NumPy is not imported, no value is a NumPy scalar."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _python_scalar(value: Any) -> Any:
    """Return the Python value of a NumPy or pandas scalar. Raises NotImplementedError if there is none."""
    if _is_numpy_scalar(value):
        plain = value.item()
        # item() returns the bare count for nanoseconds, and the scalar itself for numbers that Python lacks.
        if not _is_numpy_scalar(plain) and not (value.dtype.kind in "mM" and isinstance(plain, int)):
            return plain
    raise NotImplementedError(f"a {type(value).__name__} is not a JSON-like value")


class StateCodec:
    """Encodes and decodes the state values of one step.

    `encode(value)` returns JSON text. `encode` raises StateValueError for a value that would not come back equal: NaN,
    tuples, bytes, dicts with keys that are not strings, objects of undeclared types, and instances of subclasses, at
    any depth. For example, a defaultdict would come back as a dict.
    """

    def __init__(self, state_type: StateType = None) -> None:
        self.state_type = state_type
        self.encode: Callable[[Any], str]
        self.decode: Callable[[str], Any]
        to_json = msgspec.json.Encoder(enc_hook=_python_scalar).encode
        if state_type is None:
            self.decode = msgspec.json.Decoder().decode
            self.encode = _plain_encoder(to_json, self.decode)
        elif state_type == "pickle":
            self.decode = _unpickle
            self.encode = _pickle
        else:
            try:
                info = msgspec.inspect.type_info(state_type)
                if isinstance(info, msgspec.inspect.CustomType):
                    raise TypeError("its instances have no form in JSON")
                self.decode = msgspec.json.Decoder(state_type).decode
                columns = Columns.of(info)
            except TypeError as error:
                raise ConfigurationError(
                    f"state={state_type!r} cannot be stored: {error}",
                    remedy="Use a dataclass, a NamedTuple or a type such as tuple[int, float].",
                ) from error
            except NameError as error:
                raise ConfigurationError(
                    f"state={state_type!r} cannot be stored: {error}",
                    cause="The type of a field is given by a name that its module does not have, or not yet.",
                    remedy="Define or import it at the top of the module, before the step, not for type checkers only.",
                ) from error
            described = repr(state_type) if columns is None else columns.described
            self.encode = _typed_encoder(described, info, to_json, self.decode)
            if columns is not None:
                self.encode, self.decode = columns.encoder(self.encode), columns.decoder(self.decode)


def _plain_encoder(to_json: Callable[[Any], bytes], decode: Callable[[str], Any]) -> Callable[[Any], str]:
    """Return `StateCodec.encode` for JSON-like values. The encoder runs for every key, so it avoids attribute
    lookups."""
    dumps = marshal.dumps

    def encode(value: Any) -> str:
        try:
            text = to_json(value).decode()
            # A string comes back. In a large value, compiled code finds out faster than is_plain.
            if type(value) is str or (len(text) <= _SMALL and is_plain(value)):
                return text
            back = decode(text)
            if back != value:
                retyped: tuple[Any, Any] | None = (back, value)
            else:
                try:
                    # marshal checks the types of all parts in compiled code and refuses subclasses.
                    dumps(value, _MARSHAL_WITHOUT_REFERENCES)
                    return text
                except ValueError:
                    # marshal also refuses NumPy scalars and deeply nested values.
                    retyped = _retyped(back, value)
            if retyped is None:
                return text
        except Exception as error:
            raise StateValueError(_culprit(value, error, to_json, "cannot be stored")) from error
        raise _changed(value, *retyped)

    return encode


def _typed_encoder(
    described: str, info: msgspec.inspect.Type, to_json: Callable[[Any], bytes], decode: Callable[[str], Any]
) -> Callable[[Any], str]:
    """Return `StateCodec.encode` for values of a declared type. described: the type, for messages."""
    check = check_of(info)

    def encode(value: Any) -> str:
        try:
            text = to_json(value).decode()
            if check is not None and check(value) and is_readable(text):
                return text
            back = decode(text)
            same_type = type(back) is type(value) or not _is_numpy_scalar(value)
            plain = value if same_type else _python_scalar(value)
            equal = type(back) is type(plain) and (back == plain or _same(back, plain))
            retyped = _retyped(back, plain) if equal else (back, value)
            if retyped is None:
                return text
        except Exception as error:
            unwritten = _refusal(to_json, value)
            raise StateValueError(
                f"{_shown(value)} cannot be stored as {described}: {error}"
                if unwritten is None
                else _culprit(value, unwritten, to_json, f"cannot be stored as a part of {described}"),
                cause="The value does not fit the declared type of the state.",
            ) from error
        cause = f"The value does not fit the declared type of the state, {described}."
        raise _changed(value, *retyped, cause=cause)

    return encode


def _changed(value: Any, back: Any, part: Any, cause: str | None = None) -> StateValueError:
    """Return the error for `value`, whose `part` would come back as `back`."""
    if part is value:
        back, part = _differing(back, value)
    of_what = "" if part is value else f"in {_shown(value)}, {_place(value, part)}"
    remedy = None
    if type(part) is tuple and cause is None:
        cause = "A state is kept as JSON, which has lists and no tuples, unless the step declares them."
        remedy = f"Declare the type: stateful(..., state={_declared(value)})."
    elif type(back) is not type(part) and isinstance(part, type(back)):
        kind = type(back).__name__
        cause = f"A state is kept as JSON, which has no {type(part).__name__}: the next run would get a {kind}."
        remedy = f"Store a {kind}, as in {kind}(value); or declare a type with stateful(..., state=MyDataclass)."
    return StateValueError(f"{of_what}{_shown(part)} would come back as {_shown(back)}", cause=cause, remedy=remedy)


def _retyped(back: Any, value: Any) -> tuple[Any, Any] | None:
    """Return the first part that came back with another type, and the part that was stored; None if no type changed.
    An int may stand for a declared float, and a NumPy scalar for its Python value."""
    kind = type(back)
    if kind is not type(value):
        stands_for = (kind is float and type(value) is int) or _is_numpy_scalar(value)
        return None if stands_for else (back, value)
    if kind in _SCALARS:
        return None
    parts = _parts_of(kind)  # type: ignore[arg-type]
    return None if parts is None else parts(back, value)


def _first_retyped(back: Iterable[Any], value: Iterable[Any]) -> tuple[Any, Any] | None:
    for one, other in zip(back, value):  # noqa: B905 - the values are equal; strict= takes a third of the time
        kind = type(one)
        if kind is not type(other) or kind not in _SCALARS:
            found = _retyped(one, other)
            if found is not None:
                return found
    return None


@functools.lru_cache(1024)
def _parts_of(kind: Any) -> Callable[[Any, Any], tuple[Any, Any] | None] | None:
    """Return the function that compares the types of the parts of two equal values; None for a class without parts."""
    if issubclass(kind, dict):
        return lambda back, value: _first_retyped(back, value) or _first_retyped(back.values(), value.values())
    if issubclass(kind, list | tuple):
        return _first_retyped
    if issubclass(kind, set | frozenset):
        return _elements_retyped
    names = _fields(kind)
    if not names:
        return None
    # attrgetter with a single name returns no tuple.
    get = attrgetter(*names, names[0])
    return lambda back, value: _first_retyped(get(back), get(value))


def _elements_retyped(back: Any, value: Any) -> tuple[Any, Any] | None:
    own = {each: each for each in value}
    return _first_retyped(back, [own.get(each, each) for each in back])


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, comparing fields for types without `__eq__`, and moments in UTC.
    Python calls moments of two zones unequal in the repeated hour of a clock change."""
    if isinstance(one, datetime) and isinstance(other, datetime):
        return bool(_in_utc(one) == _in_utc(other))
    if type(one) is not type(other):
        return bool(one == other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        if one.keys() != other.keys():
            one, other = ({_in_utc(key): value for key, value in each.items()} for each in (one, other))
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, set | frozenset):
        return set(map(_in_utc, one)) == set(map(_in_utc, other))
    fields: tuple[str, ...] | None = _fields(type(one))  # type: ignore[arg-type]
    if fields is None:
        return bool(one == other)
    return all(_same(getattr(one, name), getattr(other, name)) for name in fields)


def _in_utc(value: Any) -> Any:
    """Return a moment in UTC; in a tuple or an object with fields, convert the moments inside."""
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return value.astimezone(UTC)
    if isinstance(value, tuple):
        return tuple(map(_in_utc, value))
    fields: tuple[str, ...] | None = _fields(type(value))  # type: ignore[arg-type]
    return value if fields is None else (type(value), *(_in_utc(getattr(value, name)) for name in fields))


@functools.lru_cache(1024)
def _fields(kind: Any) -> tuple[str, ...] | None:
    """Return the field names of a class that msgspec handles by its fields; None for another class."""
    attributes = getattr(kind, "__attrs_attrs__", None)
    if attributes is not None:
        return tuple(each.name for each in attributes)
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return getattr(kind, "__struct_fields__", None)


def has_fields(value: Any) -> bool:
    """Return whether the value's class declares its fields, and so can be the type of a state."""
    return hasattr(value, "_fields") or _fields(type(value)) is not None  # type: ignore[arg-type]


def make_portable(state_type: StateType) -> None:
    """Prepare a type, and all types it is made of, for pickling by value, as types of the user's own file are.

    Replace names of field types by the types: workers lack the module in which to look them up. Remove msgspec's
    cache attribute from each class: it cannot be pickled."""
    seen: set[int] = set()
    waiting = [state_type]
    while waiting:
        kind = waiting.pop()
        if id(kind) in seen:
            continue
        seen.add(id(kind))
        waiting.extend([get_origin(kind), *get_args(kind)])
        if isinstance(kind, type):
            if _NOTE in vars(kind):
                delattr(kind, _NOTE)
            with contextlib.suppress(Exception):
                types = get_type_hints(kind, include_extras=True)
                own = vars(kind).get("__annotations__", {})
                own.update({name: types[name] for name in own})
                waiting.extend([*types.values(), *kind.__bases__])


def _declared(value: Any) -> str:
    """Return the type to declare for a value, as source code."""
    if value is None:
        return "None"
    if isinstance(value, tuple | list):
        parts = list(dict.fromkeys(map(_declared, value))) if isinstance(value, list) else [*map(_declared, value)]
        inner = " | ".join(parts or ["Any"]) if isinstance(value, list) else ", ".join(parts or ["()"])
        return f"{type(value).__name__}[{inner}]"
    if isinstance(value, dict):
        keys, values = (" | ".join(dict.fromkeys(map(_declared, each))) or "Any" for each in (value, value.values()))
        return f"dict[{keys}, {values}]"
    return type(value).__name__


def _pickle(value: Any) -> str:
    try:
        return '"' + base64.b64encode(pickle.dumps(value, protocol=5)).decode() + '"'
    except Exception as error:
        raise StateValueError(
            _culprit(value, error, pickle.dumps, "cannot be pickled"),
            cause="",
            remedy="Keep only what can be pickled; classes in a module of their own, beside the flow's file.",
        ) from error


def _unpickle(text: str) -> Any:
    return pickle.loads(base64.b64decode(text[1:-1]))


def _culprit(value: Any, error: Exception, write: Callable[[Any], Any], verb: str) -> str:
    """Return why `write` refuses a value, with the innermost part that it refuses and where that is:
    "in dict {…}, at ['f'][1], function <lambda> cannot be stored: …". error: what `write` has raised for the value."""
    part, place = value, ""
    for _ in range(DEEPEST):
        parts = _inside(part, attributes=write is pickle.dumps)
        refused = ((at, each, _refusal(write, each)) for at, each in parts)
        found = next(((at, each, why) for at, each, why in refused if why is not None), None)
        if found is None:
            break
        place, part, error = f"{place}{found[0]}", found[1], found[2]
    inside = f"in {_shown(value)}, at {shortened(place)}, " if place else ""
    return f"{inside}{_shown(part)} {verb}: {error}"


def _refusal(write: Callable[[Any], Any], value: Any) -> Exception | None:
    try:
        write(value)
    except Exception as error:
        return error
    return None


def _differing(back: Any, value: Any) -> tuple[Any, Any]:
    """Return the innermost part that does not come back equal: first what comes back, then what it was."""
    for _ in range(DEEPEST):
        parts = (dict(_inside(each)) for each in (back, value)) if type(back) is type(value) else ({}, {})
        backs, values = parts
        found = next((at for at in values if at in backs and _differ(backs[at], values[at])), None)
        if found is None or backs.keys() != values.keys():
            break
        back, value = backs[found], values[found]
    return back, value


def _differ(back: Any, value: Any) -> bool:
    return type(back) is not type(value) or not _same(back, value)


def _place(value: Any, part: Any) -> str:
    """Return where in a value a part is, "at ['a'][1], "; empty where that is not found."""
    found = [("", value)]
    for _ in range(DEEPEST):
        found = [(f"{place}{at}", each) for place, one in found[:MOST_PARTS] for at, each in _inside(one)]
        place = next((place for place, each in found if each is part), None)
        if place is not None:
            return f"at {shortened(place)}, "
    return ""


def _inside(value: Any, *, attributes: bool = False) -> Iterable[tuple[str, Any]]:
    """Yield the parts of a value with the Python text that leads to each. attributes: also those of any object."""
    if isinstance(value, dict):
        yield from ((f"[{shown(key)}]", each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{place}]", each) for place, each in enumerate(value))
    elif has_fields(value):
        kind: Any = type(value)
        yield from ((f".{name}", getattr(value, name)) for name in _fields(kind) or ())
    elif attributes and not isinstance(value, type):
        yield from ((f".{name}", each) for name, each in getattr(value, "__dict__", {}).items())


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {shown(value)}"
