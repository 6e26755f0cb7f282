"""Check that a step's function can be sent to the workers, before Spark fails on it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from pyspark import cloudpickle

from recovery.base.ids import StepId
from recovery.base.tracebacks import headline
from recovery.errors import ConfigurationError


def check_sendable(step_id: StepId, sent: object, function: Any) -> None:
    """Check that `sent`, what is sent to the workers for a step, can be pickled. PySpark would print a traceback.

    Raises ConfigurationError. The error lists the globals and closure variables of the user's `function` that cannot be
    pickled."""
    error = _refusal(sent)
    if error is not None:
        names = ", ".join(dict.fromkeys(_unsendable(function, set())))
        raise ConfigurationError(
            f"step {step_id!r}: its function cannot be sent to the workers: {headline(error)}",
            cause=f"The function uses {names}, which cannot be pickled."
            if names
            else "The function uses what cannot be pickled.",
            remedy="Make it inside the function, or keep it in a module beside the flow's file: use it as module.name.",
        ) from error


def _unsendable(function: Any, seen: set[int]) -> Iterator[str]:
    """Yield the globals and closure variables of a function, or of functions it uses, that cannot be pickled."""
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    try:
        used = inspect.getclosurevars(function)
    except ValueError:
        # A closure variable has no value yet.
        return
    for name, value in {**used.globals, **used.nonlocals}.items():
        if _refusal(value) is None:
            continue
        if isinstance(value, FunctionType):
            yield from _unsendable(value, seen)
        else:
            yield name


def _refusal(value: Any) -> Exception | None:
    """Return the error of pickling a value; None if it can be pickled."""
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        return error
    return None
