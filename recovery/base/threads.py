"""Work on several files in parallel, in threads that end when their caller is interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_of_thread = threading.local()


def is_stopped() -> bool:
    """Whether the caller no longer waits for this thread's work. Long work asks this from time to time."""
    stop: threading.Event | None = getattr(_of_thread, "stop", None)
    return stop is not None and stop.is_set()


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


def _begin(stop: threading.Event) -> None:
    _of_thread.stop = stop
