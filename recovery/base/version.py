"""The version of this package, also where it is imported from a directory or an archive without metadata."""

import subprocess
from pathlib import Path

VERSION = "0.4.0.dev0"
DISTRIBUTION = "pyspark-recovery"
"""The name under which pip knows the package; it is imported as `recovery`."""


def installed_version() -> str:
    """Return the version of the installed package, which of a development version has the commit it was built from, as
    in 0.4.0.dev12+g1234567; VERSION if the package is not installed, or another version of it is."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version(DISTRIBUTION)
    except PackageNotFoundError:
        return VERSION
    return found if found.startswith(VERSION.removesuffix("0")) else VERSION


def version_to_build() -> str:
    """Return the version of a build of this checkout, which the build asks for: VERSION, and of a development version
    also the commits since VERSION was set, and the newest one. A clone without the whole history counts no commits.
    Only VERSION where git or the history is missing."""
    if ".dev" not in VERSION:
        return VERSION
    here = Path(__file__)
    try:
        since = _git("log", "-1", "--format=%H", "-G", "^VERSION = ", "--", here.name)
        is_whole = _git("rev-parse", "--is-shallow-repository") != "true"
        count = _git("rev-list", "--count", f"{since}..HEAD") if is_whole else "0"
        commit = _git("rev-parse", "--short=7", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return VERSION
    return f"{VERSION.removesuffix('0')}{count}+g{commit}" if since else VERSION


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout.strip()
