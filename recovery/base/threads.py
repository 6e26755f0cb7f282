"""Work for several files at a time, in threads that end when whoever waits for them is interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_of_thread = threading.local()


def is_stopped() -> bool:
    """Whether the work of this thread is not waited for any more. What takes long asks now and then."""
    stop: threading.Event | None = getattr(_of_thread, "stop", None)
    return stop is not None and stop.is_set()


def each(work: Callable[[T], R], items: Iterable[T], *, at_once: int, name: str) -> list[R]:
    """Do `work` for a few items at a time, by threads of that name; returns the results in order.

    After the first error, Ctrl-C among them, nothing new is begun, and what still runs is stopped and waited for.
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
