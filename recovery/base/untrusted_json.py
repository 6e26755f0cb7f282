"""Untrusted JSON and numbers: from a partition, an export, a checkpoint, a sink's list.

The file's author chose them. Data that is unreadable, nested too deep, or not of the requested form raises the caller's
error, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeGuard, TypeVar, overload

import msgspec

from recovery.errors import RecoveryError

MOST = (1 << 53) - 1
"""For epochs, micro-batches, rows and bytes: the largest whole number that every JSON reader keeps exactly."""
FIRST_MOMENT_MS = -62_000_000_000_000
LAST_MOMENT_MS = 253_000_000_000_000
"""The last millisecond since 1970 that is a date in every time zone; with the first, years 5 to 9987."""

Number = Annotated[int, msgspec.Meta(ge=-MOST, le=MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Moment = Annotated[int, msgspec.Meta(ge=FIRST_MOMENT_MS, le=LAST_MOMENT_MS)]
Real = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]

T = TypeVar("T")


def is_moment(value: Any) -> TypeGuard[int]:
    """Whether a value is milliseconds since 1970 that are a date in every time zone."""
    return type(value) is int and FIRST_MOMENT_MS <= value <= LAST_MOMENT_MS


Refusal = Callable[[str], RecoveryError]
"""Makes the error for refused text, from a sentence that says why."""


@overload
def decode_json(text: str | bytes, refuse: Refusal) -> Any: ...


@overload
def decode_json(text: str | bytes, refuse: Refusal, type: type[T]) -> T: ...


def decode_json(text: str | bytes, refuse: Refusal, type: Any = Any) -> Any:
    """Return the value of a JSON text, of this type; raises the error that `refuse` makes otherwise."""
    try:
        return msgspec.json.decode(text, type=type)
    except RecursionError:
        raise refuse("its JSON is nested too deeply") from None
    except ValueError as error:
        # It is msgspec's own error, or one of text that cannot be encoded.
        raise refuse(f"it is not the JSON that recovery wrote: {error}") from error
