"""Reading the right bytes: comparing files with the content read from them, and reading for a task."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import Self

from recovery.appended.files import FileStat, InputFiles, OpenFile, PathPattern, display
from recovery.appended.locate import DirectoryListing, locate
from recovery.appended.plan import Range, Slice
from recovery.appended.position import FilePosition, Read
from recovery.appended.survey import rewritten, vanished
from recovery.errors import InputRewrittenError, StorageError
from recovery.host.identity import host_name

ATTEMPTS = 5
"""The most looks in a row when files are renamed or truncated during each."""
_SAMPLE_BYTES = 4096
_SAMPLES = 16


class MovedError(Exception):
    """A file was renamed or truncated between two steps of one look; the caller looks again."""


def open_same(files: InputFiles, file: FileStat) -> OpenFile:
    """Open a file found by a look. Raises MovedError if the file no longer has that name, or StorageError."""
    try:
        opened = files.open(file.path)
    except OSError as error:
        raise StorageError(str(error), path=display(file.path)) from error
    if opened is None:
        raise MovedError
    if not opened.stat().same_file(file):
        opened.close()
        raise MovedError
    return opened


class Checks:
    """Comparisons of content, remembered while the files stay unchanged."""

    def __init__(self, files: InputFiles) -> None:
        self._files = files
        self._known: dict[tuple[FileStat, int, str], bool] = {}
        self._used: dict[tuple[FileStat, int, str], bool] = {}

    def begin(self) -> None:
        """Forget the comparisons that were not used since the last call."""
        self._known, self._used = self._used, {}

    def holds(self, file: FileStat, position: FilePosition) -> bool:
        """Return whether the file begins with the content that was read.

        Raises StorageError if the file with the position's own path cannot be read.
        """
        if file.size < position.needed_bytes:
            return False
        key = (file, position.offset, position.digest)
        if key not in self._used:
            self._used[key] = self._known[key] if key in self._known else self._holds(file, position)
        return self._used[key]

    def begins_with(self, longer: FileStat, shorter: FileStat) -> bool:
        """Return whether one file begins with the other's content, judged by both ends of it and samples between."""
        last = max(0, shorter.size - _SAMPLE_BYTES)
        places = {last * i // _SAMPLES for i in range(_SAMPLES + 1)}
        length = min(_SAMPLE_BYTES, shorter.size)
        with open_same(self._files, longer) as one, open_same(self._files, shorter) as other:
            return all(one.read(place, length) == other.read(place, length) for place in sorted(places))

    def packs_nothing(self, compressed: FileStat) -> bool:
        """Return whether a file that gzip made is of an empty one: it ends with the length, modulo 4 GB."""
        if not compressed.name.endswith(".gz") or compressed.size > _SAMPLE_BYTES:
            return False
        with open_same(self._files, compressed) as opened:
            return opened.read(compressed.size - 4, 4) == bytes(4)

    def _holds(self, file: FileStat, position: FilePosition) -> bool:
        try:
            with open_same(self._files, file) as opened:
                return position.holds_in(opened.read, opened.stat().size)
        except MovedError:
            return False
        except StorageError:
            if file.path == position.path:
                raise
            return False


class TaskFiles:
    """The files of a task's slices, one open at a time. Calling it with a slice returns a reader of its file.

    A file is the planned one if its content is: its inode, time and size may differ on this host.
    """

    def __init__(self, files: InputFiles, *, shared: bool = False) -> None:
        """shared: the files were planned on another host, perhaps, which sees them under the same path."""
        self._files = files
        self._shared = shared
        self._current: _CheckedFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, piece: Slice) -> Read:
        if self._current is None or self._current.whole != piece.whole:
            self._close()
            self._current = _CheckedFile(self._files, piece.whole)
        return self._read_shared if self._shared else self._current.read

    def _read_shared(self, offset: int, length: int) -> bytes:
        """Read, and say which host does not see the file."""
        assert self._current is not None
        try:
            return self._current.read(offset, length)
        except (InputRewrittenError, StorageError) as error:
            raise StorageError(
                f"host {host_name()} does not see this file as the driver's host does: {error.found}",
                path=error.path,
                cause="The option sharedFiles is true, and the mount is missing or another one there; or the file was "
                "removed or rewritten.",
                remedy="Mount the same file system under the same path on every host, then run the same command again: "
                "it continues from the last closed epoch.",
            ) from error

    def _close(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None


class _CheckedFile:
    """The file that holds a range, even if rotation moves it during reading."""

    def __init__(self, files: InputFiles, whole: Range) -> None:
        self.whole = whole
        self._files = files
        self._file: OpenFile | None = None
        self._expected = replace(whole.expected, path=whole.path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly these bytes. Raises InputRewrittenError if no file has them any more.

        The check follows the read, so bytes from a truncation or rewrite in the meantime are never mistaken for the
        right ones.
        """
        for _ in range(ATTEMPTS):
            if self._file is None:
                self._file = self._find()
            data = self._file.read(offset, length)
            if len(data) == length and self._holds(self._file):
                return data
            self.close()
        raise vanished(self._expected)

    def _holds(self, file: OpenFile) -> bool:
        return self._expected.holds_in(file.read, file.stat().size)

    def _find(self) -> OpenFile:
        path = self.whole.path
        try:
            opened = self._files.open(path)
        except OSError as error:
            raise StorageError(str(error), path=display(path)) from error
        if opened is not None:
            if self._holds(opened):
                return opened
            opened.close()
        for _ in range(ATTEMPTS):
            look = DirectoryListing(
                self._files, PathPattern(self._expected.directory, self._expected.name, is_glob=False)
            )
            found = locate({0: self._expected}, look, Checks(self._files).holds)
            if found:
                try:
                    return open_same(self._files, found[0])
                except MovedError:
                    continue
        here = look.at(path)
        raise vanished(self._expected) if here is None else rewritten(self._expected, here)
