"""A reader of pickles that somebody else made: it builds plain values, and calls only names that the caller allowed.

A pickle is a program, and a short one can ask for endless work: a value that names its parts repeatedly, keys that take
a year to hash, numbers that hash alike. So each instruction is counted as work before it is done, and what a
dictionary or a set may have as keys is bounded by size, depth and time. The work is in proportion to the pickle's own
size. Memory is too, because nothing is allocated by an index or a length that a pickle claims. Every loop is Python,
so a signal ends it.

Pickles of Python 3 are read, of every protocol. Instructions that only Python 2 wrote, persistent ids, buffers beside
the pickle and numbered extensions are refused.
"""

from __future__ import annotations

import pickle
import pickletools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

MOST_BYTES = 100_000_000
"""The largest pickle that is read."""
MOST_DEPTH = 300
"""The deepest nesting of a value."""
KEY_PARTS, KEY_DEPTH = 1_000, 20
"""The largest key of a dictionary, or member of a set."""
LONGEST_NAME = 200
SPARE = 10_000
SIZE_PER_BYTE, WORK_PER_BYTE = 100, 10
"""How large a value may be when it is written out, in characters and parts, and how many parts of keys may be hashed,
for each byte of its pickle. Python's own pickles stay far below this limit, also where a value holds one part many
times."""
_KEYS_PER_LOOK = 500
_SPARE_INSERTING_S, _INSERTING_S = 0.2, 10e-6
"""The processor time that inserting keys may take: once, and for each part of a key."""
_WITHOUT_PARTS = frozenset({type(None), bool, int, float, str, bytes, bytearray})
_MARK = object()


class NamedClassError(ValueError):
    """A pickle names a class or a function that is not allowed. name: with its module."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it needs {name}")
        self.name = name


def read(data: bytes, classes: Mapping[str, type]) -> Any:
    """Return the value of a pickle. classes: those that it may call, by their full names, and set and frozenset.

    Raises NamedClassError, or ValueError if the pickle cannot be read or is larger than `check_size` allows."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has {len(data):,} bytes, more than {MOST_BYTES:,}")
    try:
        value = _Machine(data, classes).run()
    except NamedClassError:
        raise
    except Exception as error:
        raise ValueError(f"it cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
    check_size(value, SPARE + SIZE_PER_BYTE * len(data))
    return value


def check_size(value: Any, most: int) -> None:
    """Raise ValueError for a value that is nested too deep, contains itself, or is larger than `most` with each of its
    parts written out as often as it occurs."""
    size = 0
    for part, depth in _parts(value):
        kind = type(part)
        size += 1
        if kind is str or kind is bytes or kind is bytearray:
            size += len(part)
        elif kind is int:
            size += part.bit_length() // 8
        if size > most:
            raise ValueError(f"it is far larger than its pickle, {most:,} characters and parts, or contains itself")
        if depth > MOST_DEPTH:
            raise ValueError(f"it is nested more than {MOST_DEPTH} deep, or contains itself")


def parts(value: Any) -> Iterator[Any]:
    """Yield a value and everything in it, as often as it occurs. The iteration is endless for a value that contains
    itself."""
    return (part for part, _ in _parts(value))


def _parts(value: Any) -> Iterator[tuple[Any, int]]:
    """Yield a value and everything in it, with the depth."""
    left = [(value, 1)]
    while left:
        part, depth = left.pop()
        yield part, depth
        kind = type(part)
        if kind in _WITHOUT_PARTS:
            continue
        if kind is list or kind is tuple:
            left += [(each, depth + 1) for each in part]
        elif kind is dict:
            left += [(each, depth + 1) for each in part.values()]
            left += [(each, depth + 1) for each in part]
        else:
            left += [(each, depth + 1) for each in _within(part)]


def _within(part: Any) -> Iterable[Any]:
    """Return the parts of an instance of a rarer type."""
    if isinstance(part, type | Enum):
        return ()
    found: list[Any] = [*getattr(part, "__dict__", {}).values()]
    for kind in type(part).__mro__:
        found += [getattr(part, name) for name in _slots(kind) if hasattr(part, name)]
    if isinstance(part, dict):
        found += [*part.keys(), *part.values()]
    elif isinstance(part, list | tuple | set | frozenset | deque):
        found += part
    return found


def _slots(kind: type) -> tuple[str, ...]:
    found = kind.__dict__.get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)


class _Machine:
    """Runs one pickle."""

    def __init__(self, data: bytes, classes: Mapping[str, type]) -> None:
        self._data = data
        self._classes = classes
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._work_left = SPARE + WORK_PER_BYTE * len(data)
        self._key_parts = 0
        self._inserting_s = 0.0

    def run(self) -> Any:
        """Return the value."""
        stack = self._stack
        for code, argument, _ in pickletools.genops(self._data):
            name = code.name
            if name in _ARGUMENTS:
                stack.append(argument)
            elif name in _NEW:
                stack.append(_NEW[name]())
            elif name in _DOES:
                _DOES[name](self, argument)
            elif name not in ("FRAME", "STOP"):
                raise ValueError(f"{name} is no part of a plain pickle of Python 3")
        value = self._pop()
        if stack:
            raise ValueError("parts are left over")
        return value

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError("a mark is no value")
        return value

    def _top(self) -> Any:
        if self._stack[-1] is _MARK:
            raise ValueError("a mark is no value")
        return self._stack[-1]

    def _last(self, count: int) -> tuple[Any, ...]:
        return tuple([self._pop() for _ in range(count)][::-1])

    def _marked(self) -> list[Any]:
        """Take everything after the last mark."""
        at = len(self._stack) - 1
        while at >= 0 and self._stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise ValueError("a mark is missing")
        found = self._stack[at + 1 :]
        del self._stack[at:]
        return found

    def _work(self, amount: int) -> None:
        self._work_left -= amount
        if self._work_left < 0:
            raise ValueError("it takes too much work for its size")

    def _checked(self, keys: Iterable[Any]) -> Iterator[Any]:
        """Yield each key when it may be hashed, and measure how long the keys take to insert."""
        began_s, seen = time.thread_time(), 0
        for key in keys:
            seen += 1 if type(key) is str else self._key_size(key)
            yield key
            if seen > _KEYS_PER_LOOK:
                now_s = time.thread_time()
                self._inserting_s += now_s - began_s
                self._key_parts += seen
                began_s, seen = now_s, 0
                if self._inserting_s > _SPARE_INSERTING_S + _INSERTING_S * self._key_parts:
                    raise ValueError("it has keys that hash alike")
        self._key_parts += seen

    def _key_size(self, key: Any) -> int:
        """Return how much hashing a key takes. A tuple is hashed by its parts, as often as they occur."""
        size = 0
        for part, depth in _parts(key):
            size += 1
            if isinstance(part, int):
                size += part.bit_length() // 512
            if size > KEY_PARTS or depth > KEY_DEPTH:
                raise ValueError(f"a key has more than {KEY_PARTS} parts, or is nested more than {KEY_DEPTH} deep")
        self._work(size)
        return size

    def _set_items(self, target: Any, flat: list[Any]) -> None:
        for key, value in zip(self._checked(flat[::2]), flat[1::2], strict=True):
            target[key] = value

    def _add(self, target: Any, members: Iterable[Any]) -> None:
        for each in self._checked(members):
            target.add(each)

    def _call(self, kind: Any, given: Any, named: Any = None, *, new: bool = False) -> None:
        """Put a new instance on the stack. new: by `__new__` alone."""
        if not isinstance(kind, type) or not isinstance(given, tuple):
            raise ValueError("only a class can be called, with a tuple")
        self._give((given, named))
        if kind in (set, frozenset):
            members = set[Any]()
            self._add(members, *given)
            self._stack.append(kind(members))
        elif new:
            self._stack.append(kind.__new__(kind, *given, **(named or {})))
        else:
            self._stack.append(kind(*given))

    def _give(self, value: Any) -> None:
        """Count what a class is given, as often as it occurs: the class may look at all of it, for an error's text."""
        for _ in _parts(value):
            self._work(1)

    def _named(self, module: Any, name: Any) -> type:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise ValueError("a name is no text")
        # Protocols up to 2 have Python 2's name of the module.
        full = f"{'builtins' if module == '__builtin__' else module}.{name}"
        found = self._classes.get(full)
        if not (len(full) <= LONGEST_NAME and all(word.isidentifier() for word in full.split("."))):
            raise ValueError(f"it names {full!r:.80}, which is no class")
        if found is None:
            raise NamedClassError(full)
        return found

    def do_proto(self, version: int) -> None:
        if version > pickle.HIGHEST_PROTOCOL:
            raise ValueError(f"protocol {version} is unknown")

    def do_mark(self, _: Any) -> None:
        self._stack.append(_MARK)

    def do_pop(self, _: Any) -> None:
        self._stack.pop()

    def do_pop_mark(self, _: Any) -> None:
        self._marked()

    def do_dup(self, _: Any) -> None:
        self._stack.append(self._top())

    def do_list(self, _: Any) -> None:
        self._stack.append(self._marked())

    def do_tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._marked()))

    def do_tuple1(self, _: Any) -> None:
        self._stack.append(self._last(1))

    def do_tuple2(self, _: Any) -> None:
        self._stack.append(self._last(2))

    def do_tuple3(self, _: Any) -> None:
        self._stack.append(self._last(3))

    def do_dict(self, _: Any) -> None:
        found: dict[Any, Any] = {}
        self._set_items(found, self._marked())
        self._stack.append(found)

    def do_frozenset(self, _: Any) -> None:
        found: set[Any] = set()
        self._add(found, self._marked())
        self._stack.append(frozenset(found))

    def do_append(self, _: Any) -> None:
        value = self._pop()
        self._top().append(value)

    def do_appends(self, _: Any) -> None:
        found = self._marked()
        self._top().extend(found)

    def do_setitem(self, _: Any) -> None:
        pair = self._last(2)
        self._set_items(self._top(), [*pair])

    def do_setitems(self, _: Any) -> None:
        found = self._marked()
        self._set_items(self._top(), found)

    def do_additems(self, _: Any) -> None:
        found = self._marked()
        self._add(self._top(), found)

    def do_put(self, index: Any) -> None:
        self._memo[index] = self._top()

    def do_memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._top()

    def do_get(self, index: Any) -> None:
        self._stack.append(self._memo[index])

    def do_global(self, words: str) -> None:
        module, _, name = words.partition(" ")
        self._stack.append(self._named(module, name))

    def do_stack_global(self, _: Any) -> None:
        self._stack.append(self._named(*self._last(2)))

    def do_reduce(self, _: Any) -> None:
        self._call(*self._last(2))

    def do_newobj(self, _: Any) -> None:
        self._call(*self._last(2), new=True)

    def do_newobj_ex(self, _: Any) -> None:
        self._call(*self._last(3), new=True)

    def do_inst(self, words: str) -> None:
        given = tuple(self._marked())
        module, _, name = words.partition(" ")
        self._call(self._named(module, name), given)

    def do_obj(self, _: Any) -> None:
        kind, *given = self._marked()
        self._call(kind, tuple(given))

    def do_build(self, _: Any) -> None:
        state, target = self._pop(), self._top()
        if isinstance(target, type):
            raise ValueError("a class is not changed")
        self._give(state)
        if hasattr(target, "__setstate__"):
            target.__setstate__(state)
            return
        fields, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
        target.__dict__.update(fields or {})
        for name, value in (slots or {}).items():
            setattr(target, name, value)


_ARGUMENTS = frozenset({
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
})  # fmt: skip
"""Instructions that push their argument."""
_NEW: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}
"""Instructions that push a new value."""
_SAME = {"BINPUT": "PUT", "LONG_BINPUT": "PUT", "BINGET": "GET", "LONG_BINGET": "GET"}
_DOES: dict[str, Callable[[_Machine, Any], None]] = {
    code.name: does
    for code in pickletools.opcodes
    if (does := getattr(_Machine, f"do_{_SAME.get(code.name, code.name).lower()}", None)) is not None
}
