"""What the tests of operational state share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from recovery.base.clock import SystemClock, Uptime
from recovery.operational.backends.retry import RetryPolicy
from tests.forks import Forked
from tests.stores import ROOT

IMPATIENT = RetryPolicy(busy=0.05, delays=(0.01, 0.01), jitter=0)
HOUR_MS = 3_600_000


class SetClock:
    """A clock whose wall time is set by the test; elapsed time is real."""

    def __init__(self, wall_ms: int = 1_800_000_000_000) -> None:
        self.now_ms = wall_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def elapsed_s(self) -> float:
        import time

        return time.monotonic()

    def uptime(self) -> Uptime | None:
        return None


class StoppableClock(SystemClock):
    """Elapsed time stands still once it is stopped: a lease that is held by such a clock does not run out, however slow
    the machine is."""

    def __init__(self) -> None:
        self.stopped = False

    def elapsed_s(self) -> float:
        return 0.0 if self.stopped else super().elapsed_s()


class HandClock(SystemClock):
    """Elapsed time goes on when the test says so."""

    now_s = 0.0

    def elapsed_s(self) -> float:
        return self.now_s


def background(code: str, *arguments: object, own_child: bool = False) -> subprocess.Popen[str]:
    """Python source running in a process of its own, with pipes to it. own_child: the process is this one's child, so
    that it can be waited for when it is stopped."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    words = ["-c", textwrap.dedent(code), *map(str, arguments)]
    if own_child:
        return subprocess.Popen([sys.executable, *words], text=True, cwd=ROOT, **pipes)
    return Forked(words, text=True, cwd=ROOT, **pipes)


def forked(work: Callable[[], object]) -> str:
    """What `work` returns in a process that is forked from this one, as text; or its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def all_of(processes: list[subprocess.Popen[str]], timeout_s: float = 120) -> list[str]:
    """What they all printed, once they all ended well."""
    done = [process.communicate(timeout=timeout_s) for process in processes]
    for process, (_, errors) in zip(processes, done, strict=True):
        assert process.returncode == 0, errors
    return [printed for printed, _ in done]


def part_0(directory: Path) -> Path:
    """The file that holds the operational state."""
    return directory / "part-0.sqlite3"
