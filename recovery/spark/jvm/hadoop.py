"""Checkpoints on other file systems, through the Hadoop API of Spark's JVM: `hdfs://`, `s3a://`, `file:` …

The JVM runs on this machine, so it copies files to and from local ones, and no content passes through Python.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from recovery.base.ids import BatchId
from recovery.checkpoint.places import (
    LocalPlace,
    Observer,
    Progressed,
    copied,
    ignore,
    not_vacant,
    storage_errors,
    vanished,
)
from recovery.errors import RecoveryError, StorageError

# The password in an address: the text between the name and the @. Hadoop accepts no slash in a password, but such text
# is hidden, too. A port is not a password.
_PASSWORD = re.compile(r"(://[^/@:]*):([^/]*|(?!\d+/)[^@]*)@")
SHORTEST_SECRET = 4


class HadoopPlace:
    """A directory on any file system that the session can reach; see `recovery.checkpoint.places.CheckpointPlace`.

    It is written beside its place and then renamed. If the file system cannot rename in one step, like object stores, a
    writer that is killed while renaming leaves a part.
    """

    def __init__(self, spark: SparkSession, uri: str, random_id: Callable[[], str]) -> None:
        """Raises StorageError if the file system does not exist or cannot be reached."""
        self.shown = _PASSWORD.sub(r"\1@", uri, count=1)
        found = _PASSWORD.search(uri)
        self._secrets = {found[2], unquote(found[2])} if found and found[2] else set()
        self._new_path: Callable[[str], Any] = spark._jvm.org.apache.hadoop.fs.Path
        self._random_id = random_id
        with self._reaching():
            root = self._new_path(uri)
            self._fs = root.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
            self._root = self._fs.makeQualified(root)
            self.location = str(self._root)

    def sizes(self) -> dict[str, int]:
        """See `CheckpointPlace.sizes`."""
        if self._root.toUri().getScheme() == "file":
            # Hadoop would start a process for each file, for its permissions, and fail if it is renamed meanwhile.
            return LocalPlace(Path(self._root.toUri().getPath()), self._random_id).sizes()
        found: dict[str, int] = {}
        with self._reaching():
            if not self._fs.exists(self._root):
                return found
            above = self._root.toUri().getPath().rstrip("/") + "/"
            listed = self._fs.listFiles(self._root, True)
            while listed.hasNext():
                status = listed.next()
                path = status.getPath().toUri().getPath().removeprefix(above)
                if not any(name.startswith(".") for name in path.split("/")):
                    found[path] = status.getLen()
        return found

    @contextlib.contextmanager
    def here(self, batch: BatchId, scratch: Path, observe: Observer = ignore) -> Iterator[Path]:
        """See `CheckpointPlace.here`."""
        with copied(self.sizes(), self._fetch, batch, scratch, observe) as copy:
            yield copy

    def _fetch(self, path: str, target: Path) -> None:
        with self._reaching():
            source = self._new_path(f"{self._root}/{path}")
            if not self._fs.exists(source):
                raise vanished(self.shown, path)
            self._fs.copyToLocalFile(False, source, self._local(target), True)

    def check_vacant(self) -> None:
        """See `CheckpointPlace.check_vacant`."""
        with self._reaching():
            if self._fs.exists(self._root) and not self._is_empty():
                raise not_vacant(self.shown)

    @contextlib.contextmanager
    def writing(self, observe: Observer = ignore) -> Iterator[Path]:
        """See `CheckpointPlace.writing`. The block writes a local directory, which is copied there when it ends."""
        self.check_vacant()
        scratch = Path(tempfile.gettempdir())
        with storage_errors(scratch), tempfile.TemporaryDirectory(prefix="recovery-checkpoint-", dir=scratch) as home:
            made = Path(home) / "checkpoint"
            yield made
            with self._reaching():
                draft = self._new_path(f"{self._root.getParent()}/.{self._root.getName()}.draft-{self._random_id()}")
                try:
                    self._copy(made, draft, observe)
                    self._put(draft)
                finally:
                    self._fs.delete(draft, True)

    def _copy(self, made: Path, draft: Any, observe: Observer) -> None:
        files = [path for path in sorted(made.rglob("*")) if path.is_file()]
        total, done = sum(file.stat().st_size for file in files), 0
        for file in files:
            target = self._new_path(f"{draft}/{file.relative_to(made).as_posix()}")
            self._fs.mkdirs(target.getParent())
            self._fs.copyFromLocalFile(False, True, self._local(file), target)
            done += file.stat().st_size
            observe(Progressed("copying", done, total))

    def _put(self, draft: Any) -> None:
        """Rename the draft to its place. Remove an empty directory there first: Hadoop would move the draft into it."""
        if self._fs.exists(self._root):
            if not self._is_empty():
                raise not_vacant(self.shown)
            self._fs.delete(self._root, False)
        if not self._fs.rename(draft, self._root):
            raise StorageError(self._scrubbed(f"the file system would not rename {draft} to it"), path=self.shown)

    def _is_empty(self) -> bool:
        status = self._fs.getFileStatus(self._root)
        return bool(status.isDirectory()) and len(self._fs.listStatus(self._root)) == 0

    def _local(self, path: Path) -> Any:
        return self._new_path(f"file:{path.absolute()}")

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except RecoveryError:
            raise
        except (Py4JError, PySparkException) as error:
            raise StorageError(
                self._scrubbed(_message_of(error)),
                path=self.shown,
                cause="The address is wrong, the service is down, or Spark lacks its library or credentials for it.",
                remedy="Check the address. Libraries are settings of Spark, as in --conf spark.jars.packages=…; so are "
                "credentials, as spark.hadoop.fs.s3a.access.key, which belong in a --properties-file.",
            ) from (None if self._secrets else error)

    def _scrubbed(self, text: str) -> str:
        """`text` without the password in the address."""
        for secret in self._secrets:
            text = text.replace(f":{secret}@", "@")
            if len(secret) >= SHORTEST_SECRET:
                text = text.replace(secret, "***")
        return text


def _message_of(error: Exception) -> str:
    """Java's error message, in one line."""
    thrown = getattr(error, "java_exception", None)
    text = str(error) if thrown is None else str(thrown.toString())
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
