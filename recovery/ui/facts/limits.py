"""The bounds of one request: rows, bytes and seconds. What is beyond a bound is said, never left out silently."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from recovery.base.threads import is_stopped, limited, time_left_s
from recovery.errors import ConfigurationError, LookLimitError

T = TypeVar("T")
_of_thread = threading.local()

REQUEST_S = 10.0
"""How long one request may read."""
PATIENCE_S = 8.0
"""How long a request waits for a look, unless it says otherwise: programs would rather wait than ask again."""
LEAST_PATIENCE_S = 0.5
"""A request waits at least so long for a second look."""
MOST_ROWS = 1_000
"""The most keys, epochs or partitions in one answer."""
ROWS = 100
"""As many, if nobody asks for more or fewer."""
MOST_VALUE_BYTES = 256 << 10
"""A value is shown up to here, and the answer then says how long it is."""
MOST_PAGE_BYTES = 4 << 20
"""A list of values in an answer ends where it has this much."""


@contextmanager
def one_request(patience_s: float | None = None) -> Iterator[None]:
    """Bound the reading within. Raises LookLimitError after `REQUEST_S`. patience_s: how long the request waits for
    looks, all together; None: `PATIENCE_S`."""
    with limited(REQUEST_S), patient(PATIENCE_S if patience_s is None else patience_s):
        yield


@contextmanager
def patient(seconds: float) -> Iterator[None]:
    """Let this thread wait for looks no longer than so many seconds, all together."""
    before: float | None = getattr(_of_thread, "until_s", None)
    _of_thread.until_s = time.monotonic() + seconds
    try:
        yield
    finally:
        _of_thread.until_s = before


def patience_s(least_s: float | None = None) -> float:
    """Return how long this thread still waits for a look: at least `least_s`; None: `LEAST_PATIENCE_S`."""
    until_s: float | None = getattr(_of_thread, "until_s", None)
    if until_s is None:
        return PATIENCE_S
    return max(LEAST_PATIENCE_S if least_s is None else least_s, until_s - time.monotonic())


def check_time() -> None:
    """Raise LookLimitError if the time of the request is over, or the processor time of `spending`."""
    until_s: float | None = getattr(_of_thread, "cpu_until_s", None)
    if is_stopped() or (until_s is not None and time.thread_time() > until_s):
        raise LookLimitError("it takes longer than one request may")


@contextmanager
def spending(cpu_s: float) -> Iterator[None]:
    """Let this thread take no more than so many seconds of processor time for a part of a request, which asks
    `check_time`. A busy machine does not shorten that part."""
    _of_thread.cpu_until_s = time.thread_time() + cpu_s
    try:
        yield
    finally:
        _of_thread.cpu_until_s = None


def is_half_over() -> bool:
    """Whether half of the request's time is over: what can go on in another request ends here."""
    left_s = time_left_s()
    return left_s is not None and left_s < REQUEST_S / 2


def size_of(content: Any) -> int:
    """Return the bytes of a value's JSON."""
    return len(json.dumps(content, ensure_ascii=False).encode(errors="surrogatepass"))


def bounded(rows: Iterable[T], most: int) -> list[T]:
    """Return the first rows: at most so many, and none after their JSON has `MOST_PAGE_BYTES`. Raises LookLimitError if
    the time of the request is over."""
    found: list[T] = []
    size_bytes = 0
    for row in itertools.islice(rows, most):
        check_time()
        found.append(row)
        size_bytes += size_of(row)
        if size_bytes >= MOST_PAGE_BYTES:
            break
    return found


def page_of(rows: Sequence[T], after: int | None, limit: int | None) -> tuple[list[T], int | None]:
    """Return the rows after the first `after`, and how many rows there are up to their end; None: there are no more.
    Raises ConfigurationError."""
    begin, wanted = after or 0, rows_wanted(limit)
    if begin < 0:
        raise ConfigurationError(
            f"after={begin} is no place in a list", cause="", remedy="Give the `next` of another answer."
        )
    end = begin + wanted
    return list(rows[begin:end]), end if end < len(rows) else None


def rows_wanted(limit: int | None) -> int:
    """Return how many rows an answer has. Raises ConfigurationError for a number outside 1 to `MOST_ROWS`."""
    if limit is None:
        return ROWS
    if not 1 <= limit <= MOST_ROWS:
        raise ConfigurationError(
            f"limit={limit} is not between 1 and {MOST_ROWS:,}",
            cause="Each answer has a bounded number of rows.",
            remedy="Ask for fewer rows, and follow `next`.",
        )
    return limit


def shown_value(content: Any) -> dict[str, Any]:
    """Return a value as an answer shows it: whole as `value`, or the beginning of its JSON as `beginning`; and the
    bytes of its JSON."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    size_bytes = len(text.encode(errors="surrogatepass"))
    if size_bytes <= MOST_VALUE_BYTES:
        return {"value": content, "value_bytes": size_bytes, "is_cut": False}
    return {"beginning": text[: MOST_VALUE_BYTES // 4], "value_bytes": size_bytes, "is_cut": True}
