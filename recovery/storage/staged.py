"""A directory's part of a restore to several owners: staged, placed, and released.

1. A staging directory gets a note that names the home, the owner of part-0, and then the files.
2. The files are compared with their digests, and synced.
3. The files are linked into place. The home is asked last: then the restore counts.
4. The staging directory is removed, the note last.

Killed before all files are in place, they do not count, and the next restore removes them. Killed between 3 and 4,
whether they do is a question for the home: `left` describes them, and `end_left` ends that.

A restore without a home brings single partitions beside others that are there. Each of its files counts as soon as the
file is in place, as a copy that somebody has put there. An older copy of the same name is set aside in step 3: it stays
as NAME.replaced, in place of what was set aside before.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from recovery.base.faults import reach
from recovery.base.ids import PartitionIndex
from recovery.base.printable import one_line
from recovery.base.untrusted_paths import read_received
from recovery.errors import StorageError
from recovery.host.durable import PRIVATE, Modes, create, sync
from recovery.planning.owner_restore import LeftRestore
from recovery.storage.initialize import (
    HOME,
    alone,
    clear_killed_attempt,
    is_restoring,
    is_staging,
    link_staged,
    refuse_existing,
    restored_executions,
    same_file,
    was_used,
)
from recovery.storage.moving.departed import remove_note, remove_notes
from recovery.storage.scan import SUFFIX
from recovery.storage.sqlite.file.log_files import ENDS
from recovery.storage.sqlite.file.opening import partition_path
from recovery.storage.sqlite.file.statements import translated
from recovery.storage.standby import refuse_standby

NOTE_BYTES = 4096
READ_BYTES = 1 << 20
REPLACED = ".replaced"
"""The end of the name of a copy that a newer one has replaced. No command reads it."""


class StagedRestore:
    """One directory's part of a restore. Calls may come from several threads, one after the other."""

    def __init__(self, directory: Path, name: str, home: str | None, indexes: Sequence[int], modes: Modes) -> None:
        """Step 1, without the files. name: of the staging directory, the same at all owners. home: the location of the
        owner of part-0; None: each file counts by itself, beside the partitions that are there.

        Raises AlreadyInitializedError if there is a home and the directory holds partitions, DirectoryLockedError while
        others are being made there, StandbyDirectoryError or StorageError.
        """
        self._directory = directory
        self._staging = directory / name
        self._indexes = tuple(indexes)
        self._modes = modes
        self._is_beside = home is None
        self._names = [partition_path(directory, index).name for index in indexes]
        self._coming: tuple[str, IO[bytes]] | None = None
        self._is_placed = self._has_ended = False
        self._lock = threading.Lock()
        self._alone = contextlib.ExitStack()
        if not is_restoring(name):
            raise StorageError(f"{one_line(name)[:80]} is not the name of a restore", path=directory)
        if home is None:
            clear_killed_attempt(directory)
        with self._alone as held, translated(directory):
            held.enter_context(alone(directory))
            if home is None:
                refuse_standby(directory)
            else:
                refuse_existing(directory)
            self._staging.mkdir(PRIVATE.directory)
            try:
                if home is not None:
                    with os.fdopen(create(self._staging / HOME), "wb") as note:
                        note.write(msgspec.json.encode({"home": home}))
            except BaseException:
                _remove(self._staging)
                raise
            self._alone = held.pop_all()

    def put(self, name: str, data: bytes) -> None:
        """Add to a file. The parts of one file follow each other. Raises StorageError."""
        with self._used():
            if self._coming is None or self._coming[0] != name:
                if name not in self._names:
                    raise StorageError(f"{one_line(name)[:80]} is not due", path=self._directory)
                self._close()
                self._coming = name, os.fdopen(create(self._staging / name), "wb", buffering=0)
            rest = memoryview(data)
            while rest:
                rest = rest[self._coming[1].write(rest) :]

    def check(self, digests: Mapping[str, str]) -> None:
        """Step 2. digests: the SHA-256 of each file, in hexadecimal. Raises StorageError."""
        with self._used():
            self._close()
            came = {path.name for path in self._staging.glob(f"*{SUFFIX}")}
            if not came == set(self._names) == digests.keys():
                raise StorageError(
                    f"{', '.join(sorted(came)) or 'nothing'} came instead of {', '.join(self._names) or 'nothing'}",
                    path=self._directory,
                )
            for name in self._names:
                sync(self._staging / name)
                if _digest(self._staging / name) != digests[name]:
                    raise StorageError(
                        "it is not what was sent",
                        path=self._directory / name,
                        cause="Bytes changed on the way, or on the disk.",
                        remedy="Run the same command again. If it happens again, check disk and memory of this host.",
                    )
            if not self._is_beside:
                sync(self._staging / HOME)
            sync(self._staging)
            reach("staged.2")

    def place(self) -> None:
        """Step 3. If `place` fails, nothing is in place. Raises StorageError."""
        with self._used():
            if self._is_beside:
                for name in self._names:
                    _set_aside(self._directory / name)
                reach("staged.3.aside")
            placed = link_staged(self._directory, self._staging, self._indexes, self._modes)
            try:
                sync(self._directory)
            except BaseException:
                for path in placed:
                    path.unlink(missing_ok=True)
                raise
            self._is_placed = True
            if self._is_beside:
                for index in self._indexes:
                    remove_note(self._directory, PartitionIndex(index))
            else:
                remove_notes(self._directory)
            reach("staged.3")

    def end(self, *, counts: bool | None = None) -> None:
        """Step 4. counts: whether the files stay. None: nobody says that any more, so files in place are left for the
        next restore. May be called again. Raises StorageError."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            with self._alone, translated(self._directory):
                self._close()
                stays = self._is_placed if self._is_beside else counts
                if stays is not None or not self._is_placed:
                    _end(self._directory, self._staging, counts=bool(stays))

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        with self._lock, translated(self._directory):
            if self._has_ended:
                raise StorageError("the restore has ended", path=self._directory)
            yield

    def _close(self) -> None:
        if self._coming is not None:
            self._coming[1].close()
            self._coming = None


def left(directory: Path) -> list[LeftRestore]:
    """Remove what restores left that were killed before everything was in place, and describe the restores that were
    not. Raises DirectoryLockedError while partitions are being made there, or StorageError."""
    clear_killed_attempt(directory)
    with translated(directory):
        return [_described(directory, staging) for staging in sorted(filter(is_staging, directory.iterdir()))]


def end_left(directory: Path, name: str, *, counts: bool) -> None:
    """End what a restore left. counts: its files stay. Raises DirectoryLockedError or StorageError."""
    staging = directory / name
    with translated(directory), alone(directory):
        if is_restoring(name) and is_staging(staging):
            _end(directory, staging, counts=counts)


def _described(directory: Path, staging: Path) -> LeftRestore:
    executions = restored_executions(staging.name)
    files = sorted(path.name for path in staging.glob(f"part-*{SUFFIX}"))
    try:
        note = msgspec.json.decode(read_received(staging / HOME, NOTE_BYTES), type=dict[str, str])
    except (OSError, ValueError):
        note = {}
    used = any(was_used(directory / name, executions) for name in files)
    return LeftRestore(staging.name, note.get("home", ""), tuple(files), used)


def _end(directory: Path, staging: Path, *, counts: bool) -> None:
    if not counts:
        for staged in staging.glob(f"part-*{SUFFIX}"):
            if same_file(staged, directory / staged.name):
                (directory / staged.name).unlink()
        sync(directory)
    _remove(staging)


def _set_aside(path: Path) -> None:
    """Move a partition, and the files beside it that belong to it, out of the way, to NAME.replaced. Killed at any
    step, the partition is under one of the two names, with these files."""
    aside = path.with_name(f"{path.name}{REPLACED}")
    others = [(path.with_name(f"{path.name}{end}"), aside.with_name(f"{aside.name}{end}")) for end in ENDS]
    if path.exists():
        for older in (aside, *(to for _, to in others)):
            older.unlink(missing_ok=True)
        for there, to in others:
            if there.exists():
                to.hardlink_to(there)
        sync(path.parent)
        path.replace(aside)
    for there, to in others:
        if to.exists() and same_file(to, there):
            there.unlink()
        elif there.exists():
            # Of a partition that somebody has moved.
            there.replace(to)
    sync(path.parent)


def _remove(staging: Path) -> None:
    """Remove a staging directory. The note goes last: without the note nobody knows the home."""
    for path in sorted(staging.iterdir(), key=lambda each: each.name == HOME):
        path.unlink()
    staging.rmdir()


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            found.update(data)
    return found.hexdigest()
