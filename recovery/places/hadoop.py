"""The files of one of Hadoop's file systems, through Spark's JVM: with the settings and credentials that executors use.

No operation here is assumed to be atomic, except that a file that was created and closed is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from recovery.errors import ConfigurationError
from recovery.places.address import SHARE

T = TypeVar("T")

_MISSING = ("java.io.FileNotFoundException", "org.apache.hadoop.fs.PathNotFoundException")
_STATUS = re.compile(
    r"FileStatus\{path=(?P<path>.*?); isDirectory=false; length=(?P<size>\d+);.*?; modification_time=(?P<time>\d+);",
    re.DOTALL,
)
"""A file in the text of a list, as Hadoop writes it."""
_WORDS = re.compile(r" \(([A-Z][^()]*)\)$")
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}
_EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"


class HadoopFiles:
    """The files of the file system of an address, by their path in it. Methods raise OSError."""

    def __init__(self, address: str, spark: SparkSession | None = None) -> None:
        """address: the URI of the file system, such as `s3a://bucket`. spark: the session whose settings open it; None:
        the active one, at the first call. No file system is reached before the first call."""
        self._address = address
        self._given = spark
        self._spark: SparkSession | None = None
        self._fs: Any = None

    def qualified(self, path: Path) -> str:
        """Return the whole URI of a path, with which Spark names files in it."""
        return self._ask(path, lambda fs, at: str(fs.makeQualified(at)))

    def is_vacant(self, path: Path) -> bool:
        """Return whether nothing is there, or an empty directory."""
        return self._ask(
            path,
            lambda fs, at: not fs.exists(at) or (fs.getFileStatus(at).isDirectory() and len(fs.listStatus(at)) == 0),
        )

    def sizes(self, directory: Path) -> dict[str, int]:
        """Return names and sizes in bytes of the files in a directory; nothing if it is missing."""

        def sizes(fs: Any, at: Any) -> dict[str, int]:
            return {each.getPath().getName(): each.getLen() for each in fs.listStatus(at) if each.isFile()}

        return self._ask(directory, sizes, {})

    def directories(self, directory: Path) -> list[str]:
        """Return the names of the directories in a directory; nothing if it is missing."""

        def names(fs: Any, at: Any) -> list[str]:
            return [each.getPath().getName() for each in fs.listStatus(at) if each.isDirectory()]

        return self._ask(directory, names, [])

    def size(self, path: Path) -> int | None:
        """Return a file's size in bytes; None if there is no file."""
        return self._ask(path, lambda fs, at: int(fs.getFileStatus(at).getLen()), None)

    def read(self, path: Path, start: int = 0) -> bytes | None:
        """Return a file's content from a position on; None if there is no file."""

        def read(fs: Any, at: Any) -> bytes:
            with contextlib.closing(fs.open(at)) as stream:
                stream.seek(start)
                return bytes(stream.readAllBytes())

        return self._ask(path, read, None)

    def tree(self, directory: Path) -> dict[str, tuple[int, int]]:
        """Return the files in a directory and below it, by their path in it, with size in bytes and modification time
        in milliseconds; nothing if it is missing. Names with a leading dot, and what is below them, are left out.

        The answer crosses to this process as one text: a call for each file would take a second for some thousand.
        The text has the permissions, for which Hadoop starts a process for each file of a mount, and fails if the file
        was renamed meanwhile: so this process lists a mount by itself."""
        if self._address == SHARE:
            return _tree_of_mount(directory)
        nothing: list[tuple[str, int, int]] = []
        found = self._ask(directory, self._listed, nothing)
        return {name: (size, time) for name, size, time in found if not f"/{name}".count("/.")}

    def _listed(self, fs: Any, at: Any) -> list[tuple[str, int, int]]:
        within = str(fs.makeQualified(at).toString()).rstrip("/") + "/"
        listed = self._jvm.org.apache.hadoop.util.functional.RemoteIterators.toList(fs.listFiles(at, True))
        text = str(listed.toString())
        found = [(each["path"], int(each["size"]), int(each["time"])) for each in _STATUS.finditer(text)]
        if len(found) == int(listed.size()) and all(name.startswith(within) for name, _, _ in found):
            return [(name.removeprefix(within), size, time) for name, size, time in found]
        # A file system that writes a list in a form of its own.
        above = str(at.toUri().getPath()).rstrip("/") + "/"
        paths = [(str(each.getPath().toUri().getPath()), each) for each in listed]
        return [(path.removeprefix(above), each.getLen(), each.getModificationTime()) for path, each in paths]

    def fetch(self, path: Path, target: Path) -> None:
        """Copy a file to a path of this host, which must be free."""
        self._ask(path, lambda fs, at: fs.copyToLocalFile(False, at, self._path(f"file:{target.absolute()}"), True))

    def put(self, source: Path, path: Path) -> None:
        """Copy a file of this host. If this is interrupted, the file may be missing or hold a part of the content."""

        def put(fs: Any, at: Any) -> None:
            # Not copyFromLocalFile, for which S3A has another client: what writes here writes everything.
            file = self._jvm.java.io.File(str(source.absolute()))
            self._jvm.org.apache.hadoop.fs.FileUtil.copy(file, fs, at, False, fs.getConf())

        self._ask(path, put)

    def create(self, path: Path, data: bytes) -> None:
        """Create or replace a file. If this is interrupted, the file may be missing or hold a part of the data."""

        def create(fs: Any, at: Any) -> None:
            with contextlib.closing(fs.create(at, True)) as stream:
                stream.write(data)
                if stream.hasCapability("hsync"):
                    stream.hsync()

        self._ask(path, create)

    def rename(self, old: Path, new: Path) -> bool:
        """Rename a file; False if the file system refused it, as for a name that is taken. Where the file system copies
        instead, an interruption may leave both."""
        try:
            return bool(self._ask(old, lambda fs, at: fs.rename(at, self._path(f"{self._address}{new}"))))
        except FileExistsError:
            return False

    def delete(self, path: Path) -> None:
        """Delete a file, or a directory with its content, if it exists."""
        self._ask(path, lambda fs, at: fs.delete(at, True))

    def remove_empty(self, path: Path) -> None:
        """Delete an empty directory, if it exists."""
        self._ask(path, lambda fs, at: fs.delete(at, False))

    def delete_at_exit(self, path: Path) -> None:
        """Let Spark's JVM delete a directory, which exists, with its content when it ends other than by a kill."""
        self._ask(path, lambda fs, at: fs.deleteOnExit(at))

    def make_directory(self, path: Path) -> None:
        """Make a directory and its missing parents, where the file system has directories."""
        self._ask(path, lambda fs, at: fs.mkdirs(at))

    def _ask(self, path: Path, call: Callable[[Any, Any], T], *missing: T) -> T:
        """Return what a call with the file system and a path in it does. missing: what to return if there is no such
        file. Translates Java's errors to OSError."""
        try:
            fs = self._client()
            return call(fs, self._path(f"{self._address}{path}"))
        except (Py4JError, PySparkException) as error:
            thrown = getattr(error, "java_exception", None)
            kind = "" if thrown is None else str(thrown.getClass().getName())
            text = str(error) if thrown is None else str(thrown.toString())
            line = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
            number = number_of(kind, line)
            if number == errno.ENOENT and missing:
                return missing[0]
            raise OSError(number, line, f"{self._address}{path}") from error

    def _client(self) -> Any:
        if self._fs is None or (self._given is None and _is_stopped(self._spark)):
            session = self._given or SparkSession.getActiveSession() or SparkSession._instantiatedSession
            if session is None or (self._given is None and _is_stopped(session)):
                raise ConfigurationError(
                    f"{self._address} is reached through Spark, and there is no session",
                    cause="Hadoop's client needs the settings of the session: libraries, endpoint and credentials.",
                    remedy="Create a SparkSession first, with the settings that the flow runs with.",
                )
            conf = session._jsparkSession.sessionState().newHadoopConf()
            self._spark = session
            self._fs = self._path(f"{self._address}/").getFileSystem(conf)
        return self._fs

    @property
    def _jvm(self) -> Any:
        assert self._spark is not None, "_client() comes first"
        return self._spark._jvm

    def _path(self, uri: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(uri)


def _is_stopped(session: SparkSession | None) -> bool:
    return session is None or session.sparkContext._jsc is None


def number_of(kind: str, text: str) -> int:
    """Return the error number for a Java exception. Java says FileNotFoundException of a file that this user may not
    read, too, with the operating system's words behind the path."""
    words = _WORDS.search(text)
    if words is not None and words[1] in _NUMBERS:
        return _NUMBERS[words[1]]
    return errno.ENOENT if kind in _MISSING else errno.EEXIST if kind == _EXISTS else errno.EIO


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
