"""The pages of a partition that a lazy restore has begun: which are in the file, and where the missing pages come from.

While the pages of a partition are fetched, the partition consists of

part-N.sqlite3           the file, of its full size, with holes. In place of SQLite's first 16 bytes it has `NOT_WHOLE`,
                         so a tool that opens it finds no database.
part-N.sqlite3-lazy      the source of the pages, the index of its frames, and a byte per page
part-N.sqlite3-lazy-wal  SQLite's log. Under the log's usual name, a tool that opens the file would move the log into
it.

A page is absent, fetched, or kept. What makes this safe, whatever is killed at whatever moment:

- Only absent pages are written by who fetches, under the lock, and marked after that. A page that SQLite writes is
  marked as kept under the same lock, unless it is kept already. So nothing that was fetched replaces what was written.
- "Fetched" counts until the machine restarts, because nothing was synced. "Kept" counts for good: a fetched page
  becomes kept after the file was synced; one that SQLite wrote is in the log until the file and the marks are synced.
- Every frame is compared with its digest before it is used, so a page is what was stored, or an error.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from weakref import WeakValueDictionary

import apsw
import msgspec

from recovery.base import faults
from recovery.errors import BackupDamagedError, CorruptPartitionError, StorageError
from recovery.host.durable import create, sync
from recovery.host.locks import lock_file, unlock_file
from recovery.places.frames import FrameIndex
from recovery.storage.lazy.names import SUFFIX, lazy_path

if TYPE_CHECKING:
    from recovery.places.protocol import Place

HEADER = b"SQLite format 3\0"
NOT_WHOLE = b"recovery, lazy 1"
assert len(HEADER) == len(NOT_WHOLE)

ABSENT, FETCHED, KEPT = 0, 1, 2
_FORGET = bytes([ABSENT, ABSENT, KEPT])
_TAG = b"recovery pages 1"
_BOOT_AT, _BOOT_BYTES = 16, 48
_SOURCE_AT = 64
_INDEX_AT = 8192
_LENGTH = struct.Struct("<I")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class PageSource(msgspec.Struct, frozen=True):
    """Where the pages come from: an object at a place of backups. index_bytes: of the index of its frames."""

    place: Annotated[str, msgspec.Meta(max_length=4096)]
    object: Annotated[str, msgspec.Meta(max_length=1024)]
    stored_bytes: _Count
    index_bytes: _Count
    page_bytes: Annotated[int, msgspec.Meta(ge=512, le=65536)]


class HydrationProgress(NamedTuple):
    """How many bytes a partition has, and how many of them are in the file. place: where the missing bytes come from.
    is_whole: the partition is an ordinary file."""

    path: Path
    place: str
    there_bytes: int
    total_bytes: int
    is_whole: bool = False


def create_lazy(path: Path, source: PageSource, encoded_index: bytes, first: bytes) -> None:
    """Create a partition of which only the first frame is there. Nothing is synced. Raises ValueError if the frame does
    not begin a database with pages of this size; OSError."""
    page_bytes = source.page_bytes
    index = _index_of_pages(encoded_index, page_bytes)
    if not first.startswith(HEADER) or page_bytes_of(first) != page_bytes:
        raise ValueError("it does not begin like a partition")
    encoded = msgspec.json.encode(source)
    if _SOURCE_AT + _LENGTH.size + len(encoded) > _INDEX_AT:
        raise ValueError("the address of its place is too long")
    pages = index.size_bytes // page_bytes
    with os.fdopen(create(lazy_path(path)), "wb") as side:
        side.write(_TAG + _boot_id())
        side.seek(_SOURCE_AT)
        side.write(_LENGTH.pack(len(encoded)) + encoded)
        side.seek(_INDEX_AT)
        side.write(encoded_index)
        side.write(bytes([FETCHED]) * (len(first) // page_bytes) + bytes(pages - len(first) // page_bytes))
    with os.fdopen(create(path), "wb") as file:
        file.write(NOT_WHOLE + first[len(NOT_WHOLE) :])
        file.truncate(index.size_bytes)


class Pages:
    """The pages of one partition, for all its connections in this process. Other processes have their own `Pages`."""

    def __init__(self, side: Path) -> None:
        """side: see `lazy_path`. Raises FileNotFoundError if all pages are there; StorageError, also if the file is
        another user's, or CorruptPartitionError."""
        self.path = Path(str(side).removesuffix(SUFFIX))
        self.side = side
        self._fd = os.open(side, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        owner = os.fstat(self._fd).st_uid
        if owner != os.geteuid():
            os.close(self._fd)
            raise StorageError(
                f"{side.name} belongs to another user, number {owner}",
                path=self.path,
                cause="The file names the place from which pages are fetched, with the credentials of whoever "
                "reads them.",
                remedy="Read the directory as the user who restored it, or restore it again.",
            )
        try:
            self._map = mmap.mmap(self._fd, 0)
            self.source, self.index = self._read()
        except (ValueError, msgspec.MsgspecError) as error:
            os.close(self._fd)
            raise CorruptPartitionError(
                f"{side.name} does not say where its pages come from: {error}",
                path=self.path,
                cause="The file was altered or cut off.",
                remedy="Restore the directory again from its backup.",
            ) from error
        self.page_bytes = self.source.page_bytes
        self.count = self.index.size_bytes // self.page_bytes
        self._at = _INDEX_AT + self.source.index_bytes
        self._mutex = threading.Lock()
        self._fetching = [threading.Lock() for _ in range(16)]
        # A file of its own: SQLite's files may each be used by one thread at a time.
        self._file = apsw.VFSFile("unix", str(self.path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE, 0])
        self._forget_unsynced()
        self._refuse_another()

    def _refuse_another(self) -> None:
        # A file of which pages are absent never begins like a database. The marks are read last: another process may
        # make the partition an ordinary file meanwhile.
        if self._file.xRead(len(HEADER), 0) == HEADER and self.missing(1) is not None:
            raise CorruptPartitionError(
                f"another file has taken its place, and {self.side.name} is of the one before",
                path=self.path,
                cause="A copy was put over a partition that a lazy restore had not fetched. Pages of its backup would "
                "go into the copy.",
                remedy=f"Remove {self.side.name}, and {self.side.name}-wal if there is one. Then the copy is used.",
            )

    def _read(self) -> tuple[PageSource, FrameIndex]:
        if len(self._map) < _INDEX_AT or self._map[: len(_TAG)] != _TAG:
            raise ValueError("it begins with something else")
        (length,) = _LENGTH.unpack_from(self._map, _SOURCE_AT)
        if _SOURCE_AT + _LENGTH.size + length > _INDEX_AT:
            raise ValueError("its first part is too long")
        text = self._map[_SOURCE_AT + _LENGTH.size : _SOURCE_AT + _LENGTH.size + length]
        source = msgspec.json.decode(text, type=PageSource)
        index = _index_of_pages(self._map[_INDEX_AT : _INDEX_AT + source.index_bytes], source.page_bytes)
        if len(self._map) != _INDEX_AT + source.index_bytes + index.size_bytes // source.page_bytes:
            raise ValueError("its marks are cut off")
        return source, index

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError, apsw.Error):
            os.close(self._fd)
            self._file.xClose()

    def has(self, page: int) -> bool:
        """Return whether a page, counted from 0, can be read from the file."""
        return page >= self.count or self._map[self._at + page] != ABSENT

    @property
    def progress(self) -> HydrationProgress:
        """How much of the partition is fetched."""
        there = self.count - self._marks().count(ABSENT)
        return HydrationProgress(self.path, self.source.place, there * self.page_bytes, self.count * self.page_bytes)

    def _marks(self) -> bytes:
        return self._map[self._at : self._at + self.count]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other threads and processes from writing absent pages, and from making the partition an ordinary one."""
        with self._mutex:
            lock_file(self._fd)
            try:
                yield
            finally:
                unlock_file(self._fd)

    def keeps(self, page: int) -> bool:
        """Return whether nobody will write a page any more but SQLite."""
        return page >= self.count or self._map[self._at + page] == KEPT

    def keep(self, first: int, end: int) -> None:
        """Mark pages as written by SQLite; the caller holds the lock and has written them."""
        for page in range(first, min(end, self.count)):
            self._map[self._at + page] = KEPT

    def sync_marks(self) -> None:
        """Make the marks of `keep` durable, also those of a process that was killed before it did. The file was synced
        before: the log, which has the pages until then, may be emptied next."""
        self._map.flush()

    def missing(self, most_bytes: int) -> tuple[int, int] | None:
        """Return the first frames that lie side by side and miss pages, with up to this many bytes as stored, as first
        and end; None if all is there."""
        page = self._map.find(bytes([ABSENT]), self._at, self._at + self.count) - self._at
        if page < 0:
            return None
        first = page * self.page_bytes // self.index.frame_bytes
        end = first + 1
        while end < self.index.count and not self._is_there(end) and self.index.place(first, end)[1] < most_bytes:
            end += 1
        return first, end

    def _is_there(self, frame: int) -> bool:
        first, end = self._pages_of(frame)
        return self._map.find(bytes([ABSENT]), self._at + first, self._at + end) < 0

    def _pages_of(self, frame: int) -> tuple[int, int]:
        per_frame = self.index.frame_bytes // self.page_bytes
        return frame * per_frame, min(self.count, (frame + 1) * per_frame)

    def need(self, page: int) -> None:
        """Fetch the frame of an absent page. Raises what `fetch` raises."""
        frame = page * self.page_bytes // self.index.frame_bytes
        with self._fetching[frame % len(self._fetching)]:
            if not self.has(page):
                self.fetch(frame, frame + 1)

    def fetch(self, first: int, end: int) -> None:
        """Fetch frames with one request, and write those of their pages that are absent.

        Raises BackupDamagedError naming a frame that is not what was stored, BackupTargetError or StorageError.
        """
        offset, size = self.index.place(first, end)
        stored = memoryview(self._read_range(offset, size))
        for frame in range(first, end):
            at, length = self.index.place(frame, frame + 1)
            try:
                content = self.index.unpacked(frame, bytes(stored[at - offset : at - offset + length]))
            except ValueError as error:
                raise self._damaged(
                    f"{self.source.object}, bytes {at:,} to {at + length:,}, differs from what was stored: {error}"
                ) from error
            faults.reach("hydrate.2.fetched")
            self._write(frame, content)
            faults.reach("hydrate.2.written")

    def _read_range(self, offset: int, size: int) -> bytes:
        # Most processes fetch nothing, and need not wait for what reaches places of backups.
        from recovery.places.protocol import UnreadableError

        try:
            return _target(self.source.place).read_range(self.source.object, offset, size)
        except FileNotFoundError:
            raise self._damaged(f"{self.source.object} is missing") from None
        except UnreadableError as error:
            raise self._damaged(f"{self.source.object} cannot be read: {error}") from error

    def _damaged(self, found: str) -> BackupDamagedError:
        from recovery.places.secrets import shown_address

        return BackupDamagedError(
            f"{self.path.name} needs pages that are not there: {found}",
            path=shown_address(self.source.place),
            remedy="Put the object back. Otherwise restore an older backup into an empty directory.",
        )

    def _write(self, frame: int, content: bytes) -> None:
        first, end = self._pages_of(frame)
        with self.locked():
            page = first
            while page < end:
                until = page
                while until < end and self._map[self._at + until] == ABSENT:
                    until += 1
                if until > page:
                    begin = first * self.page_bytes
                    piece = content[page * self.page_bytes - begin : until * self.page_bytes - begin]
                    self._file.xWrite(*without_header(piece, page * self.page_bytes))
                    self._map[self._at + page : self._at + until] = bytes([FETCHED]) * (until - page)
                page = until + 1

    def sync(self) -> None:
        """Make durable what was fetched so far. Raises StorageError."""
        marks = self._marks()
        with _translated(self.path):
            self._file.xSync(apsw.SQLITE_SYNC_NORMAL)
        page = marks.find(FETCHED)
        while page >= 0:
            self._map[self._at + page] = KEPT
            page = marks.find(FETCHED, page + 1)
        self._map.flush()

    def finish(self) -> None:
        """Make the partition an ordinary file. All pages are there and synced, and a connection of this process has
        SQLite's log open. Raises OSError or StorageError."""
        log, usual = Path(f"{self.side}-wal"), Path(f"{self.path}-wal")
        with self.locked(), _translated(self.path):
            # Connections continue with the log that they have open, and new ones must find the same.
            draft = Path(f"{usual}-draft")
            draft.unlink(missing_ok=True)
            draft.hardlink_to(log)
            draft.replace(usual)
            # One that was linked before is left as it is.
            draft.unlink(missing_ok=True)
            sync(self.path.parent)
            faults.reach("hydrate.4.linked")
            self._file.xWrite(HEADER, 0)
            self._file.xSync(apsw.SQLITE_SYNC_NORMAL)
            faults.reach("hydrate.4.whole")
            self.side.unlink()
            sync(self.path.parent)
            faults.reach("hydrate.4.removed")

    def _forget_unsynced(self) -> None:
        """After a restart of the machine, forget what was fetched and not synced."""
        now = _boot_id()
        with self.locked():
            if self._map[_BOOT_AT : _BOOT_AT + _BOOT_BYTES] != now:
                self._map[self._at : self._at + self.count] = self._marks().translate(_FORGET.ljust(256, b"\0"))
                self._map.flush()
                self._map[_BOOT_AT : _BOOT_AT + _BOOT_BYTES] = now
                self._map.flush()


def page_bytes_of(first: bytes) -> int:
    """Return the size of a database's pages, which its first bytes say."""
    found = int.from_bytes(first[16:18], "big")
    return 65536 if found == 1 else found


def _index_of_pages(encoded: bytes, page_bytes: int) -> FrameIndex:
    """Return the index of frames that consist of whole pages. Raises ValueError."""
    index = FrameIndex(encoded)
    if index.size_bytes % page_bytes or index.frame_bytes % page_bytes:
        raise ValueError("it ends within a page")
    return index


def without_header(content: bytes, offset: int) -> tuple[bytes, int]:
    """Return what to write to the file, without its first bytes, which decide whether the file is whole."""
    if offset >= len(HEADER):
        return content, offset
    return content[len(HEADER) - offset :], len(HEADER)


_open: WeakValueDictionary[tuple[int, str, int], Pages] = WeakValueDictionary()
_opening = threading.Lock()


def pages_at(side: Path) -> Pages:
    """Return this process's view of the pages of a partition. Raises what `Pages` raises."""
    with _opening:
        key = os.getpid(), str(side), side.stat().st_ino
        found = _open.get(key)
        if found is None:
            found = _open[key] = Pages(side)
        return found


@lru_cache(maxsize=4)
def _target(place: str) -> Place:
    from recovery.places.mounted import limited
    from recovery.places.opening import open_place

    return limited(open_place(place))


def _boot_id() -> bytes:
    try:
        return _BOOT_ID.read_bytes().strip().ljust(_BOOT_BYTES)[:_BOOT_BYTES]
    except OSError:
        # Unknown: each process trusts only what was synced.
        return os.urandom(_BOOT_BYTES)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, apsw.Error) as error:
        raise StorageError(str(error), path=path) from error
