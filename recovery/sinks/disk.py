"""The file system as FileSink uses it: every operation, each durable or not as it says."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import sys
from pathlib import Path

from recovery.host.durable import UMASK, create, open_own, read_regular, sync


class Disk:
    """Operations on real files. Every one may raise OSError; tests replace the object to make each of them do so."""

    def files(self, directory: Path) -> dict[str, int]:
        """Names and sizes in bytes of the regular files in a directory; none when there is no such directory."""
        try:
            entries = os.scandir(directory)
        except FileNotFoundError:
            return {}
        found: dict[str, int] = {}
        with entries:
            for entry in entries:
                # A link that leads nowhere is no file, and one that is removed meanwhile neither.
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    if stat.S_ISREG(status.st_mode):
                        found[entry.name] = status.st_size
        return found

    def read(self, path: Path) -> bytes | None:
        """What a file holds, None when there is none."""
        try:
            return read_regular(path, sys.maxsize)
        except FileNotFoundError:
            return None

    def sha256(self, path: Path) -> str:
        """The SHA-256 of a file, in hexadecimal digits."""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def is_link(self, path: Path) -> bool:
        """Whether a symbolic link is there."""
        return path.is_symlink()

    def make_directory(self, path: Path) -> None:
        """Make a directory where there is none, and those above it; durable."""
        if path.is_dir():
            return
        self.make_directory(path.parent)
        path.mkdir(UMASK.directory, exist_ok=True)
        self.sync_directory(path.parent)

    def write(self, path: Path, data: bytes) -> None:
        """Make a file, or another in the place of one. Its content is durable, its name is not; not atomic."""
        path.unlink(missing_ok=True)
        with os.fdopen(create(path, UMASK.file), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def append(self, path: Path, data: bytes) -> None:
        """Add to the end of a file; durable, not atomic: a crash may leave the beginning of it."""
        with os.fdopen(open_own(path, UMASK.file, append=True), "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, old: Path, new: Path) -> None:
        """Atomic, replacing `new`; durable when both directories are synced."""
        old.rename(new)

    def unlink(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all that is in it, if it is there."""
        if path.is_dir():
            shutil.rmtree(path)

    def sync(self, path: Path) -> None:
        """Make a file's content durable, whoever wrote it."""
        sync(path)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        sync(path)

    def replace(self, path: Path, data: bytes) -> None:
        """Give a file this content: atomic and durable."""
        draft = path.with_name(f".{path.name}.new")
        self.write(draft, data)
        self.rename(draft, path)
        self.sync_directory(path.parent)
