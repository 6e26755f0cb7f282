"""Values from pickles of unknown origin: plain built-in types, and classes that the caller allows by name.

`recovery.values.pickles` reads them within bounds; here are the names, and the form in JSON.
"""

from __future__ import annotations

import importlib
import math
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from recovery.errors import ConfigurationError, StateValueError
from recovery.values.codec import StateCodec
from recovery.values.pickles import parts, read

PLAIN_NAMES = {"builtins.set": set, "builtins.frozenset": frozenset}
"""Built-in types that older protocols name; later protocols have codes for these types."""


def _built(value: Any) -> Any:
    if isinstance(value, deque):
        return list(value)
    raise NotImplementedError(f"a {type(value).__name__}")


_PLAIN = StateCodec(None)
_to_json = msgspec.json.Encoder(enc_hook=_built).encode


class Unpickler:
    """Reads pickles. allowed: names like module.Class. Raises ConfigurationError for a name that is not a class's."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self._classes: dict[str, type] = {**PLAIN_NAMES, **{name: _class(name) for name in allowed}}

    def value(self, data: bytes) -> Any:
        """Return the value of a pickle, bounded in size and depth. Raises NamedClassError, or ValueError if the pickle
        cannot be read."""
        return read(data, self._classes)

    def text(self, data: bytes) -> tuple[str, frozenset[str]]:
        """Return the value of a pickle as the JSON text of a state, and the names of the types in the value that JSON
        lacks: a step reads them back if its state= declares them. Raises NamedClassError, or ValueError if the value
        has no such form."""
        value = self.value(data)
        try:
            others = frozenset(_others(value))
            if not others:
                return _PLAIN.encode(value), others
            return _to_json(value).decode(), others
        except StateValueError as error:
            raise ValueError(f"it has no form in JSON: {error.found}") from error
        except (TypeError, ValueError, RecursionError, NotImplementedError) as error:
            raise ValueError(f"it has no form in JSON: {str(error).partition(chr(10))[0]}") from error


def _class(name: str) -> type:
    """Import an allowed class. The class's module runs: the caller named that class."""
    words = name.split(".")
    cause = "The name is misspelt, the class's module is not on the path, or the name is a function's."
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


def _others(value: Any) -> Iterator[str]:
    """Yield the names of the types that JSON lacks. Raises ValueError for what JSON would not give back."""
    for each in parts(value):
        kind = type(each)
        if isinstance(each, float) and not math.isfinite(each):
            raise ValueError(str(each))
        if kind not in (dict, list, str, int, float, bool, type(None)):
            yield kind.__name__
        if isinstance(each, dict) and not all(type(key) is str for key in each):
            if len(msgspec.json.decode(_to_json(dict.fromkeys(each)))) < len(each):
                raise ValueError("two keys of a dictionary are the same as text")
            yield "dict with keys that are not text"
