"""The checkpoint of a run at an address that all hosts reach, for the state of Spark's own operators on a cluster.

No step relies on a rename that is atomic:

- *Restore.* The checkpoint is written on this host, and then copied file by file to names that nothing has used: only
  this execution uses the directory. Spark starts when all files have arrived with their sizes. The next start removes
  what a killed one left.
- *Spark* finishes a file under another name and renames it. On an object store that is a copy, which appears whole or
  not at all, and what is left of an interrupted one has a hidden name.
- *Capture* takes a listing, copies the new files to this host, and compares size and time with the listing. If a file
  has vanished or changed meanwhile, the driver looks again. What counts is in the recovery partitions, so nothing here
  is ever read by a later run.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO

from recovery.base import faults
from recovery.base.ids import BatchId, Lease
from recovery.checkpoint.home import CheckpointHome, LocalHome, Mark
from recovery.errors import StorageError
from recovery.host.durable import make_directories
from recovery.places.address import file_system
from recovery.places.failures import Failures
from recovery.places.hadoop import HadoopFiles

CONCURRENT = 16
"""Files that are copied at a time: an object store answers after some ten milliseconds."""


class HadoopHome:
    """A `CheckpointHome` on one of Hadoop's file systems."""

    shared = True

    def __init__(self, files: HadoopFiles, system: str, root: Path, directory: Path) -> None:
        """system: the file system's address, without a path. root: the checkpoint there. directory: for copies on this
        host."""
        self.directory = directory
        self.location = f"{system}{root}"
        self._files = files
        self._failures = Failures(StorageError, self.location)
        self._root = root
        self._marks: dict[str, Mark] = {}
        self._below: dict[str, tuple[set[str], set[str]]] = {}
        self._pulled: dict[str, Mark] = {}
        # Kept: the JVM has a thread for each of this process that called it.
        self._pool = ThreadPoolExecutor(CONCURRENT, thread_name_prefix="checkpoint")

    def put(self) -> None:
        """Copy the checkpoint that was written to `directory`. Raises StorageError."""
        sizes = {
            file.relative_to(self.directory).as_posix(): file.stat().st_size
            for file in self.directory.rglob("*")
            if file.is_file()
        }
        with self._failures.of_hadoop(FileNotFoundError):
            self._files.make_directory(self._root)
            self._all(self._put, sizes)
        self._look()
        there = {path: size for path, (size, _) in self._marks.items()}
        if there != sizes:
            wrong = min(path for path in sizes.keys() | there.keys() if sizes.get(path) != there.get(path))
            raise StorageError(f"{wrong} is not there as it was written", path=self.location)
        self._pulled = {path: mark for path, mark in self._marks.items() if not path.startswith("state/")}

    def has_logged(self, batch: BatchId) -> bool:
        with self._failures.of_hadoop(FileNotFoundError):
            return self._files.size(self._root / "commits" / str(batch)) is not None

    def pull(self, batch: BatchId) -> None:
        # Spark has the state at the address.
        shutil.rmtree(self.directory / "state", ignore_errors=True)
        self._look()
        logs = {"metadata", *(f"{log}/{each}" for log in ("offsets", "commits") for each in (batch - 1, batch))}
        wanted = {path: mark for path, mark in self._marks.items() if path in logs or path.startswith("sources/")}
        for path in self._pulled.keys() - wanted.keys():
            (self.directory / path).unlink(missing_ok=True)
        new = {path: self.directory / path for path, mark in wanted.items() if self._pulled.get(path) != mark}
        for target in new.values():
            target.unlink(missing_ok=True)
        self.hold(new)
        self._pulled = wanted

    def listing(self, directory: str) -> tuple[list[str], list[str]]:
        directories, files = self._below.get(directory, (set(), set()))
        return sorted(directories), sorted(files)

    def exists(self, path: str) -> bool:
        return path in self._marks

    def mark(self, path: str) -> Mark:
        if path not in self._marks:
            raise _gone(self.location, path)
        return self._marks[path]

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[IO[bytes]]:
        own = self.directory / path
        if own.exists():
            with own.open("rb") as file:
                yield file
            return
        with self._failures.of_hadoop(FileNotFoundError):
            content = self._files.read(self._root / path)
        if content is None:
            raise _gone(self.location, path)
        yield io.BytesIO(content)

    def hold(self, targets: Mapping[str, Path]) -> None:
        """Copy the files, several at a time, and compare them with the listing."""
        for directory in {target.parent for target in targets.values()}:
            make_directories(directory)
        self._all(lambda path: self._hold(path, targets[path]), targets)

    def discard(self) -> None:
        self.close()
        with contextlib.suppress(Exception):
            self._files.delete(self._root)

    def close(self) -> None:
        """End the threads that copy. Files that were copied stay."""
        self._pool.shutdown()

    def _all(self, work: Callable[[str], None], paths: Iterable[str]) -> None:
        """Call the function for all paths, several at a time, and wait for all calls. Raises the first error."""
        futures = [self._pool.submit(work, path) for path in paths]
        wait(futures)
        for future in futures:
            future.result()

    def _put(self, path: str) -> None:
        self._files.put(self.directory / path, self._root / path)
        faults.reach("start.3.copied")

    def _hold(self, path: str, target: Path) -> None:
        size, _ = self.mark(path)
        with self._failures.of_hadoop(FileNotFoundError):
            self._files.fetch(self._root / path, target)
        faults.reach("close.1.copied")
        if target.stat().st_size != size:
            # It was replaced, or its copy was cut: look again.
            raise _gone(self.location, path)

    def _look(self) -> None:
        with self._failures.of_hadoop(FileNotFoundError):
            self._marks = self._files.tree(self._root)
        self._below = {}
        for path in self._marks:
            directory, _, name = path.rpartition("/")
            self._below.setdefault(directory, (set(), set()))[1].add(name)
            while directory:
                above, _, name = directory.rpartition("/")
                self._below.setdefault(above, (set(), set()))[0].add(name)
                directory = above


def _gone(location: str, path: str) -> FileNotFoundError:
    return FileNotFoundError(2, "it has vanished", f"{location}/{path}")


def checkpoint_home(address: str | None, scratch: Path, store_id: str, lease: Lease) -> CheckpointHome:
    """Return the place of an execution's checkpoint. address: where all hosts reach it; None: only this host writes it,
    into `scratch`."""
    found = None if address is None else file_system(address, "scratch_directory")
    if found is None:
        return LocalHome(scratch / "checkpoint")
    system, path = found
    return HadoopHome(HadoopFiles(system), system, Path(path, _name(store_id, lease)), scratch / "checkpoint")


def discard_earlier(address: str | None, store_id: str, leases: Iterable[Lease]) -> None:
    """Remove what executions of this directory left at the address, because they were killed. Raises OSError.

    leases: executions that are known to be of this directory: an execution of a copy of the directory may be under way.
    """
    found = None if address is None else file_system(address, "scratch_directory")
    if found is not None:
        system, path = found
        files = HadoopFiles(system)
        known = {_name(store_id, lease) for lease in leases}
        for name in known.intersection(files.directories(Path(path))):
            files.delete(Path(path, name))


def _name(store_id: str, lease: Lease) -> str:
    return f"recovery-{store_id}-{lease.number}-{lease.id}"
