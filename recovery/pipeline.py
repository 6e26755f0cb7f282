"""Pipelines: named nodes with dependencies; each node reads, transforms and writes on Spark."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from uuid import UUID

from recovery.base.wording import counted
from recovery.errors import ConfigurationError
from recovery.operational.ids import check
from recovery.planning.pipeline import order
from recovery.values.functions import check_runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Node:
    """One step of a pipeline.

    read: returns a DataFrame, given the SparkSession; or the result of `incremental`.
    transform: turns it into another DataFrame; None: leaves it unchanged.
    write: writes it. `write` may be called again after a crash, so it should overwrite or merge by key.
    needs: the names of the nodes that must have succeeded before.
    """

    name: str
    read: Callable[[SparkSession], DataFrame]
    write: Callable[[DataFrame], Any]
    transform: Callable[[DataFrame], DataFrame] | None = None
    needs: Sequence[str] = ()

    def __post_init__(self) -> None:
        check(self.name, "name of a node")
        if isinstance(self.needs, str):
            raise ConfigurationError(
                f"node {self.name!r}: needs={self.needs!r} is a text", remedy=f"Write needs=[{self.needs!r}]."
            )
        object.__setattr__(self, "needs", tuple(self.needs))
        for role in ("read", "write", "transform"):
            function = getattr(self, role)
            if not callable(function) and not (role == "transform" and function is None):
                raise ConfigurationError(f"node {self.name!r}: {role}={function!r} is not a function")
            check_runs(f"{role} of node {self.name!r}", function)
        named = getattr(self.read, "named_after", None)
        if callable(named):
            object.__setattr__(self, "read", named(self.name))

    @functools.cached_property
    def definition(self) -> str:
        """A hash of what the node does: the code of its functions, of functions of the same modules that they use, and
        the values they hold, taken on first use. Data and packages do not count."""
        parts = [self.name, *self.needs]
        for function in (self.read, self.transform, self.write):
            parts += _described(function, set())
        return hashlib.sha256("\x1f".join(parts).encode(errors="replace")).hexdigest()[:16]


@dataclass(frozen=True)
class Pipeline:
    """A named set of nodes. Several pipelines may share a recovery directory, but not with a flow."""

    name: str
    nodes: Sequence[Node]

    def __post_init__(self) -> None:
        check(self.name, "name of a pipeline")
        object.__setattr__(self, "nodes", tuple(self.nodes))
        names = [node.name for node in self.nodes]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(
                    f"pipeline {self.name!r} has {counted(names.count(name), 'node')} called {name!r}"
                )
        order({node.name: node.needs for node in self.nodes})
        marks = [key for node in self.nodes if (key := getattr(node.read, "mark_key", None)) is not None]
        for key in marks:
            if marks.count(key) > 1:
                raise ConfigurationError(
                    f"pipeline {self.name!r} has {counted(marks.count(key), 'load')} with the high-water mark "
                    f"{key!r:.80}",
                    cause="The other nodes would skip what one node has loaded.",
                    remedy="Give each load its own key.",
                )


_PLAIN = (bool, int, float, str, bytes, type(None), date, time, timedelta, Decimal, PurePath, Enum, UUID)
_SETTINGS = (*_PLAIN, tuple, frozenset, functools.partial, types.FunctionType, types.MethodType)
_COUNTED = (*_PLAIN, list, tuple, set, frozenset, dict, functools.partial)


def _described(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield texts that distinguish a function or value from others, and that are the same in every process."""
    if id(value) in seen:
        return
    if isinstance(value, _PLAIN):
        yield repr(value)
    elif isinstance(value, types.FunctionType):
        seen.add(id(value))
        yield from _code(value.__code__)
        yield from _described(value.__kwdefaults__ or {}, seen)
        for held in (*(value.__defaults__ or ()), *map(_held, value.__closure__ or ())):
            yield from _described(held, seen)
        for name in sorted(_names(value.__code__)):
            if name in value.__globals__:
                yield from _global(name, value.__globals__[name], value.__module__, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        described = ["\x1e".join(_described(each, seen)) for each in value]
        yield from sorted(described) if isinstance(value, set | frozenset) else described
    elif isinstance(value, dict):
        for key, each in value.items():
            yield repr(key)
            yield from _described(each, seen)
    elif dataclasses.is_dataclass(value) and not callable(value):
        seen.add(id(value))
        yield type(value).__qualname__
        yield from _described({each.name: getattr(value, each.name) for each in dataclasses.fields(value)}, seen)
    elif hasattr(value, "__recovery_definition__"):
        yield from _described(value.__recovery_definition__(), seen)
    elif isinstance(value, functools.partial):
        yield from _described((value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.MethodType):
        yield from _described(value.__func__, seen)
        if id(value.__self__) not in seen:
            seen.add(id(value.__self__))
            yield from _described(_held_by(value.__self__), seen)
    else:
        seen.add(id(value))
        yield getattr(value, "__qualname__", type(value).__qualname__)
        if isinstance(value, type):
            settings = {name: each for name, each in vars(value).items() if isinstance(each, _PLAIN) and name[0] != "_"}
            yield from _described(settings, seen)
        elif callable(value):
            call = inspect.getattr_static(type(value), "__call__", None)
            yield from _described((call if isinstance(call, types.FunctionType) else None, _held_by(value)), seen)


def _held(cell: types.CellType) -> Any:
    """Return the value of an enclosing function's variable; None while it is not set."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _held_by(value: Any) -> dict[str, Any]:
    """Return the settings among the attributes of an object that is called, or whose method is called; not the lists
    and the like that it fills while it works. Empty for a class."""
    if isinstance(value, type):
        return {}
    held = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                held[name] = getattr(value, name)
    return {name: each for name, each in held.items() if isinstance(each, _SETTINGS)}


def _global(name: str, value: Any, module: str, seen: set[int]) -> Iterator[str]:
    """Describe a global that a function uses: functions of its own module and plain values by content, others by
    name."""
    yield name
    if isinstance(value, _COUNTED) or getattr(value, "__module__", None) == module:
        yield from _described(value, seen)


def _code(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        else:
            yield repr(sorted(constant, key=repr)) if isinstance(constant, frozenset) else repr(constant)


def _names(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))
