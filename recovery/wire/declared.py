"""Calls that are declared as the methods of a protocol. A call is sent as an array of its name and its arguments.

Both ends read the types of arguments and results from the annotations, so received bytes can only become values of
these types.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path, PurePath
from typing import (
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from recovery.wire.frames import WireError

Value = Any
"""Text, bytes or None: msgspec has no type for texts and bytes together. See `check_values`."""
Row = tuple[str, Value]

C = TypeVar("C")
P = ParamSpec("P")


class Verb(NamedTuple):
    """A declared call. protocol: the class that declares it. is_stream: its results are the items of an iterator."""

    name: str
    protocol: type
    is_stream: bool
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


class DeclaredCalls(Generic[C]):
    """The calls that a protocol and its bases declare. Their arguments are given by position."""

    def __init__(self, protocol: type) -> None:
        """Every type is looked at here, before there are threads: msgspec is not safe while it first does so."""
        self._verbs: dict[str, Verb] = {}
        forms = []
        for base in protocol.__mro__:
            for name, function in vars(base).items():
                if inspect.isfunction(function) and not name.startswith("_"):
                    assert name not in self._verbs, f"{name} is declared twice"
                    types = get_type_hints(function)
                    self._verbs[name] = _verb(name, base, types.pop("return"))
                    forms.append(_form(name, types))
        # A union that is made when it runs.
        self._call = msgspec.msgpack.Decoder(Union[tuple(forms)], dec_hook=_from_text)  # noqa: UP007

    def verb(self, name: str) -> Verb:
        """Return a declared call."""
        return self._verbs[name]

    def write_call(
        self, call: Callable[Concatenate[C, P], Any], *arguments: P.args, **named: P.kwargs
    ) -> tuple[Verb, bytes]:
        """Return a call, and the message that asks for it."""
        assert not named, "arguments of calls are given by position"
        return self._verbs[call.__name__], encode((call.__name__, *arguments))

    def read_call(self, body: bytes) -> tuple[Verb, tuple[Any, ...]]:
        """Return the call that a message asks for, and its arguments. Raises WireError."""
        call = read(self._call.decode, body, "a call")
        return self._verbs[type(call).__name__], msgspec.structs.astuple(call)


def check_values(values: Iterable[Value]) -> None:
    """Raise ValueError unless these are texts, bytes or None."""
    for value in values:
        if not isinstance(value, str | bytes | None):
            raise ValueError(f"a value of type {type(value).__name__}")


def read(decode: Callable[[bytes], Any], body: bytes, what: str = "a message") -> Any:
    """Return the content of a message. Raises WireError."""
    try:
        return decode(body)
    except (ValueError, TypeError, RecursionError) as error:
        # msgspec's own errors are ValueErrors.
        raise WireError(f"{what} that cannot be read: {error}") from None


def _form(name: str, types: dict[str, Any]) -> type[msgspec.Struct]:
    """Return the type of a call as it is sent."""
    return msgspec.defstruct(
        name, list(types.items()), tag=name, array_like=True, frozen=True, forbid_unknown_fields=True
    )


def _verb(name: str, protocol: type, result: Any) -> Verb:
    if result is bytes:
        # The body of the message itself: rows in bulk are not copied.
        return Verb(name, protocol, False, bytes, bytes)
    is_stream = get_origin(result) is Iterator
    [item] = get_args(result) if is_stream else [result]
    decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(item, dec_hook=_from_text).decode
    if item == list[Row]:
        decode = partial(_rows, decode)
    return Verb(name, protocol, is_stream, encode, partial(read, decode, what=f"an answer to {name}"))


def _rows(decode: Callable[[bytes], list[Row]], body: bytes) -> list[Row]:
    rows = decode(body)
    check_values(value for _, value in rows)
    return rows


def _from_text(kind: type, text: Any) -> Any:
    if issubclass(kind, PurePath) and isinstance(text, str):
        return Path(text)
    raise TypeError(f"{kind.__name__} is not sent")


def _plain(found: Any) -> Any:
    """Return a value of an abstract type as one that msgspec knows."""
    if isinstance(found, PurePath):
        return str(found)
    if isinstance(found, Mapping):
        return dict(found)
    if isinstance(found, Sequence | Set):
        return list(found)
    raise TypeError(f"{type(found).__name__} is not sent")


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
"""Return a value as a message."""
