"""How a state value becomes text in SQLite, and comes back equal to itself or not at all."""

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

from recovery.errors import ConfigurationError, StateValueError, shown

StateType = Any
"""None for plain JSON-like values, "pickle", or a type: dataclass, NamedTuple, tuple[int, float], …"""

_NOTE = "__msgspec_cache__"
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_MARSHAL_WITHOUT_REFERENCES = 2


def _is_numpy_scalar(value: Any) -> bool:
    """Whoever has one has imported NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _python_scalar(value: Any) -> Any:
    """NumPy's and pandas' scalars are stored as the Python values they stand for."""
    if _is_numpy_scalar(value):
        plain = value.item()
        # Of nanoseconds NumPy gives their number, and of numbers that Python does not have, themselves.
        if not _is_numpy_scalar(plain) and not (value.dtype.kind in "mM" and isinstance(plain, int)):
            return plain
    raise NotImplementedError(f"a {type(value).__name__} is not a JSON-like value")


class StateCodec:
    """Encodes and decodes the state values of one step.

    `encode(value)` gives JSON text. Raises StateValueError when the value would not come back equal:
    NaN, tuples, bytes, dicts with keys that are not strings, objects of undeclared types, and instances of subclasses,
    at any depth: a defaultdict would come back as a dict.
    """

    def __init__(self, state_type: StateType = None) -> None:
        self.state_type = state_type
        self.encode: Callable[[Any], str]
        self.decode: Callable[[str], Any]
        self._to_json = msgspec.json.Encoder(enc_hook=_python_scalar).encode
        if state_type is None:
            self.decode = msgspec.json.Decoder().decode
            self.encode = _plain_encoder(self._to_json, self.decode)
        elif state_type == "pickle":
            self.decode = _unpickle
            self.encode = _pickle
        else:
            try:
                if isinstance(msgspec.inspect.type_info(state_type), msgspec.inspect.CustomType):
                    raise TypeError("its instances have no form in JSON")
                self.decode = msgspec.json.Decoder(state_type).decode
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
            self.encode = self._encode_typed

    def _encode_typed(self, value: Any) -> str:
        try:
            encoded = self._to_json(value)
            back = self.decode(encoded.decode())
            same_type = type(back) is type(value) or not _is_numpy_scalar(value)
            plain = value if same_type else _python_scalar(value)
            equal = type(back) is type(plain) and (back == plain or _same(back, plain))
            retyped = _retyped(back, plain) if equal else (back, value)
            if retyped is None:
                return encoded.decode()
        except Exception as error:
            raise StateValueError(
                f"{_shown(value)} cannot be stored as {self.state_type!r}: {error}",
                cause="The value does not fit the declared type of the state.",
            ) from error
        cause = f"The value does not fit the declared type of the state, {self.state_type!r}."
        raise _changed(value, *retyped, cause=cause)


def _plain_encoder(to_json: Callable[[Any], bytes], decode: Callable[[str], Any]) -> Callable[[Any], str]:
    """`StateCodec.encode` for JSON-like values. It is called for every key, so it looks nothing up."""
    dumps = marshal.dumps

    def encode(value: Any) -> str:
        try:
            text = to_json(value).decode()
            # These come back as they are, and a text may be long.
            kind = type(value)
            if kind is str or kind is int or kind is bool:
                return text
            back = decode(text)
            if back != value:
                retyped: tuple[Any, Any] | None = (back, value)
            else:
                try:
                    # A look at all types in compiled code, which refuses subclasses.
                    dumps(value, _MARSHAL_WITHOUT_REFERENCES)
                    return text
                except ValueError:
                    # Or some scalar of NumPy's, or what is nested deep.
                    retyped = _retyped(back, value)
            if retyped is None:
                return text
        except Exception as error:
            raise StateValueError(f"{_shown(value)} cannot be stored: {error}") from error
        raise _changed(value, *retyped)

    return encode


def _changed(value: Any, back: Any, part: Any, cause: str | None = None) -> StateValueError:
    """The error for a value of which a part would come back as something else."""
    of_what = "" if part is value else f"in {_shown(value)}, "
    remedy = None
    if type(back) is not type(part) and isinstance(part, type(back)):
        kind = type(back).__name__
        cause = f"A state is kept as JSON, which has no {type(part).__name__}: the next run would get a {kind}."
        remedy = f"Store a {kind}, as in {kind}(value); or declare a type with stateful(..., state=MyDataclass)."
    return StateValueError(f"{of_what}{_shown(part)} would come back as {_shown(back)}", cause=cause, remedy=remedy)


def _retyped(back: Any, value: Any) -> tuple[Any, Any] | None:
    """The first part of a value that came back with another type, and what was stored; None where all parts kept
    theirs. A whole number may be stored where a float is declared, and a scalar of NumPy's for what it stands for."""
    kind = type(back)
    if kind is not type(value):
        stands_for = (kind is float and type(value) is int) or _is_numpy_scalar(value)
        return None if stands_for else (back, value)
    if kind in _SCALARS:
        return None
    parts = _parts_of(kind)  # type: ignore[arg-type]
    return None if parts is None else parts(back, value)


def _first_retyped(back: Iterable[Any], value: Iterable[Any]) -> tuple[Any, Any] | None:
    for one, other in zip(back, value):  # noqa: B905 - of equal values; the argument takes a third of the time
        kind = type(one)
        if kind is not type(other) or kind not in _SCALARS:
            found = _retyped(one, other)
            if found is not None:
                return found
    return None


@functools.lru_cache(1024)
def _parts_of(kind: Any) -> Callable[[Any, Any], tuple[Any, Any] | None] | None:
    """What compares the types of the parts of two equal values of a class; None for a class without parts."""
    if issubclass(kind, dict):
        return lambda back, value: _first_retyped(back, value) or _first_retyped(back.values(), value.values())
    if issubclass(kind, list | tuple):
        return _first_retyped
    if issubclass(kind, set | frozenset):
        return _elements_retyped
    names = _fields(kind)
    if not names:
        return None
    # With one name it gives no tuple.
    get = attrgetter(*names, names[0])
    return lambda back, value: _first_retyped(get(back), get(value))


def _elements_retyped(back: Any, value: Any) -> tuple[Any, Any] | None:
    own = {each: each for each in value}
    return _first_retyped(back, [own.get(each, each) for each in back])


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, or would be if types without an equality of their own compared their fields, and
    moments of two zones were equal in the hour that comes twice, too, where Python says that they never are."""
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
    """A moment as one in UTC, also inside of what can be a key or an element of a set."""
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return value.astimezone(UTC)
    if isinstance(value, tuple):
        return tuple(map(_in_utc, value))
    fields: tuple[str, ...] | None = _fields(type(value))  # type: ignore[arg-type]
    return value if fields is None else (type(value), *(_in_utc(getattr(value, name)) for name in fields))


@functools.lru_cache(1024)
def _fields(kind: Any) -> tuple[str, ...] | None:
    """The names of the fields of a class that msgspec knows by them; None for another."""
    attributes = getattr(kind, "__attrs_attrs__", None)
    if attributes is not None:
        return tuple(each.name for each in attributes)
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return getattr(kind, "__struct_fields__", None)


def has_fields(value: Any) -> bool:
    """Whether a value is of a class that declares its fields, which can be given as the type of a state."""
    return hasattr(value, "_fields") or _fields(type(value)) is not None  # type: ignore[arg-type]


def make_portable(state_type: StateType) -> None:
    """Make a type fit to be sent to the workers by value, as those of the user's own file are, with all that it is made
    of: its fields' types take the place of their names, which are looked up in a module that workers do not have; and
    the note that msgspec leaves on a class it has seen is taken off, for it could not be pickled."""
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


def _pickle(value: Any) -> str:
    try:
        return '"' + base64.b64encode(pickle.dumps(value, protocol=5)).decode() + '"'
    except Exception as error:
        raise StateValueError(
            f"{_shown(value)} cannot be pickled: {error}",
            cause="",
            remedy="Keep only what can be pickled; classes in a module of their own, beside the flow's file.",
        ) from error


def _unpickle(text: str) -> Any:
    return pickle.loads(base64.b64decode(text[1:-1]))


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {shown(value)}"
