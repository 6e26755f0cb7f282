"""The file system operations of FileSink; each states whether it is durable."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from recovery.base.untrusted_paths import open_received, read_received
from recovery.host.durable import UMASK, create, open_own, sync
from recovery.host.locks import free, try_lock_file

ALONE_S = 20.0
"""How long an operation waits for another process."""
LOOK_S = 0.05
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class Disk:
    """Operations on real files. Each operation may raise OSError; tests replace the object to make each operation
    fail."""

    def shown(self, path: Path) -> str:
        """Return the path as an error shows it."""
        return str(path)

    @contextlib.contextmanager
    def alone(self, path: Path) -> Iterator[None]:
        """Exclude other processes that use this file as their lock, until the block ends: on this host, and on others
        as far as the locks of the file system reach. No process waits for longer than `ALONE_S`."""
        descriptor, holder_pid = open_own(path, UMASK.file), os.getpid()
        until_s = time.monotonic() + ALONE_S
        try:
            while not _locked(descriptor):
                if time.monotonic() >= until_s:
                    raise OSError(errno.EBUSY, f"another process has held it for {ALONE_S:g} s", str(path))
                time.sleep(LOOK_S)
            yield
        finally:
            free(descriptor, holder_pid)

    def address(self, path: Path) -> str:
        """Return the path as Hadoop takes it: literally. Escaped, the path would name another file."""
        return f"file:{path}"

    def check_writable(self, directory: Path) -> None:
        """Raise OSError if this user cannot make, rename or remove files in a directory, or cannot make the directory
        where it does not exist yet. Changes nothing."""
        found = next(each for each in (directory, *directory.absolute().parents) if each.exists())
        if not found.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "this is not a directory", str(found))
        if os.statvfs(found).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, "this file system may only be read", str(found))
        if not os.access(found, os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, "this user may not write to it", str(found))

    def files(self, directory: Path) -> dict[str, int]:
        """Return the names and sizes in bytes of a directory's regular files; nothing if there is no such directory."""
        try:
            entries = os.scandir(directory)
        except FileNotFoundError:
            return {}
        found: dict[str, int] = {}
        with entries:
            for entry in entries:
                # Skip dangling links and files that are removed meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    if stat.S_ISREG(status.st_mode):
                        found[entry.name] = status.st_size
        return found

    def read(self, path: Path) -> bytes | None:
        """Return a file's content, None if there is no file."""
        try:
            return read_received(path, sys.maxsize, through_links=True)
        except FileNotFoundError:
            return None

    def tail(self, path: Path, size_bytes: int) -> bytes:
        """Return the last bytes of a file."""
        with open_received(path, through_links=True) as file:
            file.seek(-min(size_bytes, os.fstat(file.fileno()).st_size), os.SEEK_END)
            return file.read()

    def sha256(self, path: Path) -> str:
        """Return the SHA-256 of a file, in hexadecimal digits."""
        with open_received(path, through_links=True) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def is_link(self, path: Path) -> bool:
        """Whether the path is a symbolic link."""
        return path.is_symlink()

    def make_directory(self, path: Path) -> None:
        """Make a directory and its missing parents; durable."""
        if path.is_dir():
            return
        self.make_directory(path.parent)
        path.mkdir(UMASK.directory, exist_ok=True)
        self.sync_directory(path.parent)

    def write(self, path: Path, data: bytes) -> None:
        """Create or replace a file. The file's content is durable, its name is not; not atomic."""
        path.unlink(missing_ok=True)
        with os.fdopen(create(path, UMASK.file), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def append(self, path: Path, data: bytes) -> None:
        """Append to a file; durable, not atomic: a crash may leave a part of the data."""
        with os.fdopen(open_own(path, UMASK.file, append=True), "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, replacing `new`. Atomic; durable when both directories are synced."""
        old.rename(new)

    def unlink(self, path: Path) -> None:
        """Remove a file, if it exists."""
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with its content, if it exists."""
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


def _locked(descriptor: int) -> bool:
    """Lock a file, unless another process has; True also where the file system has no locks."""
    try:
        return try_lock_file(descriptor)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True
