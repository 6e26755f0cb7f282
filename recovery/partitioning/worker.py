"""One process of a repartitioning: `python -m recovery.partitioning`, as `recovery.partitioning.workers` starts it.

The process gets its work as one line on its standard input, prints a line for each step it makes, and ends when its
standard input ends: when the process that started it does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from recovery.errors import RecoveryError, error_named
from recovery.host.children import tell_parent
from recovery.planning.moving import WorkShare
from recovery.planning.resume import plan_resume
from recovery.storage.repartition import NewStore, Rows, Tally, move
from recovery.storage.scan import scan
from recovery.storage.verify import damage_behind


class Work(msgspec.Struct, frozen=True):
    """The shares of one process, of the store in `directory`. Paths are bytes, which need not be text."""

    directory: bytes
    store_id: str
    created_ms: int
    count: int
    draft: bytes
    shares: list[WorkShare]


class Moved(msgspec.Struct, frozen=True, tag=True):
    """Progress: this many rows were read."""

    rows: int


Counts = list[tuple[str, int, Rows]]
"""One side of a tally: step, epoch, rows."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """The work is done: the tallies of the old and of the new partitions."""

    before: tuple[Counts, Counts]
    after: tuple[Counts, Counts]


class FailedWork(msgspec.Struct, frozen=True, tag=True):
    """An error of this package ended the work."""

    error: str
    found: str
    path: str | None
    cause: str
    remedy: str

    def as_error(self) -> RecoveryError:
        """Return the error."""
        kind = error_named(self.error) or RecoveryError
        return kind(self.found, path=self.path, cause=self.cause, remedy=self.remedy)


Line = Moved | Done | FailedWork


def do(work: Work, observe: Callable[[int], None]) -> tuple[Tally, Tally]:
    """Write the new partitions of some shares; return the tallies of the old partitions that they count, and of the
    rows that they wrote. Raises the errors of planning, CorruptPartitionError or StorageError."""
    plan = plan_resume(scan(Path(os.fsdecode(work.directory))))
    new = NewStore(work.store_id, work.created_ms, work.count, Path(os.fsdecode(work.draft)))
    before, after = Tally(), Tally()
    for share in work.shares:
        old, made = move(plan.partitions, plan.window, new, share, observe)
        before.add(old)
        after.add(made)
    return before, after


def counts_of(tally: Tally) -> tuple[Counts, Counts]:
    """Return a tally as lists."""
    written, superseded = ([(*key, rows) for key, rows in each.items()] for each in (tally.written, tally.superseded))
    return written, superseded


def tally_of(counts: tuple[Counts, Counts]) -> Tally:
    """Return the tally of such lists."""
    written, superseded = ({(step, epoch): rows for step, epoch, rows in each} for each in counts)
    return Tally(written, superseded)


def main() -> int:
    """Do the work that comes on the standard input."""
    # Ctrl-C reaches all processes. The one that started this one then ends the standard input.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    work = msgspec.json.decode(sys.stdin.buffer.readline(), type=Work)
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        before, after = do(work, lambda rows: _print(Moved(rows)))
    except Exception as error:
        known = error if isinstance(error, RecoveryError) else damage_behind(error)
        if known is None:
            raise
        _print(FailedWork(type(known).__name__, known.found, known.path, known.cause, known.remedy))
        return known.exit_code
    _print(Done(counts_of(before), counts_of(after)))
    return 0


def _end_with_input() -> None:
    # Not through `sys.stdin`: the interpreter would wait for its lock at exit.
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def _print(line: Line) -> None:
    tell_parent(msgspec.json.encode(line))
