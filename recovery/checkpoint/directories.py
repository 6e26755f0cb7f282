"""Where an ordinary Spark checkpoint is read from or written to: a directory of this machine or another file system.

Paths are relative to the checkpoint and have forward slashes. Hidden files (Hadoop's checksums, Spark's unfinished
files) are not part of a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from recovery.base.ids import BatchId
from recovery.base.untrusted_paths import checked
from recovery.checkpoint.state_stores.needed import StoreFiles, is_version, needed_chain, store_files
from recovery.errors import ConfigurationError, SparkCheckpointError
from recovery.host.durable import make_directories, sync
from recovery.host.storage_errors import storage_errors

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_COMMIT = re.compile(r"commits/[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class CheckpointTransfer:
    """The progress of reading or writing a checkpoint. what: "reading", "writing" or "copying"."""

    what: str
    bytes_done: int
    bytes_total: int


Observer = Callable[[CheckpointTransfer], None]


def ignore(_event: CheckpointTransfer) -> None:
    """An observer that does nothing."""


class CheckpointDirectory(Protocol):
    """A directory for a checkpoint, existing or to be written. Methods raise StorageError when the directory is
    unreachable."""

    shown: str
    location: str
    """The directory's URI, with which Spark names files in the directory."""

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each file; empty when the directory does not exist."""
        ...

    def here(
        self, batch: BatchId, scratch: Path, observe: Observer = ignore
    ) -> contextlib.AbstractContextManager[Path]:
        """Provide a directory of this machine with every file needed to resume after `batch`: this one, or,
        until the block ends, a copy at `scratch`. Raises SparkCheckpointError when a file is missing."""
        ...

    def check_vacant(self) -> None:
        """Raise ConfigurationError when the directory exists, unless it is an empty directory."""
        ...

    def writing(self, observe: Observer = ignore) -> contextlib.AbstractContextManager[Path]:
        """Provide a path of this machine where the block creates a directory. When the block succeeds, this one holds
        all of it, durably; otherwise it holds nothing, as before."""
        ...


class LocalCheckpoint:
    """A `CheckpointDirectory` of this machine. A written checkpoint is renamed to its final path."""

    def __init__(self, path: Path, random_id: Callable[[], str]) -> None:
        self.path = path
        self.shown = str(path)
        self.location = f"file:{os.path.realpath(path)}"
        self._random_id = random_id

    def sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        with storage_errors(self.path):
            for directory, directories, files in os.walk(self.path, onerror=_raise):
                directories[:] = [name for name in directories if not name.startswith(".")]
                for name in directories:
                    with contextlib.suppress(FileNotFoundError):
                        _check_kind(Path(directory, name), stat.S_ISDIR)
                for name in files:
                    if not name.startswith("."):
                        file = Path(directory, name)
                        # Spark's maintenance may remove a file meanwhile.
                        with contextlib.suppress(FileNotFoundError):
                            found[file.relative_to(self.path).as_posix()] = _check_kind(file, stat.S_ISREG)
        return found

    @contextlib.contextmanager
    def here(self, batch: BatchId, scratch: Path, observe: Observer = ignore) -> Iterator[Path]:
        yield self.path

    def check_vacant(self) -> None:
        with storage_errors(self.path):
            if self.path.is_dir() and not any(self.path.iterdir()):
                return
            if self.path.exists() or self.path.is_symlink():
                raise not_vacant(self.shown)

    @contextlib.contextmanager
    def writing(self, observe: Observer = ignore) -> Iterator[Path]:
        self.check_vacant()
        target = Path(os.path.realpath(self.path))
        draft = target.with_name(f".{target.name}.draft-{self._random_id()}")
        with storage_errors(self.path):
            make_directories(target.parent)
            try:
                yield draft
                for directory, _, files in os.walk(draft):
                    for name in files:
                        sync(Path(directory, name))
                    sync(Path(directory))
                # This can replace an empty directory, and nothing else.
                draft.rename(target)
                sync(target.parent)
            finally:
                shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def copied(
    sizes: Mapping[str, int],
    fetch: Callable[[str, Path], None],
    batch: BatchId,
    scratch: Path,
    observe: Observer,
) -> Iterator[Path]:
    """Provide, until the block ends, a copy at `scratch` of the files that a checkpoint needs after `batch`.

    sizes: the sizes of all files of the checkpoint. fetch: copies one file to a path. At the end, the directory above
    `scratch` is removed with the copy if it is empty.
    Raises SparkCheckpointError when a file is missing.
    """
    wanted = may_be_needed(sizes, batch)
    total, done = sum(sizes[path] for path in wanted), 0
    # Do not mix the remains of a killed attempt with this one.
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        for path in wanted:
            target = scratch / checked(path, partial(SparkCheckpointError, path=scratch))
            with storage_errors(scratch):
                make_directories(target.parent)
            fetch(path, target)
            done += sizes[path]
            observe(CheckpointTransfer("reading", done, total))
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            scratch.parent.rmdir()


def newest_batch(paths: Collection[str], shown: str) -> BatchId:
    """Return the newest micro-batch that is logged as done; one that has only begun does not count.

    Raises SparkCheckpointError when the paths are not those of a checkpoint, or no micro-batch is done.
    """
    if "metadata" not in paths:
        raise SparkCheckpointError(
            "it is not a checkpoint of Spark: it has no file `metadata`" if paths else "there is nothing",
            path=shown,
            cause="The path is wrong, or names the directory above the checkpoint.",
            remedy="Name the directory that the query uses as its checkpointLocation.",
        )
    done = [int(path.removeprefix("commits/")) for path in paths if _COMMIT.fullmatch(path)]
    if not done:
        raise SparkCheckpointError(
            "it records no finished micro-batch",
            path=shown,
            cause="The query never finished a micro-batch, so it has no state to import.",
            remedy="Start the flow on the fresh recovery partitions: it begins where its sources start.",
        )
    batch = BatchId(max(done))
    if f"offsets/{batch}" not in paths:
        raise SparkCheckpointError(f"offsets/{batch} is missing, although micro-batch {batch} is done", path=shown)
    return batch


def may_be_needed(paths: Collection[str], batch: BatchId) -> list[str]:
    """Return the files that `batch` may need: one chain of each state store, and all files without a version.

    Raises SparkCheckpointError when the chain of a store has a gap.
    """
    wanted = {"metadata", f"offsets/{batch}", f"commits/{batch}"} & set(paths)
    stores: dict[str, list[str]] = {}
    for path in paths:
        directory, _, name = path.rpartition("/")
        if path.startswith("state/") and is_version(name):
            stores.setdefault(directory, []).append(name)
        elif path.startswith(("sources/", "state/")):
            wanted.add(path)
    nothing = StoreFiles({}, {})
    for directory, names in stores.items():
        chain = needed_chain(
            directory, store_files(names, directory), nothing, batch + 1, cost=lambda _: 0, gain=lambda _: 0
        )
        wanted.update(f"{directory}/{name}" for name in chain.names)
    return sorted(wanted)


def not_vacant(shown: str) -> ConfigurationError:
    """Return the error for a directory that exists and is not empty."""
    return ConfigurationError(
        f"{shown}: it exists and is not empty",
        cause="A checkpoint is written as a whole, to a directory that does not exist yet.",
        remedy="Name a directory that does not exist yet.",
    )


def vanished(shown: str, path: str) -> SparkCheckpointError:
    """Return the error for a file that was listed and is gone."""
    return SparkCheckpointError(
        f"{path} has disappeared",
        path=shown,
        cause="The query is still running on this checkpoint, or another program deletes files in it.",
        remedy="Stop the query first, then run the same command again.",
    )


def is_uri(text: str) -> bool:
    """Return whether the text names a directory by the URI of a file system."""
    return _URI.match(text) is not None


def _check_kind(path: Path, is_right: Callable[[int], bool]) -> int:
    """Return the size of a file or directory of a checkpoint. Raises SparkCheckpointError for links, which Spark does
    not make and which may lead to any file of this user, and for anything else of the wrong kind."""
    found = path.lstat()
    if not is_right(found.st_mode):
        what = "a link" if stat.S_ISLNK(found.st_mode) else "not a file"
        raise SparkCheckpointError(
            f"{path.name!r:.120} in it is {what}",
            path=path,
            cause="Spark does not create such entries: another program did. A link may lead to files outside.",
            remedy="If you trust the links, copy the checkpoint with the linked files themselves: cp -rL",
        )
    return found.st_size


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
