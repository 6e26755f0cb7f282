"""A file system in memory that can be cut off at any operation, fail at any, and lose what was not synced."""

from __future__ import annotations

import contextlib
import copy
import errno
import hashlib
from dataclasses import dataclass
from pathlib import Path
from random import Random

from recovery.sinks.disk import Disk


class Killed(BaseException):
    """The process ends here."""


def parent_of(path: Path) -> str:
    """The directory of a path, as text: paths themselves are slow to compare, and these tests compare millions."""
    return str(path).rpartition("/")[0]


@dataclass
class Inode:
    """A file's content: as programs see it, and as it would be after a power loss."""

    data: bytes
    durable: bytes | None = None


class MemoryDisk(Disk):
    """Files by path. Directories exist when they are made, durably.

    Content is durable when synced. Changes of names are durable when a directory they touch is synced; until then a
    power loss keeps any of them and drops any other. A rename is kept or dropped whole.
    """

    def __init__(self) -> None:
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        self.pending: list[tuple[str, Path, Path | None, Inode | None]] = []
        self.directories: set[Path] = set()
        self.operations = 0
        self.kill_at = self.fail_at = self.fail_from = 0

    # ---- what tests do

    def put(self, path: Path, data: bytes) -> None:
        """A file as Spark leaves it: nothing of it is durable. Counts as no operation."""
        self._add_directory(path.parent)
        self._set(path, Inode(data))

    def text(self, path: Path) -> dict[str, bytes]:
        """The files in a directory."""
        here = str(path)
        return {p.name: inode.data for p, inode in self.names.items() if parent_of(p) == here}

    def healthy(self) -> MemoryDisk:
        """The same files, with nothing that fails."""
        self.kill_at = self.fail_at = self.fail_from = self.operations = 0
        return self

    def after_power_loss(self, random: Random) -> MemoryDisk:
        """A disk as it might be found when the power is back."""
        found = MemoryDisk()
        found.directories = set(self.directories)
        kept = dict(self.durable_names)
        for kind, path, new, inode in self.pending:
            if random.random() < 0.5:
                continue
            if kind == "set":
                kept[path] = inode
            elif kind == "unlink":
                kept.pop(path, None)
            elif kept.get(path) is inode:
                kept[new] = kept.pop(path)
        for path, inode in kept.items():
            content = inode.durable or b""
            if content != inode.data and random.random() < 0.5:
                content = inode.data[: random.randrange(len(content), len(inode.data) + 1)]
            found.names[path] = found.durable_names[path] = Inode(content, content)
        return found

    def copy(self) -> MemoryDisk:
        return copy.deepcopy(self)

    def __deepcopy__(self, memo) -> MemoryDisk:
        copied = MemoryDisk()
        inodes = {id(inode): Inode(inode.data, inode.durable) for inode in self.names.values()}
        for known in (self.durable_names.values(), (change[3] for change in self.pending if change[3])):
            for inode in known:
                inodes.setdefault(id(inode), Inode(inode.data, inode.durable))
        copied.names = {path: inodes[id(inode)] for path, inode in self.names.items()}
        copied.durable_names = {path: inodes[id(inode)] for path, inode in self.durable_names.items()}
        copied.pending = [(k, p, n, inodes[id(i)] if i else None) for k, p, n, i in self.pending]
        copied.directories = set(self.directories)
        return copied

    # ---- what programs do

    @contextlib.contextmanager
    def alone(self, path):
        self._operation(path)
        yield

    def check_writable(self, directory):
        pass

    def files(self, directory):
        self._operation(directory)
        return {name: len(data) for name, data in self.text(directory).items()}

    def read(self, path):
        self._operation(path)
        return self.names[path].data if path in self.names else None

    def sha256(self, path):
        self._operation(path)
        return hashlib.sha256(self.names[path].data).hexdigest()

    def make_directory(self, path):
        if path not in self.directories:
            self._operation(path)
            self._add_directory(path)

    def write(self, path, data):
        self._set(path, Inode(b""))
        self._content(path, b"", data)

    def append(self, path, data):
        if path not in self.names:
            self._set(path, Inode(b""))
        self._content(path, self.names[path].data, data)

    def rename(self, old, new):
        self._operation(old)
        inode = self.names.pop(old, None)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(old))
        self.names[new] = inode
        self.pending.append(("rename", old, new, inode))

    def unlink(self, path):
        self._operation(path)
        if self.names.pop(path, None) is not None:
            self.pending.append(("unlink", path, None, None))

    def remove_tree(self, path):
        below = f"{path}/"
        for each in [p for p in self.names if str(p).startswith(below)]:
            self.unlink(each)
        self._operation(path)
        self.directories = {d for d in self.directories if not f"{d}/".startswith(below)}

    def sync(self, path):
        self._operation(path)
        self.names[path].durable = self.names[path].data

    def sync_directory(self, path):
        self._operation(path)
        here, left = str(path), []
        for change in self.pending:
            kind, one, new, inode = change
            if parent_of(one) != here and (new is None or parent_of(new) != here):
                left.append(change)
            elif kind == "set":
                self.durable_names[one] = inode
            elif kind == "unlink":
                self.durable_names.pop(one, None)
            else:
                self.durable_names.pop(one, None)
                self.durable_names[new] = inode
        self.pending = left

    def _add_directory(self, path: Path) -> None:
        if path not in self.directories:
            self.directories |= {path, *path.parents}

    def _set(self, path: Path, inode: Inode) -> None:
        self.names[path] = inode
        self.pending.append(("set", path, None, inode))

    def _content(self, path: Path, before: bytes, added: bytes) -> None:
        """Half of it is there when the operation is cut off."""
        inode = self.names[path]
        inode.data = before + added[: len(added) // 2]
        self._operation(path)
        inode.data = before + added
        inode.durable = inode.data

    def _operation(self, path: Path) -> None:
        self.operations += 1
        if self.operations == self.kill_at:
            raise Killed
        if self.operations == self.fail_at or 0 < self.fail_from <= self.operations:
            raise OSError(errno.ENOSPC, "no space left", str(path))
