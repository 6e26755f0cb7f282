"""A run that never ends, without Spark: closes epoch after epoch; what each holds is known from its number alone."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.forks import Forked
from tests.stores import ROOT, STEP, Driver, State

KEYS = 60


def changes(epoch: int) -> dict[str, str | None]:
    """What an epoch changes: a third of the keys get its number, one is discarded."""
    changed: dict[str, str | None] = {f"k{n}": str(epoch) for n in range(epoch % 3, KEYS, 3)}
    changed[f"k{epoch % KEYS}"] = None
    return changed


def state_of(epoch: int) -> State:
    """The truth at an epoch, computed plainly."""
    return state_after(epoch, changes)


def state_after(epoch: int, changes: Callable[[int], dict[str, str | None]]) -> State:
    """The state after the changes of all epochs up to one."""
    state: State = {}
    for each in range(1, epoch + 1):
        for key, text in changes(each).items():
            if text is None:
                state.pop((STEP, key), None)
            else:
                state[STEP, key] = (text, None)
    return state


def write(directory: Path, pause_s: float) -> None:
    """Close epochs until killed; each is reported when it is closed."""
    with Driver(directory) as run:
        while True:
            epoch, now_ms = run.epoch, time.time_ns() // 1_000_000
            run.apply(epoch, changes(epoch))
            run.close(epoch, closed_ms=now_ms, clock_ms=now_ms)
            run.store.checkpoint()
            print(epoch, flush=True)
            time.sleep(pause_s)


@contextlib.contextmanager
def writing(directory: Path, pause_s: float = 0.005) -> Iterator[subprocess.Popen]:
    """A writer in a process of its own, killed at the end."""
    words = ["-m", "tests.backup.writer", directory, pause_s]
    process = Forked(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until_closed(process: subprocess.Popen, epoch: int) -> int:
    """Read its reports up to this epoch or a later one."""
    for line in process.stdout:
        if int(line) >= epoch:
            return int(line)
    raise AssertionError("the writer ended")


if __name__ == "__main__":
    write(Path(sys.argv[1]), float(sys.argv[2]))
