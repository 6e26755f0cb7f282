"""Checkpoints on other file systems, through the Hadoop API of Spark's JVM: `hdfs://`, `s3a://`, `file:` …

The JVM runs on this machine, so it copies files to and from local ones, and no content passes through Python.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from recovery.base.ids import BatchId
from recovery.checkpoint.directories import (
    CheckpointTransfer,
    LocalCheckpoint,
    Observer,
    copied,
    ignore,
    not_vacant,
    vanished,
)
from recovery.errors import StorageError
from recovery.host.storage_errors import storage_errors
from recovery.places.address import split_system
from recovery.places.failures import Failures
from recovery.places.hadoop import HadoopFiles
from recovery.places.secrets import without_password


class HadoopCheckpoint:
    """A `CheckpointDirectory` on any file system that the session can reach.

    A checkpoint is written beside its final path and then renamed. If the file system cannot rename in one step, like
    object stores, a writer that is killed while renaming leaves a part.
    """

    def __init__(self, spark: SparkSession, uri: str, random_id: Callable[[], str]) -> None:
        """Raises StorageError if the file system does not exist or cannot be reached."""
        self.shown, secrets = without_password(uri)
        self._failures = Failures(StorageError, self.shown, secrets)
        self._random_id = random_id
        system, path = split_system(uri)
        self._files = HadoopFiles(system, spark)
        self._root = Path(path)
        self._is_local = system.lower().startswith("file:")
        with self._failures.of_hadoop():
            self.location = self._files.qualified(self._root)

    def sizes(self) -> dict[str, int]:
        if self._is_local:
            # Hadoop would start a process for each file, for its permissions, and fail if it is renamed meanwhile.
            return LocalCheckpoint(self._root, self._random_id).sizes()
        with self._failures.of_hadoop():
            return {path: size for path, (size, _) in self._files.tree(self._root).items()}

    @contextlib.contextmanager
    def here(self, batch: BatchId, scratch: Path, observe: Observer = ignore) -> Iterator[Path]:
        with copied(self.sizes(), self._fetch, batch, scratch, observe) as copy:
            yield copy

    def _fetch(self, path: str, target: Path) -> None:
        try:
            with self._failures.of_hadoop(FileNotFoundError):
                self._files.fetch(self._root / path, target)
        except FileNotFoundError:
            raise vanished(self.shown, path) from None

    def check_vacant(self) -> None:
        with self._failures.of_hadoop():
            # The root of a file system cannot be renamed to.
            if not self._root.name or not self._files.is_vacant(self._root):
                raise not_vacant(self.shown)

    @contextlib.contextmanager
    def writing(self, observe: Observer = ignore) -> Iterator[Path]:
        """Provide a local path where the block creates a directory, which is copied to this one when the block ends."""
        self.check_vacant()
        scratch = Path(tempfile.gettempdir())
        with storage_errors(scratch), tempfile.TemporaryDirectory(prefix="recovery-checkpoint-", dir=scratch) as home:
            made = Path(home) / "checkpoint"
            yield made
            draft = self._root.with_name(f".{self._root.name}.draft-{self._random_id()}")
            try:
                self._copy(made, draft, observe)
                self._put(draft)
            finally:
                with self._failures.of_hadoop():
                    self._files.delete(draft)

    def _copy(self, made: Path, draft: Path, observe: Observer) -> None:
        files = [path for path in sorted(made.rglob("*")) if path.is_file()]
        total, done = sum(file.stat().st_size for file in files), 0
        for file in files:
            target = draft / file.relative_to(made)
            with self._failures.of_hadoop():
                self._files.make_directory(target.parent)
                self._files.put(file, target)
            done += file.stat().st_size
            observe(CheckpointTransfer("copying", done, total))

    def _put(self, draft: Path) -> None:
        """Rename the draft to its final path. Hadoop would move it into an empty directory there: remove that first."""
        self.check_vacant()
        with self._failures.of_hadoop():
            self._files.remove_empty(self._root)
            is_renamed = self._files.rename(draft, self._root)
        if not is_renamed:
            raise StorageError(f"the file system would not rename {draft} to it", path=self.shown)
