"""Files of a file system whose requests fail, or end the process, at any moment; and such files on this host."""

from __future__ import annotations

import errno
import shutil
import threading
from pathlib import Path
from typing import Any

from tests.sinks.memory_disk import Killed

WAYS = ("before", "after", "half")
"""When a request fails: before it is done; after it, so that only its answer is lost; or as a copy that is cut in half.
The last is no error for who asked."""


class Faulty:
    """Other files, whose request number `at` fails in one of the `WAYS`; lasting: and all after it. killed: it does not
    fail, but ends the process."""

    def __init__(self, files: Any, at: int = 0, way: str = "before", lasting: bool = False, killed: bool = False):
        self.requests = 0
        self._files, self._at, self._way, self._lasting, self._killed = files, at, way, lasting, killed
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._files, name)

        def request(*given: Any) -> Any:
            with self._lock:
                self.requests += 1
                hit = self.requests == self._at or (self._lasting and 0 < self._at <= self.requests)
            if not hit:
                return work(*given)
            if self._way == "half" and name in ("put", "fetch"):
                return self._half(name, *given)
            if self._way != "before":
                work(*given)
            if self._killed:
                raise Killed
            raise OSError(errno.EIO, "503 Slow Down")

        return request

    def _half(self, name: str, one: Path, other: Path) -> None:
        if name == "fetch":
            self._files.fetch(one, other)
            other.write_bytes(other.read_bytes()[: other.stat().st_size // 2])
        else:
            self._files.create(other, one.read_bytes()[: one.stat().st_size // 2])


class LocalFiles:
    """The files below a directory of this host, with the methods of `recovery.places.hadoop.HadoopFiles`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _at(self, path: Path) -> Path:
        return self._root / path.relative_to("/")

    def size(self, path: Path) -> int | None:
        return self._at(path).stat().st_size if self._at(path).is_file() else None

    def read(self, path: Path, start: int = 0) -> bytes | None:
        return self._at(path).read_bytes()[start:] if self._at(path).is_file() else None

    def tree(self, directory: Path) -> dict[str, tuple[int, int]]:
        found = {}
        for file in self._at(directory).rglob("*"):
            name = file.relative_to(self._at(directory)).as_posix()
            if file.is_file() and not f"/{name}".count("/."):
                found[name] = (file.stat().st_size, file.stat().st_mtime_ns // 1_000_000)
        return found

    def directories(self, directory: Path) -> list[str]:
        found = self._at(directory)
        return [each.name for each in found.iterdir() if each.is_dir()] if found.is_dir() else []

    def fetch(self, path: Path, target: Path) -> None:
        shutil.copyfile(self._at(path), target)

    def put(self, source: Path, path: Path) -> None:
        self.create(path, source.read_bytes())

    def create(self, path: Path, data: bytes) -> None:
        self._at(path).parent.mkdir(parents=True, exist_ok=True)
        self._at(path).write_bytes(data)

    def delete(self, path: Path) -> None:
        found = self._at(path)
        if found.is_dir():
            shutil.rmtree(found)
        else:
            found.unlink(missing_ok=True)

    def make_directory(self, path: Path) -> None:
        self._at(path).mkdir(parents=True, exist_ok=True)
