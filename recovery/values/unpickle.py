"""Values from pickles of unknown origin: plain built-in types, and classes that the caller allows by name.

A pickle is a program that may call anything it names. This one may name nothing else, so nothing else is called.
"""

from __future__ import annotations

import importlib
import io
import math
import pickle
import pickletools
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from recovery.errors import ConfigurationError, StateValueError
from recovery.values.codec import StateCodec

PLAIN_NAMES = {"builtins.set": set, "builtins.frozenset": frozenset}
"""Built-in types that older protocols name; later ones have codes for them."""
LARGE_BYTES = 100
"""A pickle of at most this size cannot grow into a large value by naming its parts repeatedly."""
MOST_PARTS = 5_000_000
_RISKY = (b"r", b"p", b"\x96", b"\x8d", b"\x8e", b"\x8b")
"""Codes whose argument makes the reader allocate memory: indexes of the memo, and lengths."""


def _built(value: Any) -> Any:
    if isinstance(value, deque):
        return list(value)
    raise NotImplementedError(f"a {type(value).__name__}")


_PLAIN = StateCodec(None)
_to_json = msgspec.json.Encoder(enc_hook=_built).encode


class NamedClassError(ValueError):
    """A pickle names a class or a function that is not allowed. name: with its module."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it needs {name}")
        self.name = name


class Unpickler:
    """Reads pickles. allowed: names like module.Class. Raises ConfigurationError for one that is not a class."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self._classes: dict[str, type] = {**PLAIN_NAMES, **{name: _class(name) for name in allowed}}

    def value(self, data: bytes) -> Any:
        """Return the value of a pickle. Raises NamedClassError, or ValueError if it cannot be read."""
        if any(code in data for code in _RISKY):
            _check_sizes(data)
        try:
            return _Limited(data, self._classes).load()
        except NamedClassError:
            raise
        except Exception as error:
            raise ValueError(f"it cannot be read: {type(error).__name__}: {error}") from error

    def text(self, data: bytes) -> tuple[str, frozenset[str]]:
        """Return the value of a pickle as the JSON text of a state, and the names of the types in it that JSON lacks: a
        step reads them back if its state= declares them. Raises NamedClassError, or ValueError if it has no such
        form."""
        value = self.value(data)
        if len(data) > LARGE_BYTES:
            _check_parts(value)
        try:
            return _PLAIN.encode(value), frozenset()
        except StateValueError:
            pass
        _check_parts(value)
        try:
            return _to_json(value).decode(), frozenset(_others(value))
        except (TypeError, ValueError, RecursionError, NotImplementedError) as error:
            raise ValueError(f"it has no form in JSON: {str(error).splitlines()[0]}") from error


class _Limited(pickle.Unpickler):
    def __init__(self, data: bytes, classes: dict[str, type]) -> None:
        super().__init__(io.BytesIO(data))
        self._classes = classes

    def find_class(self, module: str, name: str) -> type:
        # Protocols up to 2 have Python 2's name of the module.
        full = f"{'builtins' if module == '__builtin__' else module}.{name}"
        found = self._classes.get(full)
        if found is None:
            raise NamedClassError(full)
        return found


def _class(name: str) -> type:
    """Import an allowed class. Its module runs: the caller named it."""
    words = name.split(".")
    cause = "It is misspelt, its module is not on the path, or it is a function."
    for split in range(len(words) - 1, 0, -1):
        module = ".".join(words[:split])
        try:
            found: Any = importlib.import_module(module)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
                continue
            # The module is there, and needs what is not, such as Bytewax itself.
            cause = f"Its module {module} cannot be imported: {type(error).__name__}: {error}"
            break
        for word in words[split:]:
            found = getattr(found, word, None)
        if isinstance(found, type):
            return found
        break
    raise ConfigurationError(
        f"{name!r:.120} is not a class that can be imported here",
        cause=cause,
        remedy="Name it as module.Class, set PYTHONPATH to the directory of the module, and install what that imports.",
    )


def _check_sizes(data: bytes) -> None:
    """Raise ValueError for an index or a length beyond the pickle's own size: the reader would allocate as much."""
    try:
        for code, argument, _ in pickletools.genops(data):
            if code.name in ("PUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= len(data):
                raise ValueError(f"an index of {argument}")
    except Exception as error:
        raise ValueError(f"it cannot be read: {error}") from error


def _parts(value: Any) -> Iterator[Any]:
    """Yield a value and everything in it, as often as it is written."""
    left = [value]
    while left:
        each = left.pop()
        yield each
        if isinstance(each, dict):
            left += each.keys()
            left += each.values()
        elif isinstance(each, list | tuple | set | frozenset | deque):
            left += each
        elif hasattr(each, "__dict__") and not isinstance(each, type):
            left += vars(each).values()


def _check_parts(value: Any) -> None:
    for number, each in enumerate(_parts(value)):
        if number > MOST_PARTS:
            raise ValueError(f"it has more than {MOST_PARTS:,} parts, or contains itself")
        if isinstance(each, float) and not math.isfinite(each):
            raise ValueError(f"it has no form in JSON: {each}")


def _others(value: Any) -> Iterator[str]:
    for each in _parts(value):
        if type(each) not in (dict, list, str, int, float, bool, type(None)):
            yield type(each).__name__
        if type(each) is dict and not all(type(key) is str for key in each):
            yield "dict with keys that are not text"
