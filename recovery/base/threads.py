"""Work in threads: on several files at a time, until the caller is interrupted; and calls that nobody can interrupt."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_of_thread = threading.local()


def is_stopped() -> bool:
    """Whether the caller no longer waits for this thread's work. Long work asks this from time to time."""
    stop: threading.Event | None = getattr(_of_thread, "stop", None)
    return (stop is not None and stop.is_set()) or is_late()


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Stop the work of this thread after so many seconds: `is_stopped` then says so. Within another limit, the inner
    one counts, and its time does not count for the outer one."""
    before: float | None = getattr(_of_thread, "until_s", None)
    began_s = time.monotonic()
    _of_thread.until_s = began_s + seconds
    try:
        yield
    finally:
        _of_thread.until_s = None if before is None else before + time.monotonic() - began_s


def time_left_s() -> float | None:
    """Return how many seconds of `limited` are left to this thread; None: its time is not limited."""
    until_s: float | None = getattr(_of_thread, "until_s", None)
    return None if until_s is None else until_s - time.monotonic()


def is_late() -> bool:
    """Whether the time of `limited` is over."""
    left_s = time_left_s()
    return left_s is not None and left_s <= 0


def each(work: Callable[[T], R], items: Iterable[T], *, at_once: int, name: str) -> list[R]:
    """Do `work` for a few items at a time, in threads of that name; returns the results in order.

    After the first error, Ctrl-C included, no new work begins; running work is asked to stop, and waited for.
    """
    stop = threading.Event()
    pool = ThreadPoolExecutor(at_once, thread_name_prefix=name, initializer=_begin, initargs=(stop,))
    try:
        return list(pool.map(work, items))
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def bounded(call: Callable[[], T], timeout_s: float, moved: Callable[[], int] = lambda: 0) -> T:
    """Return or raise what `call` does, or TimeoutError; then the call goes on in a thread that nobody waits for.

    For clients without a limit for every way in which a service or a disk can fall silent. moved: returns how far the
    call has come; the limit is for the time in which this value does not change.
    """
    outcome: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=work, name="bounded-call", daemon=True).start()
    while True:
        before = moved()
        try:
            value, error = outcome.get(timeout=timeout_s)
            break
        except queue.Empty:
            if moved() == before:
                raise TimeoutError from None
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _begin(stop: threading.Event) -> None:
    _of_thread.stop = stop
