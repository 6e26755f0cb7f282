"""The files of one of Hadoop's file systems, through Spark's JVM: with the settings and credentials that executors use.

No operation here is assumed to be atomic, except that a file that was created and closed is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from recovery.errors import ConfigurationError
from recovery.places.address import SHARE

_MISSING = ("java.io.FileNotFoundException", "org.apache.hadoop.fs.PathNotFoundException")
_STATUS = re.compile(
    r"FileStatus\{path=(?P<path>.*?); isDirectory=false; length=(?P<size>\d+);.*?; modification_time=(?P<time>\d+);",
    re.DOTALL,
)
"""A file in the text of a list, as Hadoop writes it."""
_EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"


class HadoopFiles:
    """The files of the file system of an address, by their path in it. Methods raise OSError."""

    def __init__(self, address: str) -> None:
        """address: the URI of the file system, such as `s3a://bucket`. Nothing is reached before the first call."""
        self._address = address
        self._spark: SparkSession | None = None
        self._fs: Any = None

    def sizes(self, directory: Path) -> dict[str, int]:
        """Return names and sizes in bytes of the files in a directory; nothing if it is missing."""
        try:
            with self._reaching(directory):
                listed = self._client().listStatus(self._path(directory))
                return {each.getPath().getName(): each.getLen() for each in listed if each.isFile()}
        except FileNotFoundError:
            return {}

    def size(self, path: Path) -> int | None:
        """Return a file's size in bytes; None if there is no file."""
        try:
            with self._reaching(path):
                return int(self._client().getFileStatus(self._path(path)).getLen())
        except FileNotFoundError:
            return None

    def read(self, path: Path, start: int = 0) -> bytes | None:
        """Return a file's content from a position on; None if there is no file."""
        try:
            with self._reaching(path):
                stream = self._client().open(self._path(path))
                try:
                    stream.seek(start)
                    return bytes(stream.readAllBytes())
                finally:
                    stream.close()
        except FileNotFoundError:
            return None

    def tree(self, directory: Path) -> dict[str, tuple[int, int]]:
        """Return the files in a directory and below it, by their path in it, with size in bytes and modification time
        in milliseconds; nothing if it is missing. Names with a leading dot, and what is below them, are left out.

        The answer crosses to this process as one text: a call for each file would take a second for some thousand.
        That text has the permissions, for which Hadoop starts a process for each file of a mount, and fails if the file
        was renamed meanwhile: so this process lists a mount by itself."""
        if self._address == SHARE:
            return _tree_of_mount(directory)
        try:
            with self._reaching(directory):
                fs, path = self._client(), self._path(directory)
                within = str(fs.makeQualified(path).toString()).rstrip("/") + "/"
                assert self._spark is not None
                jvm: Any = self._spark._jvm
                listed = jvm.org.apache.hadoop.util.functional.RemoteIterators.toList(fs.listFiles(path, True))
                count, text = int(listed.size()), str(listed.toString())
        except FileNotFoundError:
            return {}
        found = [(each["path"], int(each["size"]), int(each["time"])) for each in _STATUS.finditer(text)]
        if len(found) != count or not all(name.startswith(within) for name, _, _ in found):
            raise OSError(
                errno.EIO, f"{count} files are listed in a form that is not known", f"{self._address}{directory}"
            )
        named = ((name.removeprefix(within), size, time) for name, size, time in found)
        return {name: (size, time) for name, size, time in named if not f"/{name}".count("/.")}

    def directories(self, directory: Path) -> list[str]:
        """Return the names of the directories in a directory; nothing if it is missing."""
        try:
            with self._reaching(directory):
                listed = self._client().listStatus(self._path(directory))
                return [each.getPath().getName() for each in listed if each.isDirectory()]
        except FileNotFoundError:
            return []

    def fetch(self, path: Path, target: Path) -> None:
        """Copy a file to a path of this host, which must be free."""
        with self._reaching(path):
            self._client().copyToLocalFile(False, self._path(path), self._local(target), True)

    def put(self, source: Path, path: Path) -> None:
        """Copy a file of this host. If this is interrupted, the file may be missing or hold a part of the content."""
        with self._reaching(path):
            fs = self._client()
            assert self._spark is not None
            jvm: Any = self._spark._jvm
            # Not copyFromLocalFile, for which S3A has another client: what writes here writes everything.
            file = jvm.java.io.File(str(source.absolute()))
            jvm.org.apache.hadoop.fs.FileUtil.copy(file, fs, self._path(path), False, fs.getConf())

    def _local(self, path: Path) -> Any:
        assert self._spark is not None, "_client() comes first"
        return self._new_path(self._spark, f"file:{path.absolute()}")

    def create(self, path: Path, data: bytes) -> None:
        """Create or replace a file. If this is interrupted, the file may be missing or hold a part of the data."""
        with self._reaching(path):
            stream = self._client().create(self._path(path), True)
            try:
                stream.write(data)
                if stream.hasCapability("hsync"):
                    stream.hsync()
            finally:
                stream.close()

    def rename(self, old: Path, new: Path) -> bool:
        """Rename a file; False if the file system refused it, as for a name that is taken. Where the file system copies
        instead, an interruption may leave both."""
        try:
            with self._reaching(old):
                return bool(self._client().rename(self._path(old), self._path(new)))
        except FileExistsError:
            return False

    def delete(self, path: Path) -> None:
        """Delete a file, or a directory with its content, if it exists."""
        with self._reaching(path):
            self._client().delete(self._path(path), True)

    def delete_at_exit(self, path: Path) -> None:
        """Let Spark's JVM delete a directory, which exists, with its content when it ends other than by a kill."""
        with self._reaching(path):
            self._client().deleteOnExit(self._path(path))

    def make_directory(self, path: Path) -> None:
        """Make a directory and its missing parents, where the file system has directories."""
        with self._reaching(path):
            self._client().mkdirs(self._path(path))

    def _client(self) -> Any:
        if self._fs is None or self._spark is None or self._spark.sparkContext._jsc is None:
            session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
            if session is None or session.sparkContext._jsc is None:
                raise ConfigurationError(
                    f"{self._address} is reached through Spark, and there is no session",
                    cause="Hadoop's client needs the settings of the session: libraries, endpoint and credentials.",
                    remedy="Create a SparkSession first, with the settings that the flow runs with.",
                )
            conf = session._jsparkSession.sessionState().newHadoopConf()
            self._spark, self._fs = session, self._new_path(session, f"{self._address}/").getFileSystem(conf)
        return self._fs

    def _path(self, path: Path) -> Any:
        assert self._spark is not None, "_client() comes first"
        return self._new_path(self._spark, f"{self._address}{path}")

    @staticmethod
    def _new_path(spark: SparkSession, text: str) -> Any:
        jvm = spark._jvm
        assert jvm is not None
        return jvm.org.apache.hadoop.fs.Path(text)

    @contextlib.contextmanager
    def _reaching(self, path: Path) -> Iterator[None]:
        """Translate Java's errors to OSError."""
        try:
            yield
        except (Py4JError, PySparkException) as error:
            thrown = getattr(error, "java_exception", None)
            kind = "" if thrown is None else str(thrown.getClass().getName())
            text = str(error) if thrown is None else str(thrown.toString())
            line = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
            code = errno.ENOENT if kind in _MISSING else errno.EEXIST if kind == _EXISTS else errno.EIO
            raise OSError(code, line, f"{self._address}{path}") from error


def _tree_of_mount(directory: Path) -> dict[str, tuple[int, int]]:
    """`HadoopFiles.tree` of a file system that this host has mounted."""
    found = {}
    for above, below, names in os.walk(directory, onerror=_refuse):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in names:
            if name.startswith("."):
                continue
            file = Path(above, name)
            with contextlib.suppress(FileNotFoundError):
                status = file.stat()
                found[file.relative_to(directory).as_posix()] = status.st_size, status.st_mtime_ns // 1_000_000
    return found


def _refuse(error: OSError) -> None:
    """Raise an error of a listing, unless the directory is gone."""
    if not isinstance(error, FileNotFoundError):
        raise error
