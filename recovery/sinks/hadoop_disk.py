"""The operations of `Disk` on a file system without an atomic rename, such as an object store.

No operation needs more than these: a file is whole once it was created and closed, and a rename that is interrupted
leaves the old file, the new one, or both, each whole.

    create, replace   1. Create a draft under a name that nothing else uses.
                      2. Rename the draft to its final name, or, where that is taken, to `.NAME.new`.
                      3. Delete the file that is replaced, and rename `.NAME.new` to its name.
                      A reader takes `.NAME.new` where the name is missing, so there is the old content or the new one.
    append            A file of its own, a segment, which is never changed: `.NAME.NUMBER-LEVEL-RANDOM`. The content of
                      the file is that of its name followed by its segments. `FOLD` segments of one level are written
                      again as one of the next level, and deleted after that: a crash between repeats content, as the
                      manifest allows.
    rename            Only to names that are used once. If the new name is taken, an earlier rename was interrupted
                      after its copy: the old file is deleted. If the sizes of the two files differ, the copy is made
                      again.
"""

from __future__ import annotations

import contextlib
import errno
import re
import secrets
from bisect import insort
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from recovery.sinks.disk import Disk

FOLD = 64
_SEGMENT = re.compile(r"(\d{8,})-(\d)-[0-9a-f]{8}")


class Files(Protocol):
    """The files of a file system; see `recovery.places.hadoop.HadoopFiles`."""

    def sizes(self, directory: Path) -> dict[str, int]: ...
    def size(self, path: Path) -> int | None: ...
    def read(self, path: Path, start: int = 0) -> bytes | None: ...
    def create(self, path: Path, data: bytes) -> None: ...
    def rename(self, old: Path, new: Path) -> bool: ...
    def delete(self, path: Path) -> None: ...
    def make_directory(self, path: Path) -> None: ...


class HadoopDisk(Disk):
    """Operations on the files of another file system, which are durable once they return. Each may raise OSError."""

    def __init__(self, files: Files, address: str) -> None:
        """address: of the file system, without a path."""
        self._files = files
        self._address = address
        self._segments: dict[Path, list[str]] = {}

    @contextlib.contextmanager
    def alone(self, path: Path) -> Iterator[None]:
        """Exclude nobody: there are no locks."""
        yield

    def shown(self, path: Path) -> str:
        return f"{self._address}{path}"

    def address(self, path: Path) -> str:
        return f"{self._address}{path}"

    def check_writable(self, directory: Path) -> None:
        """Do nothing: only writing shows what the file system allows."""

    def files(self, directory: Path) -> dict[str, int]:
        return self._files.sizes(directory)

    def read(self, path: Path) -> bytes | None:
        names = self._files.sizes(path.parent)
        content = self._files.read(path) if path.name in names else self._files.read(_next(path))
        if content is None:
            # Between the listing and now it got its name.
            content = self._files.read(path)
        parts = [content, *(self._files.read(path.with_name(name)) for name in _segments_of(path, names))]
        found = [part for part in parts if part is not None]
        return b"".join(found) if found else None

    def tail(self, path: Path, size_bytes: int) -> bytes:
        size = self._files.size(path)
        data = None if size is None else self._files.read(path, max(0, size - size_bytes))
        if data is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", self.shown(path))
        return data

    def sha256(self, path: Path) -> str:
        """Return "": reading all output through the driver would take as long as writing it. Sizes are compared, and
        the file system checks content."""
        return ""

    def is_link(self, path: Path) -> bool:
        return False

    def make_directory(self, path: Path) -> None:
        self._files.make_directory(path)

    def write(self, path: Path, data: bytes) -> None:
        self._files.create(path, data)

    def append(self, path: Path, data: bytes) -> None:
        if path not in self._segments:
            self._segments[path] = _segments_of(path, self._files.sizes(path.parent))
        known = self._segments[path]
        self._add(path, _number(path, known[-1]) + 1 if known else 1, 0, data)
        for level in range(9):
            folded = [name for name in known if _level(path, name) == level]
            if len(folded) < FOLD:
                return
            parts = [self._files.read(path.with_name(name)) for name in folded]
            self._add(path, _number(path, folded[0]), level + 1, b"".join(part for part in parts if part is not None))
            for name in folded:
                self._files.delete(path.with_name(name))
                known.remove(name)

    def rename(self, old: Path, new: Path) -> None:
        if self._files.rename(old, new):
            return
        size, taken = self._files.size(old), self._files.size(new)
        if size is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", self.shown(old))
        if size == taken:
            self._files.delete(old)
            return
        if taken is not None:
            self._files.delete(new)
        if not self._files.rename(old, new):
            raise OSError(errno.EIO, f"the file system would not rename it to {self.shown(new)}", self.shown(old))

    def unlink(self, path: Path) -> None:
        self._files.delete(path)

    def remove_tree(self, path: Path) -> None:
        self._files.delete(path)

    def sync(self, path: Path) -> None:
        """Do nothing: what was closed is durable, as far as the file system promises that."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing: names are durable."""

    def replace(self, path: Path, data: bytes) -> None:
        names = self._files.sizes(path.parent)
        following = _next(path)
        if path.name not in names and following.name in names:
            # An earlier replacing was interrupted here.
            self.rename(following, path)
            names[path.name] = names.pop(following.name)
        if path.name in names:
            if following.name in names:
                self._files.delete(following)
            self._put(following, data)
            self._files.delete(path)
            self.rename(following, path)
        else:
            self._put(path, data)
        # The newest first: a reader sees entries without a gap.
        for name in reversed(_segments_of(path, names)):
            self._files.delete(path.with_name(name))
        self._segments.pop(path, None)

    def _add(self, path: Path, number: int, level: int, data: bytes) -> None:
        name = f".{path.name}.{number:08}-{level}-{secrets.token_hex(4)}"
        self._put(path.with_name(name), data)
        insort(self._segments[path], name)

    def _put(self, path: Path, data: bytes) -> None:
        """Give a name that is not taken to a file with this content: whole, or not at all."""
        draft = path.with_name(f"{'.' if path.name[0] != '.' else ''}{path.name}.draft-{secrets.token_hex(4)}")
        self._files.create(draft, data)
        self.rename(draft, path)


def _next(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _segments_of(path: Path, names: dict[str, int]) -> list[str]:
    """Return the names of a file's segments in the order in which they were appended."""
    before = f".{path.name}."
    return sorted(n for n in names if n.startswith(before) and _SEGMENT.fullmatch(n.removeprefix(before)))


def _number(path: Path, name: str) -> int:
    return int(name.removeprefix(f".{path.name}.").split("-")[0])


def _level(path: Path, name: str) -> int:
    return int(name.removeprefix(f".{path.name}.").split("-")[1])
