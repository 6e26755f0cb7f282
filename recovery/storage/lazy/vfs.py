"""SQLite's file system for partitions whose pages are still being fetched.

This file system opens `part-N.sqlite3-lazy`, and means `part-N.sqlite3`: so SQLite's log gets a name of its own. What
SQLite reads is fetched first. Everything else, locks and the log's index among it, is that of the usual file system, so
connections of both kinds can use a file together from the moment on at which all of it is there.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from recovery.host.locks import lock_file
from recovery.storage.lazy.names import SUFFIX
from recovery.storage.lazy.pages import HEADER, Pages, pages_at, without_header

NAME = "recovery-lazy"
_LOG = f"{SUFFIX}-wal"


class LazyFile(apsw.VFSFile):
    """A partition, as SQLite sees it."""

    def __init__(self, name: str, flags: list[int]) -> None:
        """name: the path of the partition's lazy file."""
        try:
            self._pages: Pages = pages_at(Path(name))
        except FileNotFoundError as error:
            raise apsw.CantOpenError(f"{name} is gone") from error
        self._page_bytes = self._pages.page_bytes
        # Also for reading: what is fetched is kept in the file.
        wanted = flags[0]
        flags[0] = wanted & ~apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_READWRITE
        super().__init__("unix", str(self._pages.path), flags)
        if wanted & apsw.SQLITE_OPEN_READONLY:
            flags[1] = flags[1] & ~apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_READONLY

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - SQLite's name
        """Read from the file; fetch absent pages first."""
        pages = self._pages
        for page in range(offset // self._page_bytes, (offset + amount - 1) // self._page_bytes + 1):
            if not pages.has(page):
                pages.need(page)
        found = super().xRead(amount, offset)
        if offset >= len(HEADER):
            return found
        return HEADER[offset : offset + len(found)] + found[len(HEADER) - offset :]

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        """Write to the file, and mark the pages, so that nothing that is fetched replaces them."""
        pages = self._pages
        first, end = offset // self._page_bytes, -(-(offset + len(data)) // self._page_bytes)
        if all(map(pages.keeps, range(first, end))):
            super().xWrite(*without_header(data, offset))
            return
        if offset % self._page_bytes or len(data) % self._page_bytes:
            for page in range(first, end):
                if not pages.has(page):
                    pages.need(page)
        with pages.locked():
            super().xWrite(*without_header(data, offset))
            pages.keep(first, end)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        """Truncate the file; what was cut off is not fetched any more."""
        if newsize >= self._pages.count * self._page_bytes:
            super().xTruncate(newsize)
            return
        with self._pages.locked():
            super().xTruncate(newsize)
            self._pages.keep(newsize // self._page_bytes, self._pages.count)

    def xSync(self, flags: int) -> None:  # noqa: N802
        """Sync the file, then the marks."""
        super().xSync(flags)
        self._pages.sync_marks()


class LazyFiles(apsw.VFS):
    """The file system."""

    def __init__(self) -> None:
        super().__init__(NAME, "unix")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        """Open a partition, its log, or another file."""
        shown = name.filename() if isinstance(name, apsw.URIFilename) else name
        if shown is not None and shown.endswith(SUFFIX) and flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            return LazyFile(shown, flags)
        if shown is None or not shown.endswith(_LOG):
            return apsw.VFSFile("unix", name, flags)
        # While this is decided, the partition must not become an ordinary one, whose log has the usual name.
        try:
            side = os.open(shown.removesuffix("-wal"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return apsw.VFSFile("unix", _usual(shown), flags)
        try:
            lock_file(side, shared=True)
            there = Path(shown.removesuffix("-wal")).exists()
            return apsw.VFSFile("unix", shown if there else _usual(shown), flags)
        finally:
            os.close(side)

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        """Return whether a file can be used so."""
        if pathname.endswith(_LOG) and not Path(pathname.removesuffix("-wal")).exists():
            pathname = _usual(pathname)
        return super().xAccess(pathname, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        """Remove a file; a log is removed under both of its names."""
        if filename.endswith(_LOG):
            usual = _usual(filename)
            if Path(usual).exists():
                super().xDelete(usual, syncdir)
            if not Path(filename).exists():
                return
        super().xDelete(filename, syncdir)


def _usual(log: str) -> str:
    return f"{log.removesuffix(_LOG)}-wal"


_registered: list[LazyFiles] = []


def vfs_name() -> str:
    """Return the name of the file system, which is registered with the first call."""
    if not _registered:
        _registered.append(LazyFiles())
    return NAME
