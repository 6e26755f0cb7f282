"""A run on a directory that a lazy restore has begun, without Spark; what each epoch holds is known from its number."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from recovery.storage import hydration
from tests.backup.writer import state_after
from tests.stores import Driver, State

KEYS = 3000
PADDING = "x" * 60


def changes(epoch: int) -> dict[str, str | None]:
    """What an epoch changes: the first one makes all keys, the others touch some in a part of the file."""
    if epoch == 1:
        return {f"k{n:05}": f"1{PADDING}" for n in range(KEYS)}
    begin = epoch * 389 % KEYS
    changed: dict[str, str | None] = {f"k{n:05}": f"{epoch}{PADDING}" for n in range(begin, min(KEYS, begin + 40))}
    changed[f"k{epoch * 997 % KEYS:05}"] = None
    return changed


def state_of(epoch: int) -> State:
    """The truth at an epoch, computed plainly."""
    return state_after(epoch, changes)


def close_epochs(directory: Path, count: int) -> None:
    """Close epochs, each moved from the log into the file; nothing is fetched but what that reads."""
    with Driver(directory) as run:
        for _ in range(count):
            close_one(run)


def close_one(run: Driver) -> None:
    """Close an epoch as a run does: tasks read what they change."""
    epoch = run.epoch
    run.read(epoch, changes(epoch))
    run.apply(epoch, changes(epoch))
    run.close(epoch, floor=max(0, epoch - 3))
    run.store.checkpoint()
    print(epoch, flush=True)


def main(directory: Path, epochs: int) -> None:
    """Close epochs while the rest is fetched; end when all is there."""
    hydration.PATIENCE_S = 0.0
    with Driver(directory) as run:
        for _ in range(epochs):
            run.store.open(run.lease, run.epoch)
            close_one(run)
        deadline = time.monotonic() + 60
        while hydration.hydrating(directory) and time.monotonic() < deadline:
            run.store.open(run.lease, run.epoch)
            time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
