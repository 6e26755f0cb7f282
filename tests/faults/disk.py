"""Disks that fail: SQLite file systems that give errors on demand, or forget what was not synced.

Both stand below SQLite as its default file system while they are in use, and see only the files below their root.
The index of a log (-shm) is memory, not disk, and does not come by here.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import apsw

SECTOR = 512
_names = itertools.count()


class Broken(apsw.VFS):
    """Fails at the k-th operation on a file below `root`, once or from then on.

    kind: "io" for an I/O error of any operation, "full" for a disk on which nothing can be written.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root.resolve())
        self.lock = threading.Lock()
        self.name = f"broken-{next(_names)}"
        super().__init__(self.name, "unix", makedefault=True)
        self.heal()

    def heal(self) -> None:
        """Let everything succeed from now on, and restart the count."""
        self.at, self.lasting, self.kind = 0, False, "io"
        self.count = self.failed = 0

    def fail_at(self, at: int, kind: str, lasting: bool) -> None:
        """Fail at operation number `at` from now on; the first is 1."""
        self.heal()
        self.at, self.kind, self.lasting = at, kind, lasting

    def visit(self, operation: str) -> None:
        """Count an operation, and raise if it is the one, or after it."""
        writes = operation in ("write", "truncate", "create")
        with self.lock:
            if self.kind == "full" and not writes:
                return
            self.count += 1
            if not self.at or self.count < self.at or (self.count > self.at and not self.lasting):
                return
            self.failed += 1
        if operation in ("open", "create"):
            raise apsw.CantOpenError("broken disk")
        if self.kind == "full":
            raise apsw.FullError("full disk")
        raise apsw.IOError("broken disk")

    def xOpen(self, name, flags):  # noqa: N802 (apsw's name)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or not path.startswith(self.root):
            return apsw.VFSFile("unix", name, flags)
        self.visit("open" if Path(path).exists() else "create")
        return _BrokenFile(self, name, flags)

    def xDelete(self, path, sync):  # noqa: N802
        if path.startswith(self.root):
            self.visit("delete")
        super().xDelete(path, sync)


class _File(apsw.VFSFile):
    def xLock(self, level):  # noqa: N802
        try:
            super().xLock(level)
        except apsw.IOError:
            # Closing the last connection to a file that may only be read: SQLite takes it as it comes, where apsw would
            # raise it.
            raise apsw.BusyError from None


class _BrokenFile(_File):
    def __init__(self, disk: Broken, name, flags) -> None:
        super().__init__("unix", name, flags)
        self.disk = disk

    def xRead(self, amount, offset):  # noqa: N802
        self.disk.visit("read")
        return super().xRead(amount, offset)

    def xWrite(self, data, offset):  # noqa: N802
        self.disk.visit("write")
        super().xWrite(data, offset)

    def xTruncate(self, size):  # noqa: N802
        self.disk.visit("truncate")
        super().xTruncate(size)

    def xSync(self, flags):  # noqa: N802
        self.disk.visit("sync")
        super().xSync(flags)

    def xFileSize(self):  # noqa: N802
        self.disk.visit("size")
        return super().xFileSize()


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a file, or a mark of the test (kind "mark", with its value in `data`)."""

    kind: str
    path: str = ""
    data: object = None
    offset: int = 0


@dataclass(slots=True)
class _Content:
    """What a disk has for sure of a file, None when not even its name, and what may have reached it since."""

    durable: bytes | None = None
    pending: list[Event] = field(default_factory=list)


class Recorder(apsw.VFS):
    """Notes every write, truncation, sync, creation and deletion below `root`, in their order."""

    def __init__(self, root: Path) -> None:
        self.root = str(root.resolve())
        self.events: list[Event] = []
        self.lock = threading.Lock()
        self.name = f"recorder-{next(_names)}"
        super().__init__(self.name, "unix", makedefault=True)

    def note(self, kind: str, path: str = "", data: object = None, offset: int = 0) -> None:
        with self.lock:
            self.events.append(Event(kind, path, data, offset))

    def mark(self, value: object) -> None:
        """Remember that the test was here: what was acknowledged before may not be lost after."""
        self.note("mark", data=value)

    def xOpen(self, name, flags):  # noqa: N802
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or not path.startswith(self.root):
            return apsw.VFSFile("unix", name, flags)
        created = not Path(path).exists()
        opened = _RecordedFile(self, path, name, flags)
        if created and Path(path).exists():
            self.note("create", path)
        return opened

    def xDelete(self, path, sync):  # noqa: N802
        if path.startswith(self.root):
            self.note("delete", path, bool(sync))
        super().xDelete(path, sync)


class _RecordedFile(_File):
    def __init__(self, disk: Recorder, path: str, name, flags) -> None:
        super().__init__("unix", name, flags)
        self.disk = disk
        self.path = path

    def xWrite(self, data, offset):  # noqa: N802
        self.disk.note("write", self.path, bytes(data), offset)
        super().xWrite(data, offset)

    def xTruncate(self, size):  # noqa: N802
        self.disk.note("truncate", self.path, None, size)
        super().xTruncate(size)

    def xSync(self, flags):  # noqa: N802
        super().xSync(flags)
        self.disk.note("sync", self.path)


class Replay:
    """A disk that follows the events of a recorder, and can lose its power after any of them."""

    def __init__(self, before: dict[str, bytes]) -> None:
        """`before`: the files that were on the disk, durably, when the recorder began."""
        self.files = {path: _Content(content) for path, content in before.items()}

    def follow(self, event: Event) -> None:
        """Take one event."""
        if event.kind == "mark":
            return
        file = self.files.setdefault(event.path, _Content())
        if event.kind == "sync":
            # The first sync of a new file syncs its directory as well, as SQLite's own file system does.
            file.durable = _applied(file.durable or b"", file.pending)
            file.pending.clear()
        else:
            file.pending.append(event)

    def power_loss(self, generator: random.Random, directory: Path) -> None:
        """Write into `directory` what may be left: of what was not synced anything, torn by sectors, or nothing."""
        keep = generator.choice([0.0, 0.2, 0.5, 0.8, 1.0])
        for path, file in self.files.items():
            content = file.durable
            for event in file.pending:
                if generator.random() >= keep:
                    if event.kind == "delete":
                        break  # the name still leads to the old file: nothing of a new one is there
                    continue
                if event.kind == "delete":
                    content = None
                elif event.kind == "write" and generator.random() < 0.3:
                    content = _torn(content or b"", event, generator)
                else:
                    content = _applied(content or b"", [event])
            if content is not None:
                (directory / Path(path).name).write_bytes(content)


def _applied(content: bytes, events: list[Event]) -> bytes:
    found = bytearray(content)
    for event in events:
        if event.kind == "write":
            assert isinstance(event.data, bytes)
            _put(found, event.offset, event.data)
        elif event.kind == "truncate":
            del found[event.offset :]
        elif event.kind == "delete":
            found.clear()
    return bytes(found)


def _torn(content: bytes, event: Event, generator: random.Random) -> bytes:
    """Some sectors of a write arrived, others not."""
    found = bytearray(content)
    assert isinstance(event.data, bytes)
    for start in range(0, len(event.data), SECTOR):
        if generator.random() < 0.5:
            _put(found, event.offset + start, event.data[start : start + SECTOR])
    return bytes(found)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


@contextlib.contextmanager
def in_use(disk: Broken | Recorder) -> Iterator[None]:
    """SQLite's default file system is `disk`, until the end of the block."""
    try:
        yield
    finally:
        apsw.set_default_vfs("unix")
        disk.unregister()
