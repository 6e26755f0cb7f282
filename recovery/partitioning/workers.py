"""The processes of a repartitioning. A small amount of work needs no further process."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
from collections.abc import Callable, Sequence

import msgspec

from recovery.errors import StorageError
from recovery.host.children import own_module
from recovery.partitioning.worker import Done, FailedWork, Line, Moved, Work, do, tally_of
from recovery.storage.repartition import Tally

READ_BYTES = 1 << 20


def do_all(works: Sequence[Work], observe: Callable[[int], None]) -> tuple[Tally, Tally]:
    """Do each work in a process of its own, or a single one in this process; return the tallies before and after.

    observe: is called with the number of rows read since its last call. When `do_all` is interrupted, or a process
    fails, all processes end. Raises the first error.
    """
    if len(works) == 1:
        return do(works[0], observe)
    before, after = Tally(), Tally()
    with contextlib.ExitStack() as running, selectors.DefaultSelector() as selector:
        for work in works:
            worker = running.enter_context(_Worker(work))
            selector.register(worker.output, selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select():
                worker = key.data
                for line in worker.read():
                    if isinstance(line, Moved):
                        observe(line.rows)
                    elif isinstance(line, FailedWork):
                        raise line.as_error()
                    else:
                        before.add(tally_of(line.before))
                        after.add(tally_of(line.after))
                if worker.ended:
                    selector.unregister(worker.output)
    return before, after


class _Worker:
    """One process, which ends with the block."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._rest = b""
        self._done = False
        self.ended = False
        """Whether the process has printed all."""

    def __enter__(self) -> _Worker:
        command, environment = own_module("recovery.partitioning")
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        except OSError as error:
            raise StorageError(f"a process cannot be started: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.output = self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(self._work) + b"\n")
            self._process.stdin.flush()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self.output.close()

    def read(self) -> list[Line]:
        """Return the lines that have come. Raises StorageError if the process has ended before it was done."""
        found = os.read(self.output.fileno(), READ_BYTES)
        *whole, self._rest = (self._rest + found).split(b"\n")
        lines = [msgspec.json.decode(line, type=Line) for line in whole]
        self._done = self._done or any(isinstance(line, Done | FailedWork) for line in lines)
        if not found:
            self.ended = True
            if not self._done:
                code = self._process.wait()
                raise StorageError(
                    f"a process that wrote partitions ended with code {code}",
                    cause="The process was killed, or ran out of memory; or its error is above.",
                    remedy="Run the same command again: nothing was changed.",
                )
        return lines
