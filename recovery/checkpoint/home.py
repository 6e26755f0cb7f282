"""Where Spark writes its checkpoint during a run: a directory of this host, or one that executors on all hosts reach.

Paths are relative to the checkpoint. Names with a leading dot are Spark's unfinished files and Hadoop's checksums, and
are not shown.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from recovery.base.ids import BatchId
from recovery.base.untrusted_paths import open_received

_NO_LINKS = {errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EACCES}

Mark = tuple[int, int]
"""What a write to a file changes: its size in bytes and its modification time."""


class CheckpointHome(Protocol):
    """The checkpoint of one run. Methods raise FileNotFoundError for a file that is gone."""

    directory: Path
    """A directory of this host with the files of the position: Spark's own, or copies as of the last `pull`."""
    location: str
    """The URI on which Spark starts."""
    shared: bool
    """Whether tasks on other hosts write the state of Spark's operators. Then not all state may be visible at first."""

    def has_logged(self, batch: BatchId) -> bool:
        """Return whether Spark has logged a micro-batch as done."""
        ...

    def pull(self, batch: BatchId) -> None:
        """Look at the checkpoint again: bring into `directory` what there is of the position for a micro-batch that is
        planned or done."""
        ...

    def listing(self, directory: str) -> tuple[list[str], list[str]]:
        """Return the directories and files in a directory; empty when it does not exist."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        ...

    def mark(self, path: str) -> Mark:
        """Return the mark of a file."""
        ...

    def opened(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Open a small file."""
        ...

    def hold(self, targets: Mapping[str, Path]) -> None:
        """Give files a second name on this host, which keeps their content whatever Spark removes. Spark has finished
        these files and does not write to them again."""
        ...

    def discard(self) -> None:
        """Remove the checkpoint, as far as possible, after the run."""
        ...


class LocalHome:
    """The `CheckpointHome` in a directory of this host."""

    shared = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Hadoop takes the path literally: an escaped path would name another directory.
        self.location = f"file:{directory.absolute()}"

    def has_logged(self, batch: BatchId) -> bool:
        return (self.directory / "commits" / str(batch)).exists()

    def pull(self, batch: BatchId) -> None:
        """Do nothing: Spark writes here."""

    def listing(self, directory: str) -> tuple[list[str], list[str]]:
        directories: list[str] = []
        files: list[str] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory / directory) as found:
            for entry in found:
                if not entry.name.startswith("."):
                    (directories if entry.is_dir() else files).append(entry.name)
        return directories, files

    def exists(self, path: str) -> bool:
        return os.path.exists(f"{self.directory}/{path}")  # noqa: PTH110 - a Path for each name takes longer

    def mark(self, path: str) -> Mark:
        return mark_of(self.directory / path)

    def opened(self, path: str) -> IO[bytes]:
        return open_received(self.directory / path)

    def hold(self, targets: Mapping[str, Path]) -> None:
        for path, target in targets.items():
            keep(self.directory / path, target)

    def discard(self) -> None:
        """Do nothing: the checkpoint lies in the scratch directory of its execution."""


def keep(source: Path, target: Path) -> None:
    """Link a file, or copy it where links are not possible."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copy2(source, target)


def mark_of(path: Path) -> Mark:
    """Return the mark of a file of this host."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns
