"""Whether a step's function can be sent to the workers, told before Spark finds that it cannot."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from pyspark import cloudpickle

from recovery.base.ids import StepId
from recovery.base.tracebacks import headline
from recovery.errors import ConfigurationError


def check_sendable(step_id: StepId, sent: Callable[..., Any], function: Any) -> None:
    """Raises ConfigurationError where what is sent for a step cannot be pickled, with the names that the user's
    function in it takes from its surroundings and that cannot. PySpark would print a traceback."""
    error = _refusal(sent)
    if error is not None:
        names = ", ".join(dict.fromkeys(_unsendable(function, set())))
        raise ConfigurationError(
            f"step {step_id!r}: its function cannot be sent to the workers: {headline(error)}",
            cause=f"It uses {names}, which cannot be pickled." if names else "It uses what cannot be pickled.",
            remedy="Make it inside the function, or keep it in a module beside the flow's file: use it as module.name.",
        ) from error


def _unsendable(function: Any, seen: set[int]) -> Iterator[str]:
    """The names that a function takes from around it, or the functions that it calls do, and that cannot be pickled."""
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    try:
        used = inspect.getclosurevars(function)
    except ValueError:
        # A name around it has no value yet.
        return
    for name, value in {**used.globals, **used.nonlocals}.items():
        if _refusal(value) is None:
            continue
        if isinstance(value, FunctionType):
            yield from _unsendable(value, seen)
        else:
            yield name


def _refusal(value: Any) -> Exception | None:
    """Why it cannot be pickled, if it cannot."""
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        return error
    return None
