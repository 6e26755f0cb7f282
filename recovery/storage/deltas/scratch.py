"""The directory of an execution's scratch files, which need not survive it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

from recovery.base.ids import ExecutionNumber, Lease
from recovery.host.durable import PRIVATE, make_directories, modes_beside
from recovery.host.scratch import remove_left
from recovery.host.storage_errors import storage_errors
from recovery.planning.values import Execution
from recovery.storage.sqlite.file.watched_files import Watch


def left_executions(root: Path, directory: Path) -> dict[Lease, Path]:
    """Return the executions of a recovery directory whose scratch directories are in `root`, with these: those
    under way, and killed ones. What a copy of the directory at another path has of its origin's is not among them."""
    found, prefix = {}, _prefix(Path(os.path.realpath(directory)))
    for path in root.glob(f"{prefix}*"):
        number, _, execution = path.name.removeprefix(prefix).partition("-")
        if number.isdecimal():
            found[Lease(ExecutionNumber(int(number)), execution)] = path
    return found


def _prefix(directory: Path) -> str:
    return f"ex-{hashlib.sha1(os.fsencode(directory)).hexdigest()[:12]}-"


class Scratch:
    """The scratch directories of the executions of one recovery directory, of which one is in use at a time."""

    def __init__(self, root: Path, directory: Path, modes_of: Path) -> None:
        """root: a directory that stores may share. directory: the recovery directory. modes_of: a file, or directory,
        whose modes `root` gets if it is made."""
        self._root = root
        self._modes_of = modes_of
        directory = Path(os.path.realpath(directory))
        self._prefix = _prefix(directory)
        # If the scratch directory belongs to this directory alone, files from before the directory was moved are
        # stale too.
        self._stale = "ex-*" if Path(os.path.realpath(root)).parent == directory else f"{self._prefix}*"
        self._path: Path | None = None
        self.files: Watch | None = None
        """Files of the execution in use that must stay in their places."""

    @property
    def path(self) -> Path:
        """The directory in use."""
        assert self._path is not None, "no execution was prepared"
        return self._path

    def make(self, execution: Execution) -> Path:
        """Make and return the directory of an execution, which is in use from now on. The directories of other
        executions stay: they say what killed runs have read."""
        self._path = self._path_for(execution)
        with storage_errors(self._path):
            make_directories(self._path.parent, modes_beside(self._modes_of))
            self._path.mkdir(PRIVATE.directory)
        self.files = Watch(self._path)
        return self._path

    def remove_others(self) -> None:
        """Remove the directories of other executions."""
        for stale in self._root.glob(self._stale):
            if stale != self._path:
                shutil.rmtree(stale, ignore_errors=True)

    def remove_copies(self) -> None:
        """Remove the copies of partitions that killed processes have left, here and in the system's temporary
        directory."""
        for root in (self._root, None):
            remove_left(root)

    def belongs_to(self, execution: Execution) -> bool:
        """Whether the directory in use is that of this execution."""
        return self._path == self._path_for(execution)

    def remove(self) -> None:
        """Remove the directory in use, if there is one."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path = self.files = None
            with contextlib.suppress(OSError):
                self._root.rmdir()

    def _path_for(self, execution: Execution) -> Path:
        return self._root / f"{self._prefix}{execution.number}-{execution.id}"
