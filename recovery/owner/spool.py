"""Where the messages of an apply wait until the last has come: in memory up to a limit, then in a temporary file."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from recovery.host.storage_errors import storage_errors
from recovery.storage.seam import Changes
from recovery.wire.messages import read_changes

CALL_BYTES = 64 << 20
"""What one call may keep in memory."""
ALL_BYTES = 512 << 20
"""What all calls of a process together may keep in memory."""


class SpoolMemory:
    """The memory that all spools share."""

    def __init__(self, most_bytes: int = ALL_BYTES) -> None:
        self._left = most_bytes
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> bool:
        """Take memory for the messages, and return True; False, and take nothing, if too little is left."""
        with self._lock:
            if size_bytes > self._left:
                return False
            self._left -= size_bytes
            return True

    def give(self, size_bytes: int) -> None:
        """Give memory back."""
        with self._lock:
            self._left += size_bytes


class MessageSpool:
    """The messages of one apply, for one thread."""

    def __init__(self, directory: Path, memory: SpoolMemory, call_bytes: int = CALL_BYTES) -> None:
        """directory: for a temporary file without a name."""
        self._directory = directory
        self._memory = memory
        self._call_bytes = call_bytes
        self._messages: list[list[bytes]] = [[]]
        """The frames of each message; the last message is still coming."""
        self._taken = 0
        self._file: IO[bytes] | None = None
        self._ends: list[int] = []
        """Where each whole message ends."""
        self.size_bytes = 0

    def add(self, body: bytes, more: bool) -> None:
        """Keep a frame of a message; more: the message continues in the next one. Raises StorageError."""
        if self._file is None:
            fits = self._taken + len(body) <= self._call_bytes and self._memory.take(len(body))
            if fits:
                self._taken += len(body)
                self._messages[-1].append(body)
            else:
                self._to_file()
        if self._file is not None:
            with storage_errors(self._directory):
                self._file.write(body)
        self.size_bytes += len(body)
        if not more:
            self._ends.append(self.size_bytes)
            self._messages.append([])

    def _to_file(self) -> None:
        with storage_errors(self._directory):
            self._file = tempfile.TemporaryFile(prefix="owner-spool-", dir=self._directory)  # noqa: SIM115 - see close
            for parts in self._messages:
                self._file.writelines(parts)
        self._messages = [[]]
        self._memory.give(self._taken)
        self._taken = 0

    @property
    def messages(self) -> int:
        """The number of whole messages."""
        return len(self._ends)

    def changes(self, begin: int, end: int) -> Iterator[Changes]:
        """Yield the chunks in messages number `begin` up to `end`."""
        for number in range(begin, end):
            if self._file is None:
                body = b"".join(self._messages[number])
            else:
                with storage_errors(self._directory):
                    offset = self._ends[number - 1] if number else 0
                    self._file.seek(offset)
                    body = self._file.read(self._ends[number] - offset)
            yield read_changes(body)

    def close(self) -> None:
        """Give the memory back, and remove the file."""
        self._messages.clear()
        self._memory.give(self._taken)
        self._taken = 0
        if self._file is not None:
            self._file.close()
