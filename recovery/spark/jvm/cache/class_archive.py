"""An archive of the JVM's classes, so that Spark starts in half the time.

Most of Spark's start goes into reading some fifteen thousand classes from its jars. The JVM can map classes from a file
instead ("class data sharing"). From Java 25 on ("AOT cache") the file also records how often their methods ran, and
with what, in flows like the user's, so that the JVM compiles them well sooner. The JVM itself checks that this build of
Java wrote the file from jars with these times and sizes; if not, it starts without the file. So a stale archive costs
time, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recovery.base.addresses import local_path
from recovery.errors import SparkUnavailableError, StorageError
from recovery.host.children import own_module
from recovery.host.durable import make_directories
from recovery.spark.jvm.java import java_version

CACHE_VARIABLE = "RECOVERY_CACHE"
"""Names the directory for files that can be made again; by default `recovery` in the user's cache directory."""

CLASSES, PROFILES = ".jsa", ".aot"
"""Suffixes of archives: with classes only, and with profiles of their methods."""
COMPILED = "java-"
"""Begins the names of the files with this package's own classes (`recovery.spark.jvm.cache.class_cache`)."""
COMPILED_FILES = f"*{COMPILED}{'[0-9a-f]' * 32}*"
"""Matches these archives, and drafts of them that killed processes left, but no file of others in the same
directory."""
PROFILING_JAVA = 25

_TRAINING_S = 600
_DUMP_S = 1200
_OF_THE_KIND = re.compile(
    r"-Xshare|SharedArchive|ArchiveClassesAtExit|SharedClassListFile|DumpLoadedClassList|-XX:AOT|FlightRecord"
)
"""User options that set up class sharing: together with the archive's options the JVM may refuse to start. Also options
that record the JVM: with an archive, Java 17 ended by a segmentation fault."""
_LATER_COMPILATION = (
    "-XX:Tier4InvocationThreshold=15000",
    "-XX:Tier4MinInvocationThreshold=1800",
    "-XX:Tier4CompileThreshold=45000",
    "-XX:Tier4BackEdgeThreshold=120000",
)
"""Three times Java's own thresholds. Java's second compiler takes a quarter of a short run's processor time, mostly for
code that hardly runs again. Without profiles, small micro-batches would be slow for longer."""
QUIET = "-Xlog:cds*=off -Xlog:aot*=off"
"""Keeps Java 25 and newer from saying why they do not use an archive."""
_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")


def archive_path(java_home: Path) -> Path | None:
    """The path of the archive for this Java and this PySpark; None if there is no place for it."""
    home, name = cache_directory(), identity(java_home)
    if home is None or name is None:
        return None
    kind = PROFILES if java_version(java_home) >= PROFILING_JAVA else CLASSES
    return home / f"spark-{name}{kind}"


def identity(java_home: Path) -> str | None:
    """A name for this Java with this PySpark; None if the directory is not Java's."""
    library = next((java_home / "lib" / "server").glob("libjvm.*"), None)
    if library is None:
        return None
    import pyspark

    real, found = library.resolve(), library.stat()
    facts = f"{real}\n{found.st_size}\n{found.st_mtime_ns}\n{Path(pyspark.__file__).resolve().parent}"
    return f"{pyspark.__version__}-{hashlib.sha1(facts.encode()).hexdigest()[:12]}"


OTHERS_WRITE = 0o022


def archive_options(path: Path | None, given: str) -> str:
    """Java options to start with the archive at `path`. Empty without an archive, or if the user set up class sharing,
    in `given` or in the environment."""
    if path is None or not is_readable(path) or sets_up_sharing(given):
        return ""
    if path.suffix == CLASSES:
        return f"{_sharing(path)} -Xlog:cds*=off"
    return f"{_sharing(path)} {QUIET} {' '.join(_LATER_COMPILATION)}"


def is_readable(path: Path) -> bool:
    """Whether there is an archive that this user may read and that only this user and root can have written: the JVM
    runs what is in it. Another user's archive may lie where this user may not look: such an archive is no error of a
    run."""
    with contextlib.suppress(OSError):
        real = Path(os.path.realpath(path))
        home = real.parent.stat()
        # In a sticky directory, others cannot replace the file.
        is_home_safe = home.st_uid in {os.geteuid(), 0} and (
            not home.st_mode & OTHERS_WRITE or home.st_mode & stat.S_ISVTX
        )
        return bool(is_home_safe) and is_trusted(real.stat()) and os.access(real, os.R_OK)
    return False


def is_trusted(found: os.stat_result) -> bool:
    """Whether a file is one to which only this user and root can write."""
    return stat.S_ISREG(found.st_mode) and found.st_uid in {os.geteuid(), 0} and not found.st_mode & OTHERS_WRITE


def sets_up_sharing(given: str) -> bool:
    """Whether the user set up class sharing, in these Java options or in the environment."""
    texts = (given, *(os.environ.get(name, "") for name in _OPTION_VARIABLES))
    return any(map(_OF_THE_KIND.search, texts))


def make_archive(java_home: Path, observe: Callable[[str], None] = lambda _: None) -> Path:
    """Make the archive for this Java, replacing an older one. Takes one to two minutes.

    The complete archive gets its name only after the JVM was seen to start with it; until then the older one stays.
    observe: called with a text for each step. Raises SparkUnavailableError, StorageError.
    """
    path = archive_path(java_home)
    if path is None:
        raise SparkUnavailableError(
            "there is no place for an archive of classes",
            cause=f"This user has no home directory, its name holds a colon, or {java_home} is not Java.",
            remedy=f"Name a directory in the variable {CACHE_VARIABLE}.",
        )
    with _storage_errors(path.parent):
        make_directories(path.parent)
        draft = Path(tempfile.mkdtemp(prefix=".warmup-", dir=path.parent))
    try:
        names, archive = draft / "classes", draft / f"archive{path.suffix}"
        if path.suffix == PROFILES:
            observe("running some flows, to see which classes they need, and how they use them")
            trained = _train(f'-XX:AOTMode=record "-XX:AOTConfiguration={names}" -Xlog:disable', "--profile")
            # The JVM uses the whole cache only if it was made with the module options that Spark's JVM starts with.
            dump = ["-XX:AOTMode=create", f"-XX:AOTConfiguration={names}", f"-XX:AOTCache={archive}"]
            dump += trained["module_options"]
            strict = "-XX:AOTMode=on"
        else:
            observe("running a small flow, to see which classes it needs")
            trained = _train(f'"-XX:DumpLoadedClassList={names}"')
            dump = ["-Xshare:dump", f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={archive}"]
            strict = "-Xshare:on"
        observe("writing them to an archive")
        _dump(java_home, trained["class_path"], dump, archive)
        observe("running a small flow with it")
        _train(f"{_sharing(archive)} {strict}")
        with _storage_errors(path):
            with archive.open("rb") as file:
                os.fsync(file.fileno())
            archive.replace(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def remove_archives() -> list[Path]:
    """Remove the files of all versions from the cache; return their paths. Raises StorageError."""
    home = cache_directory()
    patterns = (f"spark-*{CLASSES}", f"spark-*{PROFILES}", "left-*", COMPILED_FILES)
    found = sorted(path for pattern in patterns for path in home.glob(pattern)) if home else []
    for path in found:
        with _storage_errors(path):
            path.unlink(missing_ok=True)
    return found


def cache_directory() -> Path | None:
    """The directory for files that can be made again; None if there is no place for archives."""
    named, shared = os.environ.get(CACHE_VARIABLE), os.environ.get("XDG_CACHE_HOME")
    try:
        home = Path(shared, "recovery") if shared else Path.home() / ".cache" / "recovery"
    except RuntimeError:
        home = None
    home = local_path(named).absolute() if named else home
    # The JVM takes a colon in the name for a separator between two archives.
    return None if home is None or ":" in str(home) else home


def _sharing(path: Path) -> str:
    option = "AOTCache" if path.suffix == PROFILES else "SharedArchiveFile"
    return f'"-XX:{option}={path}"'


def _train(java_options: str, *arguments: str) -> dict[str, Any]:
    """Run the flows in a separate process, which ends with its JVM; return what it reports about that JVM."""
    command, environment = own_module("recovery.spark.run.warmup_flows")
    environment = {**plain_environment(), "PYTHONPATH": environment["PYTHONPATH"]}
    printed = _run([*command, java_options, *arguments], _TRAINING_S, environment)
    trained: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return trained


def _dump(java_home: Path, class_path: str, options: list[str], archive: Path) -> None:
    _run([str(java_home / "bin" / "java"), *options, "-Xlog:disable", "-cp", class_path], _DUMP_S, plain_environment())
    if not archive.is_file():
        raise _failed("Java wrote nothing")


def plain_environment() -> dict[str, str]:
    """This process's environment without options for Java: an archive fits only the garbage collector that it was made
    with, and options for a second archive would conflict."""
    return {name: text for name, text in os.environ.items() if name not in _OPTION_VARIABLES}


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
