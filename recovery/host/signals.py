"""Signals that end a command: SIGTERM, Ctrl-C, and SIGHUP, which a terminal sends when it is closed.

A command has handlers for signals from its first moment, before slow imports. The first process of a container does not
get a signal that it has no handler for, and Python's own handler for Ctrl-C prints a traceback.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

GRACE_S = 5.0
"""How long a command may take to clean up, or to return from a long call that no handler interrupts."""
LONGEST_WAIT_S = 1e9
"""The system accepts no longer wait."""
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOPPING_NUMBERS = frozenset(map(int, STOPPING))
Handler = Callable[[int, FrameType | None], None]


class InterruptedBySignal(KeyboardInterrupt):
    """A signal ends the main thread's work. `number` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {name_of(number)}")
        self.number = number


def end_now(number: int, _: FrameType | None = None) -> None:
    """Handle a signal by ending the process silently. Nothing is cleaned up; the process's JVM ends with its standard
    input."""
    os._exit(128 + number)


class EndingAfter:
    """Handles a signal by calling `clean` and ending the process silently. `clean` must take no lock."""

    def __init__(self, clean: Callable[[], None]) -> None:
        self._clean = clean

    def __call__(self, number: int, _: FrameType | None = None) -> None:
        try:
            self._clean()
        finally:
            end_now(number)


def interrupt(number: int, _: FrameType | None = None) -> None:
    """Handle a signal by raising InterruptedBySignal, so that unfinished work is cleaned up."""
    raise InterruptedBySignal(number)


def handle(handler: Handler) -> None:
    """Set the handler for every signal of `STOPPING`. For the main thread.

    SIGHUP stays ignored if it was ignored from the start, as under nohup.
    """
    for number in _handled_numbers():
        signal.signal(number, handler)


def end_after_grace() -> None:
    """From now on, end the process `GRACE_S` after a signal whose handler is `interrupt`, `end_now` or an
    `EndingAfter`, or at the second such signal. For the command's own process, in its main thread.

    Python calls handlers only between two steps of the main thread, and a SQLite query there may take minutes.
    """
    reading, _, _ = _signal_pipe()
    threading.Thread(target=_end_when_late, args=(reading,), name="end-late", daemon=True).start()


def _signal_pipe() -> tuple[int, int, int]:
    """Let Python write each signal that has a handler to a new pipe, in whatever thread it comes. Return the pipe's
    ends, and what Python wrote signals to before."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # A full pipe already says enough.
    return reading, writing, signal.set_wakeup_fd(writing, warn_on_full_buffer=False)


def _end_when_late(reading: int) -> None:
    number = 0
    while select.select([reading], [], [], GRACE_S if number else None)[0]:
        for came in os.read(reading, 64):
            if came in STOPPING and _ends(signal.getsignal(came)):
                if number:
                    end_now(came)
                number = came
    end_now(number)


def _ends(handler: object) -> bool:
    return handler in (interrupt, end_now) or isinstance(handler, EndingAfter)


class StopSignals:
    """Whether a signal that ends a command has come since this object was made. For the main thread of a command's own
    process.

    A pipe remembers the signal. Python writes to the pipe in whatever thread the signal comes. A handler would wait for
    the main thread's next step, so a signal that comes just before that thread waits, or in another thread, would end
    no wait; and one that sets a threading.Event hangs if it interrupts a wait for that event.
    """

    def __init__(self, on_hangup: Callable[[], None] | None = None) -> None:
        """on_hangup: what SIGHUP does instead of ending the command; the thread that waits calls it."""
        self._reading, _, _ = _signal_pipe()
        self._on_hangup = on_hangup
        self._came = False
        handle(lambda *_: None)
        if on_hangup is not None:
            # Also under nohup: nothing ends by it.
            signal.signal(signal.SIGHUP, lambda *_: None)

    def came_within(self, seconds: float) -> bool:
        """Wait for a signal, at most this long; returns immediately if one has come before."""
        until_s = time.monotonic() + min(seconds, LONGEST_WAIT_S)
        while not self._came and select.select([self._reading], [], [], max(0.0, until_s - time.monotonic()))[0]:
            # Other signals that have a handler are written, too.
            came = set(os.read(self._reading, 64))
            if self._on_hangup is not None and signal.SIGHUP in came:
                came.remove(signal.SIGHUP)
                self._on_hangup()
            self._came = not STOPPING_NUMBERS.isdisjoint(came)
        return self._came

    def wait(self) -> None:
        """Wait for a signal."""
        while not self.came_within(LONGEST_WAIT_S):
            pass


@contextlib.contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Set the handler as `handle` does, until the block ends, and then restore the earlier handlers. Outside the main
    thread `handled` does nothing: such a process has handlers of its own."""
    if not is_main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in _handled_numbers()}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def acting(act: Callable[[int], None]) -> Iterator[None]:
    """Until the block ends, the first signal calls `act` with its number in a separate thread, and a second signal ends
    the process immediately. Outside the main thread, `acting` does nothing.

    Python writes the signal to a pipe, on which the thread waits, in whatever thread the signal comes. A handler would
    wait for the main thread's next step, which may come in minutes. A threading.Event or a new thread would not work
    there: both take locks, whose holder the handler may have interrupted.
    """
    if not is_main_thread():
        yield
        return
    reading, writing, before = _signal_pipe()
    threading.Thread(target=_act_on_signals, args=(act, reading), name="stop", daemon=True).start()
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if came:
            end_now(number)
        came.append(number)

    try:
        with handled(note):
            yield
    finally:
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        os.close(writing)


def _act_on_signals(act: Callable[[int], None], reading: int) -> None:
    """Act on the first signal that comes out of the pipe; end when the pipe is closed."""
    acted = False
    while came := os.read(reading, 64):
        # Other signals that have a handler are written, too.
        number = next((each for each in came if each in STOPPING_NUMBERS), None)
        if number is not None and not acted:
            acted = True
            act(number)
    os.close(reading)


def is_main_thread() -> bool:
    """Whether this is the thread that may set handlers."""
    return threading.current_thread() is threading.main_thread()


def name_of(number: int) -> str:
    """Return the signal's name, such as SIGTERM; Ctrl-C for SIGINT."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def again(number: int) -> str:
    """Return what a message calls the same signal when it comes a second time."""
    return "Ctrl-C again" if number == signal.SIGINT else f"a second {name_of(number)}"


def _handled_numbers() -> list[signal.Signals]:
    return [each for each in STOPPING if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
