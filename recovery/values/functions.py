"""Functions that users give: whether a call of one runs its body.

A call of an asynchronous function, or of one with `yield`, only makes an object that would run the body. A caller that
does not run that object does nothing, without an error.
"""

from __future__ import annotations

import inspect
from typing import Any

from recovery.errors import ConfigurationError

_WRITERS = {"DataFrameWriter", "DataFrameWriterV2", "MergeIntoWriter"}
"""What PySpark writes with, once the last method is called."""


def check_runs(what: str, function: object, *, may_yield: bool = False) -> None:
    """Check that a call runs a function's body, as far as the function shows. Raises ConfigurationError.

    what: names the function in the error. may_yield: the caller runs generators.
    """
    called: Any = function if inspect.isroutine(function) else getattr(type(function), "__call__", function)  # noqa: B004
    for each in (function, called):
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            raise ConfigurationError(
                f"{what} is an asynchronous function",
                cause="A call of an `async def` makes a coroutine, and runs nothing of the function.",
                remedy="Write it with `def`; let it run asynchronous code by asyncio.run(...).",
            )
        if inspect.isgeneratorfunction(each) and not may_yield:
            raise ConfigurationError(
                f"{what} is a generator function",
                cause="The function has a `yield`: a call makes a generator, and runs nothing of the function.",
                remedy="Take the `yield` out.",
            )


def not_run(result: object) -> str | None:
    """Return what a result is if it stands for work that nobody has done, such as "a coroutine"; None if it does not.

    A coroutine or generator is closed, which runs nothing of its body either.
    """
    if inspect.iscoroutine(result):
        result.close()
        return "a coroutine"
    if inspect.isgenerator(result):
        result.close()
        return "a generator"
    if inspect.isasyncgen(result):
        return "an asynchronous generator"
    if inspect.isawaitable(result):
        return f"an awaitable {type(result).__name__}"
    if isinstance(result, map | filter):
        return f"a {type(result).__name__} object, of which nothing was taken"
    if type(result).__name__ in _WRITERS and type(result).__module__.startswith("pyspark."):
        return f"a {type(result).__name__}, which was not told to save"
    return None
