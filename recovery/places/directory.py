"""A directory of this machine as a place: objects that are written once, and documents written conditionally."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar

from recovery.base.outside import Answers, CannotTell, Question
from recovery.base.untrusted_paths import open_received, read_received
from recovery.errors import BackupTargetError, RecoveryError, StateBackendError
from recovery.host.durable import PRIVATE, UMASK, Modes, create, files_below, make_directories, open_own, sync
from recovery.host.locks import free, lock_file_within
from recovery.places.arrow import content_of
from recovery.places.failures import Failures
from recovery.places.protocol import (
    CHUNK_BYTES,
    DRAFT,
    LARGEST,
    NO_FILE,
    OF_EVERY_PLACE,
    SUFFIXES,
    Conflict,
    FoundObject,
    ObjectVersions,
    PlaceEntry,
    Token,
    UnreadableError,
)


class DirectoryPlace:
    """The `Place` of a directory of this machine. An object appears under its name whole and synced, or not at all.

    modes: the permissions of directories that are made. An object has the permissions of its directory.
    """

    answers: ClassVar[Answers] = {
        **OF_EVERY_PLACE,
        Question.ABLE: CannotTell(
            "a full disk, or a missing permission, shows when something is written: then the backup does not count"
        ),
    }

    versions: ObjectVersions | None = None
    unseen = ""

    def __init__(self, root: Path, modes: Modes = PRIVATE) -> None:
        self.root = root
        self.modes = modes
        self.shown = str(root)
        self._failures = Failures(BackupTargetError, self.shown)

    def write(self, name: str, chunks: Iterable[bytes]) -> int:
        path = self.root / name
        draft = path.with_name(f".{path.name}{DRAFT}")
        with self._translated(), self._made():
            make_directories(path.parent, self.modes)
            # No two backups share an object name, so only a killed attempt of this backup left a draft.
            size = _write(path, draft, chunks, path.parent.stat().st_mode & UMASK.file | PRIVATE.file)
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
        with self._translated(), self._opened(name) as file:

            def chunk() -> bytes:
                with self._translated():
                    return file.read(CHUNK_BYTES)

            yield from content_of(name, chunk, self.shown)

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        with self._translated():
            try:
                file = self._opened(name)
            except FileNotFoundError:
                if self.root.is_dir():
                    raise
                raise BackupTargetError(
                    "there is no such directory",
                    path=self.shown,
                    cause="The directory's disk is not mounted, or the directory was moved.",
                ) from None
            with file:
                return os.pread(file.fileno(), size, offset)

    def entries(self, prefix: str) -> list[PlaceEntry]:
        found = []
        with self._translated():
            for path in files_below(self.root / prefix, directories=True):
                with contextlib.suppress(FileNotFoundError):
                    status = _status(path)
                    if stat.S_ISDIR(status.st_mode) and path.suffix not in SUFFIXES:
                        continue
                    size = status.st_size if stat.S_ISREG(status.st_mode) else NO_FILE
                    name = path.relative_to(self.root).as_posix()
                    found.append(PlaceEntry(name, size, status.st_mtime_ns // 1_000_000))
        return sorted(found, key=lambda entry: entry.name)

    def delete(self, name: str) -> None:
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
                str(error), path=self.shown, cause="The directory was removed, or this user may not write into it."
            ) from error

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with self._failures.of_disk(FileNotFoundError, NotADirectoryError, FileExistsError):
                yield
        except (NotADirectoryError, FileExistsError) as error:
            raise _no_directory(self.shown, f"it is not a directory: {error}") from error


class DirectoryDocuments:
    """A `DocumentStore` of files in a directory. An operating system lock excludes other writers of this machine; no
    writer waits for the lock longer than `timeout_s`.

    The directory must exist: an unmounted share or a wrong path is never taken for empty. as_root: files get the
    permissions of the directory, as far as the umask allows; by default only this user may read them.
    """

    def __init__(
        self,
        root: Path,
        timeout_s: float,
        *,
        as_root: bool = False,
        failure: type[RecoveryError] = StateBackendError,
        make: Callable[[], None] | None = None,
    ) -> None:
        """failure: the class of errors. make: makes the directory for the first document; until then there are no
        documents."""
        self.root = root
        self.versions: ObjectVersions | None = None
        self.unseen = ""
        # One place has one name, by which it is recognised.
        self.location = f"file://{os.path.realpath(root)}"
        self._timeout_s = timeout_s
        self._as_root = as_root
        self._make_root = make
        self._failures = Failures(failure, str(root))

    def get(self, path: str) -> FoundObject | None:
        with self._failures.of_disk():
            try:
                content = read_received(self.root / path, LARGEST, through_links=True)
            except FileNotFoundError:
                if self._make_root is None or self.root.exists():
                    self._check_root()
                return None
            except NotADirectoryError:
                self._check_root()
                raise
        return FoundObject(content, hashlib.sha256(content).hexdigest())

    def put(self, path: str, content: bytes, expected: Token | None) -> Token:
        """Write the whole document if the stored one is still `expected`, by a rename: the file is synced before the
        rename, the directory after the rename. Raises Conflict otherwise."""
        target = self.root / path
        if self._make_root is not None:
            self._make_root()
        with self._failures.of_disk():
            self._check_root()
            self._make(target.parent)
            with self._writing():
                found = self.get(path)
                if (None if found is None else found.token) != expected:
                    raise Conflict(path)
                _write(target, target.with_name(f".{target.name}{DRAFT}"), [content], self._mode())
                sync(target.parent)
        return hashlib.sha256(content).hexdigest()

    def paths(self, prefix: str) -> list[str]:
        with self._failures.of_disk():
            found = [path for path in files_below(self.root / prefix) if path.suffix == ".json" and path.is_file()]
            self._check_root()
            return sorted(path.relative_to(self.root).as_posix() for path in found if not path.name.startswith("."))

    def delete(self, path: str) -> None:
        target = self.root / path
        with self._failures.of_disk():
            if not target.exists():
                self._check_root()
                return
            with self._writing():
                target.unlink(missing_ok=True)
                sync(target.parent)

    def _check_root(self) -> None:
        try:
            if stat.S_ISDIR(self.root.stat().st_mode):
                return
        except NotADirectoryError:
            pass
        except FileNotFoundError:
            raise self._failures.kind(
                "there is no such directory",
                path=self.root,
                cause="The disk is not mounted, the path is wrong, or nothing was ever stored there.",
                remedy=f"Mount it or correct the path; to begin there, make it: mkdir -p {shlex.quote(str(self.root))}",
            ) from None
        raise self._failures.kind(
            "it is not a directory",
            path=self.root,
            cause="The path names a file, or leads through one.",
            remedy="Name a directory.",
        )

    def _make(self, directory: Path) -> None:
        """Make directories below the root, but never the root itself, even if it has disappeared."""
        below = [each for each in (directory, *directory.parents) if self.root in each.parents and not each.exists()]
        for each in reversed(below):
            each.mkdir(PRIVATE.directory, exist_ok=True)
            sync(each.parent)

    def _mode(self) -> int:
        return self.root.stat().st_mode & UMASK.file | PRIVATE.file if self._as_root else PRIVATE.file

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        path = self.root / ".writing"
        descriptor, holder_pid = open_own(path, self._mode()), os.getpid()
        try:
            if not lock_file_within(descriptor, self._timeout_s):
                raise self._failures.kind(
                    f"another process has been writing for {self._timeout_s:g} s",
                    path=path,
                    cause="The other process was suspended in the middle of a write, or the disk does not answer.",
                    remedy=f"Find the process with `fuser {path}`, and let it continue or end it.",
                )
            yield
        finally:
            free(descriptor, holder_pid)


def _write(path: Path, draft: Path, chunks: Iterable[bytes], mode: int) -> int:
    """Give a file its content, whole and synced, or leave it as it was; return the size in bytes. The directory is not
    synced. draft: its name until then, under which a killed writer leaves a part."""
    draft.unlink(missing_ok=True)
    size = 0
    try:
        with os.fdopen(create(draft, mode), "wb") as file:
            for chunk in chunks:
                file.write(chunk)
                size += len(chunk)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    return size


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
