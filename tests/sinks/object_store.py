"""A file system in memory without an atomic rename, and one without atomic writes, cut off at any request."""

from __future__ import annotations

import copy
import errno
from pathlib import Path

from recovery.sinks.hadoop_disk import HadoopDisk
from tests.sinks.memory_disk import Killed, parent_of


class ObjectStore:
    """Objects by path. torn: a file that is created is visible before it is whole, and a rename is atomic, as in HDFS;
    otherwise the reverse, as in S3: a rename copies, then deletes, and a copy appears whole."""

    def __init__(self, torn: bool = False) -> None:
        self.torn = torn
        self.objects: dict[Path, bytes] = {}
        self.operations = 0
        self.kill_at = self.fail_at = self.fail_from = 0

    def sizes(self, directory: Path) -> dict[str, int]:
        self._request()
        return {name: len(data) for name, data in self.below(directory).items()}

    def below(self, directory: Path) -> dict[str, bytes]:
        """The objects in a directory by name; counts as no request."""
        here = str(directory)
        return {path.name: data for path, data in self.objects.items() if parent_of(path) == here}

    def size(self, path: Path) -> int | None:
        self._request()
        return len(self.objects[path]) if path in self.objects else None

    def read(self, path: Path, start: int = 0) -> bytes | None:
        self._request()
        return self.objects[path][start:] if path in self.objects else None

    def create(self, path: Path, data: bytes) -> None:
        if self.torn:
            self.objects[path] = data[: len(data) // 2]
        self._request()
        self.objects[path] = data

    def rename(self, old: Path, new: Path) -> bool:
        self._request()
        if old not in self.objects or new in self.objects:
            return False
        self.objects[new] = self.objects[old]
        if not self.torn:
            self._request()
        del self.objects[old]
        return True

    def delete(self, path: Path) -> None:
        below = f"{path}/"
        for each in [p for p in self.objects if p == path or str(p).startswith(below)]:
            self._request()
            del self.objects[each]
        self._request()

    def make_directory(self, path: Path) -> None:
        self._request()

    def _request(self) -> None:
        self.operations += 1
        if self.operations == self.kill_at:
            raise Killed
        if self.operations == self.fail_at or 0 < self.fail_from <= self.operations:
            raise OSError(errno.EIO, "503 Slow Down")


class StoreDisk(HadoopDisk):
    """What the sink does to an object store, with what the tests of `MemoryDisk` do to it."""

    def __init__(self, torn: bool = False) -> None:
        self.store = ObjectStore(torn)
        super().__init__(self.store, "s3a://bucket")

    def put(self, path: Path, data: bytes) -> None:
        self.store.objects[path] = data

    def text(self, path: Path) -> dict[str, bytes]:
        return self.store.below(path)

    def restarted(self) -> StoreDisk:
        """The same objects, as the next process finds them, with nothing that fails."""
        found = StoreDisk(self.store.torn)
        found.store.objects = copy.copy(self.store.objects)
        return found
