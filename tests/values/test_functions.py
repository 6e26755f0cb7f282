"""Functions that a call does not run: seen from the function, or from what it returns."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from recovery.errors import ConfigurationError
from recovery.values.functions import check_runs, not_run


async def asynchronous(*_: Any) -> None: ...


def yielding(*_: Any) -> Any:
    yield


async def both(*_: Any) -> Any:
    yield


def plain(*_: Any) -> None: ...


class Called:
    async def __call__(self, *_: Any) -> None: ...


class Yields:
    def __call__(self, *_: Any) -> Any:
        yield


class Methods:
    async def asynchronous(self, *_: Any) -> None: ...
    def yielding(self, *_: Any) -> Any:
        yield

    def plain(self, *_: Any) -> None: ...
    @staticmethod
    async def static(*_: Any) -> None: ...


@functools.wraps(asynchronous)
def runs_it(*_: Any) -> None:
    asyncio.run(asynchronous())


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (asynchronous, "asynchronous"),
        (both, "asynchronous"),
        (yielding, "generator"),
        (Called(), "asynchronous"),
        (Yields(), "generator"),
        (Methods().asynchronous, "asynchronous"),
        (Methods.static, "asynchronous"),
        (Methods().yielding, "generator"),
        (functools.partial(asynchronous, 1), "asynchronous"),
        (functools.partial(Methods().yielding, 1), "generator"),
    ],
)
def test_a_function_that_a_call_does_not_run(function: Any, what: str) -> None:
    """Refused by its kind; a generator function is welcome where generators are run."""
    with pytest.raises(ConfigurationError, match=rf"the sink is an? {what} function"):
        check_runs("the sink", function)
    if what == "generator":
        check_runs("update", function, may_yield=True)
    else:
        with pytest.raises(ConfigurationError):
            check_runs("update", function, may_yield=True)


@pytest.mark.parametrize(
    "function", [plain, Methods().plain, runs_it, print, functools.partial(plain, 1), Methods, None]
)
def test_what_a_call_runs(function: Any) -> None:
    """Functions, methods and objects of any other kind; also one that runs an asynchronous one."""
    check_runs("the sink", function)


class DataFrameWriter:
    __module__ = "pyspark.sql.readwriter"


class Awaitable:
    def __await__(self) -> Any:
        yield


@pytest.mark.parametrize(
    ("result", "what"),
    [
        (lambda: asynchronous(), "a coroutine"),
        (lambda: yielding(), "a generator"),
        (lambda: both(), "an asynchronous generator"),
        (lambda: Awaitable(), "an awaitable Awaitable"),
        (lambda: map(print, [1]), "a map object, of which nothing was taken"),
        (lambda: filter(print, [1]), "a filter object, of which nothing was taken"),
        (lambda: DataFrameWriter(), "a DataFrameWriter, which was not told to save"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_result_that_nobody_has_run(result: Any, what: str) -> None:
    """It says what it is; a coroutine is closed, so that Python does not warn of it later."""
    assert not_run(result()) == what


@pytest.mark.parametrize("result", [None, 0, "text", [1], iter([1]), {"a": 1}, print, object()])
def test_any_other_result(result: Any) -> None:
    """Values say nothing about work."""
    assert not_run(result) is None
