"""Changed states of a task, in memory up to a limit and in a temporary file past it."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterator
from typing import IO

from recovery.storage.seam import Changes

SPOOL_BYTES = 64 << 20


class Spool:
    """Changed states of a task, kept in memory up to a limit and in a temporary file past it. Can be read again."""

    def __init__(self, among: int) -> None:
        """among: the number of spools that share the limit."""
        self._among = among
        self._memory: list[Changes] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None

    def add(self, changes: Changes) -> None:
        self._memory.append(changes)
        self._bytes += sum(map(len, changes.packed))
        if self._bytes > SPOOL_BYTES // self._among:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="recovery-spool-")  # noqa: SIM115 (closed by close)
            for each in self._memory:
                pickle.dump(tuple(each), self._file, protocol=5)
            self._memory, self._bytes = [], 0

    def __iter__(self) -> Iterator[Changes]:
        if self._file is not None:
            # Not the position: an iteration that was given up may have left it anywhere.
            end = self._file.seek(0, os.SEEK_END)
            self._file.seek(0)
            while self._file.tell() < end:
                yield Changes(*pickle.load(self._file))
        yield from self._memory

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
