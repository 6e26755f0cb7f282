"""An archive of the JVM's classes, so that Spark starts in half the time.

Starting Spark is for the most part reading some fifteen thousand classes from its jars. The JVM can map them from a
file instead ("class data sharing"). By itself it checks that the file was written by this very build of Java from jars
of these times and sizes; where it was not, it goes on without. So a stale archive costs time, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from recovery.errors import SparkUnavailableError, StorageError

CACHE_VARIABLE = "RECOVERY_CACHE"
"""Names the directory for what can be made anew; by default `recovery` in the user's directory for such."""

_TRAINING_S = 600
_DUMP_S = 1200


def archive_path(java_home: Path) -> Path | None:
    """Where the archive for this Java and this PySpark belongs; None when there is no place for it."""
    home = _cache_directory()
    library = next((java_home / "lib" / "server").glob("libjvm.*"), None)
    if home is None or library is None:
        return None
    import pyspark

    real, found = library.resolve(), library.stat()
    identity = f"{real}\n{found.st_size}\n{found.st_mtime_ns}\n{Path(pyspark.__file__).resolve().parent}"
    name = f"spark-{pyspark.__version__}-{hashlib.sha1(identity.encode()).hexdigest()[:12]}.jsa"
    # The JVM takes a colon in the name for the border between two archives.
    return None if ":" in str(home / name) else home / name


def archive_options(path: Path | None, given: str) -> str:
    """Java options to start with the archive at `path`; none without one, or when the user gave options of the kind."""
    if path is None or not path.is_file() or "-Xshare" in given or "SharedArchiveFile" in given:
        return ""
    return f"{_sharing(path)} -Xlog:cds*=off"


def make_archive(java_home: Path, observe: Callable[[str], None] = lambda _: None) -> Path:
    """Make the archive for this Java, in place of an older one. Half a minute to a minute of one core.

    It is there when the JVM was seen to start with it, whole and under its name; anything before leaves the older one.
    observe: is told what is being done. Raises SparkUnavailableError, StorageError.
    """
    path = archive_path(java_home)
    if path is None:
        raise SparkUnavailableError(
            "there is no place for an archive of classes",
            cause=f"This user has no home directory, its name holds a colon, or {java_home} is no Java.",
            remedy=f"Name a directory in the variable {CACHE_VARIABLE}.",
        )
    with _storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".warmup-", dir=path.parent))
    try:
        observe("running a small flow, to see which classes it needs")
        names, archive = draft / "classes", draft / "archive"
        class_path = _train(f'"-XX:DumpLoadedClassList={names}"')
        observe("writing them to an archive")
        _dump(java_home, class_path, names, archive)
        observe("running the flow again, with it")
        _train(f"{_sharing(archive)} -Xshare:on")
        with _storage_errors(path):
            with archive.open("rb") as file:
                os.fsync(file.fileno())
            archive.replace(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def remove_archives() -> list[Path]:
    """Remove the archives of all versions; returns which. Raises StorageError."""
    home = _cache_directory()
    found = sorted(home.glob("spark-*.jsa")) if home is not None else []
    for path in found:
        with _storage_errors(path):
            path.unlink(missing_ok=True)
    return found


def _cache_directory() -> Path | None:
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(shared, "recovery") if shared else Path.home() / ".cache" / "recovery"
    except RuntimeError:
        return None


def _sharing(path: Path) -> str:
    return f'"-XX:SharedArchiveFile={path}"'


def _train(java_options: str) -> str:
    """Run the small flow in a process of its own, which ends with its JVM; returns that one's class path."""
    return _run([sys.executable, "-m", "recovery.spark.training", java_options], _TRAINING_S, dict(os.environ)).strip()


def _dump(java_home: Path, class_path: str, names: Path, archive: Path) -> None:
    options = ["-Xshare:dump", f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"]
    # Another collector's options would not fit the one that the archive is made for.
    environment = {name: text for name, text in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}
    _run([str(java_home / "bin" / "java"), *options, "-cp", class_path], _DUMP_S, environment)
    if not archive.is_file():
        raise _failed("Java wrote nothing")


def _run(command: list[str], timeout_s: float, environment: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(f"{Path(command[0]).name} did not come to an end: {error!s:.200}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise _failed(f"{Path(command[0]).name} ended with code {done.returncode}, and said: {said:.300}")
    return done.stdout


def _failed(found: str) -> SparkUnavailableError:
    return SparkUnavailableError(
        f"no archive of classes was made: {found}",
        cause="Spark cannot run here, or this build of Java cannot make one.",
        remedy="See that a flow runs: python -m recovery demo. Runs need no archive; it only makes them start sooner.",
    )


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the archive of classes cannot be written or removed: {error.strerror or error}",
            path=path,
            remedy=f"Make room or give the right to write there, or name another directory in {CACHE_VARIABLE}.",
        ) from error
