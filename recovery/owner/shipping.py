"""The process that stores an owner's partitions at a place of backups, for runs that replicate.

This process only passes lines on: `recovery.backup.share` says what they mean.
"""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import msgspec

from recovery.errors import StorageError
from recovery.host.children import end, exit_text, own_module
from recovery.places.packed import packed, unpacked
from recovery.wire.frames import VALUE_BYTES

STOP_S = 2.0


class Shipping:
    """The process, which is started when it is first needed, and again if it has ended."""

    def __init__(self, directory: Path, scratch: Path) -> None:
        self._place = {"directory": str(directory), "scratch": str(scratch)}
        self._directory = directory
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._has_ended = False

    def ask(self, wanted: bytes) -> bytes:
        """Have something stored; return the answer. Both are packed. Raises StorageError if the process fails."""
        try:
            line = unpacked([wanted], VALUE_BYTES)
        except ValueError as error:
            raise StorageError(f"what is to be stored cannot be read: {error}", path=self._directory) from error
        with self._lock:
            if self._has_ended:
                raise StorageError("the owner is being stopped", path=self._directory)
            try:
                if self._process is None or self._process.poll() is not None:
                    command, environment = own_module("recovery.backup.share")
                    self._process = subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
                    )
                    self._say(msgspec.json.encode(self._place))
                self._say(line.replace(b"\n", b" "))
                assert self._process.stdout is not None
                answer = self._process.stdout.readline()
            except (OSError, ValueError) as error:
                # Its input may have been closed, by `end`.
                raise StorageError(f"the shipping process cannot be reached: {error}", path=self._directory) from error
            if not answer.endswith(b"\n"):
                raise StorageError(
                    f"the shipping process ended: {exit_text(self._process.poll())}", path=self._directory
                )
            return packed(answer)

    def end(self) -> None:
        """End the process. What the process stores then does not count."""
        self._has_ended = True
        process = self._process
        if process is not None:
            end(process, STOP_S)

    def _say(self, line: bytes | bytearray) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()
