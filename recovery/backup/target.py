"""The place of backups: a directory of this machine, or a bucket behind pyarrow's file systems.

Both implementations of `Target` promise little: a name holds what was once written under it, or only a part if the
write failed. (Every object store publishes an interrupted upload as far as it went.) So readers compare with the digest
and size in the manifest, and nothing counts without a manifest.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Protocol, TypeVar

from recovery.backup.arrow import arrow, or_arrow_error
from recovery.base.outside import Answers, CannotTell, Checked, Moment, Question
from recovery.base.untrusted_paths import open_received
from recovery.errors import BackupDamagedError, BackupTargetError
from recovery.host.durable import PRIVATE, UMASK, Modes, create, files_below, make_directories, sync

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

CHUNK_BYTES = 4 << 20
NO_ANSWER_S = 60.0
OPEN_FILES = 256
"""How many objects of which parts were read stay open."""
DRAFT = ".draft"
"""Ends the name of an unfinished object; a killed writer leaves it behind."""

SUFFIXES = (".gz", ".zst")
"""Suffixes of objects: a directory with one takes the place of an object."""
NO_FILE = -1
"""The size of an entry that is a directory, a pipe or a device, which no backup made."""

T = TypeVar("T")


_OF_EVERY_PLACE: Answers = {
    Question.SAME: Checked("the store's id in the manifests and in `lease.json`", (Moment.COPYING, Moment.RESTORING)),
    Question.THERE: Checked(
        "names and sizes of the objects that a backup lists again or a drill finds listed; the SHA-256 of each object "
        "that is read",
        (Moment.COPYING, Moment.RESTORING),
    ),
    Question.CHANGED: Checked(
        "the term in `lease.json`; executions and epochs of the latest backup; newer manifests that cannot be read",
        (Moment.START, Moment.PUBLISHING, Moment.COPYING, Moment.RESTORING),
    ),
    Question.OWNER: Checked(
        "the random number of the term: in `lease.json` of the place and of the directory",
        (Moment.START, Moment.PUBLISHING, Moment.COPYING),
    ),
}


class UnreadableError(ValueError):
    """An entry is not an object, or this user may not read it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object: its name below the target, its size (`NO_FILE` if it is not a file), and when it was written, by the
    clock of its store."""

    name: str
    size_bytes: int
    written_ms: int


class Target(Protocol):
    """A place for objects that are written once. Raises BackupTargetError; FileNotFoundError for a missing object,
    UnreadableError for an entry that is not an object."""

    shown: str

    def write(self, name: str, chunks: Iterable[bytes]) -> int:
        """Write a new object; returns its size. When it returns, the object is durable."""
        ...

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the object's bytes, in chunks; an object whose name ends in .zst is decompressed."""
        ...

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """Return `size` bytes of the object from `offset` on as stored, less if it ends before, in one request."""
        ...

    def entries(self, prefix: str) -> list[Entry]:
        """Return all objects whose name begins with `prefix`, which ends in a slash; sorted by name."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; a missing object is not an error."""
        ...


class DirectoryTarget:
    """A directory of this machine. An object appears under its name whole and synced, or not at all.

    modes: the permissions of directories that are made. An object has the permissions of its directory.
    """

    answers: ClassVar[Answers] = {
        **_OF_EVERY_PLACE,
        Question.ABLE: CannotTell(
            "a full disk, or a missing permission, shows when something is written: then the backup does not count"
        ),
    }

    def __init__(self, root: Path, modes: Modes = PRIVATE) -> None:
        self.root = root
        self.modes = modes
        self.shown = str(root)

    def write(self, name: str, chunks: Iterable[bytes]) -> int:
        """See `Target.write`."""
        path = self.root / name
        draft = path.with_name(f".{path.name}{DRAFT}")
        size = 0
        with self._translated(), self._made():
            make_directories(path.parent, self.modes)
            mode = path.parent.stat().st_mode & UMASK.file | PRIVATE.file
            # No two backups share an object name, so a killed attempt of this backup left the draft.
            draft.unlink(missing_ok=True)
            try:
                with os.fdopen(create(draft, mode), "wb") as file:
                    for chunk in chunks:
                        file.write(chunk)
                        size += len(chunk)
                    file.flush()
                    os.fsync(file.fileno())
                draft.rename(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    draft.unlink(missing_ok=True)
                raise
            for directory in (path.parent, *path.parent.parents):
                if directory == self.root.parent:
                    # Others may own it and deny this user to list it; then they made the root.
                    with contextlib.suppress(PermissionError):
                        sync(directory)
                    break
                sync(directory)
        return size

    def make(self) -> None:
        """Make the directory if it is missing. Raises BackupTargetError."""
        with self._translated(), self._made():
            try:
                make_directories(self.root, self.modes)
            except (NotADirectoryError, FileExistsError):
                raise _no_directory(self.shown, "it is not a directory") from None

    def read(self, name: str) -> Iterator[bytes]:
        """See `Target.read`."""
        with self._translated(), self._opened(name) as file:

            def chunk() -> bytes:
                with self._translated():
                    return file.read(CHUNK_BYTES)

            yield from _content(name, chunk, self.shown)

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """See `Target.read_range`."""
        with self._translated():
            try:
                file = self._opened(name)
            except FileNotFoundError:
                if self.root.is_dir():
                    raise
                raise BackupTargetError(
                    "there is no such directory", path=self.shown, cause="Its disk is not mounted, or it was moved."
                ) from None
            with file:
                return os.pread(file.fileno(), size, offset)

    def entries(self, prefix: str) -> list[Entry]:
        """See `Target.entries`."""
        found = []
        with self._translated():
            for path in files_below(self.root / prefix, directories=True):
                with contextlib.suppress(FileNotFoundError):
                    status = _status(path)
                    if stat.S_ISDIR(status.st_mode) and path.suffix not in SUFFIXES:
                        continue
                    size = status.st_size if stat.S_ISREG(status.st_mode) else NO_FILE
                    name = path.relative_to(self.root).as_posix()
                    found.append(Entry(name, size, status.st_mtime_ns // 1_000_000))
        return sorted(found, key=lambda entry: entry.name)

    def delete(self, name: str) -> None:
        """See `Target.delete`."""
        with self._translated(), contextlib.suppress(IsADirectoryError):
            (self.root / name).unlink(missing_ok=True)

    def _opened(self, name: str) -> BinaryIO:
        try:
            return open_received(self.root / name, through_links=True)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENODEV):
                raise
            raise UnreadableError(error.strerror or str(error)) from error

    @contextlib.contextmanager
    def _made(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise BackupTargetError(
                str(error), path=self.shown, cause="It was removed, or this user may not create it there."
            ) from error

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (NotADirectoryError, FileExistsError) as error:
            raise _no_directory(self.shown, f"it is not a directory: {error}") from error
        except or_arrow_error(OSError) as error:
            raise BackupTargetError(
                str(error), path=self.shown, cause="The disk is full or failing, or this user may not write there."
            ) from error


class ObjectTarget:
    """A prefix in a bucket. Every call ends: with an answer, or with an error after `no_answer_s` without one.

    secrets: texts that must not appear in messages. looked_at: where credentials were looked for.
    """

    answers: ClassVar[Answers] = {
        **_OF_EVERY_PLACE,
        Question.ABLE: Checked(
            "writes whose condition is not met, before a term is claimed; a missing permission shows when something is "
            "written",
            (Moment.START, Moment.COPYING),
        ),
    }

    def __init__(
        self,
        filesystem: FileSystem,
        root: str,
        shown: str,
        *,
        secrets: Iterable[str] = (),
        no_answer_s: float = NO_ANSWER_S,
        looked_at: str = "",
    ) -> None:
        self._filesystem = filesystem
        self._root = root.strip("/")
        self.shown = shown
        self._secrets = [secret for secret in secrets if secret]
        self._no_answer_s = no_answer_s
        self._looked_at = looked_at
        self._silent = False
        self._files: dict[str, Any] = {}

    def write(self, name: str, chunks: Iterable[bytes]) -> int:
        """See `Target.write`."""
        size = 0
        # Not a context manager: leaving it by an exception would publish what was written so far.
        try:
            stream = self._ask(lambda: self._filesystem.open_output_stream(self._path(name), compression=None))
        except FileNotFoundError as error:
            raise BackupTargetError(
                self.scrubbed(str(error)), path=self.shown, cause="There is no such bucket or container."
            ) from None
        try:
            for chunk in chunks:
                self._ask(lambda chunk=chunk: stream.write(chunk))  # type: ignore[misc]
                size += len(chunk)
            self._ask(stream.close)
        except BaseException:
            # Closing publishes the part; a stream that is never closed may be published when the process ends.
            with contextlib.suppress(BackupTargetError, FileNotFoundError):
                if not self._silent:
                    self._ask(stream.close)
                if not self._silent:
                    self.delete(name)
            raise
        return size

    def read(self, name: str) -> Iterator[bytes]:
        """See `Target.read`."""
        stream = self._ask(lambda: self._filesystem.open_input_stream(self._path(name), compression=None))
        try:
            yield from _content(name, lambda: self._ask(lambda: stream.read(CHUNK_BYTES)), self.shown)
        finally:
            with contextlib.suppress(BackupTargetError):
                self._ask(stream.close)

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """See `Target.read_range`."""
        # Opening asks for the object's size, so it stays open.
        known = self._files.get(name)
        if known is not None:
            with contextlib.suppress(BackupTargetError):
                return self._ask(lambda: known.read_at(size, offset))  # type: ignore[no-any-return]
            # It may have been removed meanwhile: opening it says so.
            self._files.pop(name, None)
        file = self._files[name] = self._ask(lambda: self._filesystem.open_input_file(self._path(name)))
        # A list, for other threads may open objects meanwhile.
        for oldest in list(self._files)[:-OPEN_FILES]:
            self._files.pop(oldest, None)
        return self._ask(lambda: file.read_at(size, offset))  # type: ignore[no-any-return]

    def entries(self, prefix: str) -> list[Entry]:
        """See `Target.entries`."""
        # Recursive, because some stores do not know directories that were never made.
        selector = arrow().fs.FileSelector(self._path(prefix.rstrip("/")), recursive=True, allow_not_found=True)
        infos = self._ask(lambda: self._filesystem.get_file_info(selector))
        found = [
            Entry(info.path.removeprefix(self._root).lstrip("/"), info.size or 0, (info.mtime_ns or 0) // 1_000_000)
            for info in infos
            if info.type == arrow().fs.FileType.File
        ]
        return sorted(found, key=lambda entry: entry.name)

    def delete(self, name: str) -> None:
        """See `Target.delete`."""
        with contextlib.suppress(FileNotFoundError):
            self._ask(lambda: self._filesystem.delete_file(self._path(name)))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if self._root else name

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            found = bounded(call, self._no_answer_s)
            self._silent = False
            return found
        except FileNotFoundError:
            raise
        except TimeoutError:
            self._silent = True
            raise BackupTargetError(
                f"no answer for {self._no_answer_s:.0f} s",
                path=self.shown,
                cause=f"The service cannot be reached. {self._looked_at}".rstrip(),
            ) from None
        except or_arrow_error(OSError, ValueError) as error:
            cause = f"{BackupTargetError.default_cause} {self._looked_at}".rstrip()
            raise BackupTargetError(self.scrubbed(str(error)), path=self.shown, cause=cause) from None

    def scrubbed(self, text: str) -> str:
        """Return `text` without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _no_directory(shown: str, found: str) -> BackupTargetError:
    return BackupTargetError(
        found, path=shown, cause="This path, or a part of it, is a file.", remedy="Name a directory."
    )


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        # A link that leads to itself.
        if error.errno != errno.ELOOP:
            raise
        return path.lstat()


def bounded(call: Callable[[], T], timeout_s: float, moved: Callable[[], int] = lambda: 0) -> T:
    """Return or raise what `call` does, or TimeoutError; then the call goes on in a thread that nobody waits for.

    The file systems have retry limits of their own, but not for every way in which a service can fall silent. moved:
    how far the call has come; the limit is for the time in which that stays the same.
    """
    outcome: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=work, name="backup-call", daemon=True).start()
    while True:
        before = moved()
        try:
            value, error = outcome.get(timeout=timeout_s)
            break
        except queue.Empty:
            if moved() == before:
                raise TimeoutError from None
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _content(name: str, read: Callable[[], bytes], shown: str) -> Iterator[bytes]:
    """Yield the chunks from `read`, decompressed if the name says so. Raises BackupDamagedError if they are damaged."""
    if not name.endswith(".zst"):
        while chunk := read():
            yield chunk
        return
    try:
        with arrow().CompressedInputStream(arrow().PythonFile(_Chunks(read), "r"), "zstd") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
    except or_arrow_error(OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise BackupDamagedError(f"{name} differs from what was stored: {error}", path=shown) from error


class _Chunks:
    """A file that is read in large chunks, whatever size is asked for: each chunk may be a request to a service."""

    closed = False

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._left = b""

    def read(self, size: int) -> bytes:
        if not self._left:
            self._left = self._read()
        piece, self._left = self._left[:size], self._left[size:]
        return piece

    def close(self) -> None:
        self.closed = True
