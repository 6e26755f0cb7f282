"""Jars that a session needs besides Spark's own, such as a connector: files, and packages of Maven.

Spark takes jars and packages when its JVM starts, and resolves packages by Ivy. Spark leaves out a missing file
silently: the flow would fail later, for a class that is missing.
"""

from __future__ import annotations

import glob
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

from recovery.errors import ConfigurationError

JARS, PACKAGES = "spark.jars", "spark.jars.packages"
_FILE = re.compile(r"file:(//(?=/))?")
"""Begins the address of a file on this machine: file:/a, file:///a."""
_ADDRESS = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:")
"""Begins what Spark fetches from elsewhere, or expects on every host."""


def with_jars(settings: Mapping[str, str], jars: str | None, packages: str | None) -> dict[str, str]:
    """Return the settings with these jars and packages besides those that they name. Jars and packages are lists with
    commas, as spark-submit takes them."""
    found = dict(settings)
    for name, more in ((JARS, jars), (PACKAGES, packages)):
        if more:
            found[name] = ",".join(filter(None, [found.get(name), more]))
    return found


def check_jars(settings: Mapping[str, str]) -> None:
    """Raise ConfigurationError if a jar on this machine is missing, or is not a jar."""
    for entry in _listed(settings.get(JARS)):
        if _ADDRESS.match(entry):
            continue
        for path in _files(entry):
            wrong = _objection(path)
            if wrong is not None:
                raise ConfigurationError(
                    f"the jar {entry} {wrong}",
                    cause="A path in --jars or spark.jars that is misspelt, or relative to another directory.",
                    remedy="Name files, separated by commas: --jars a.jar,b.jar, or --jars 'jars/*.jar'. What Maven "
                    "has, Spark fetches itself: --packages GROUP:ARTIFACT:VERSION.",
                )


def check_loaded(settings: Mapping[str, str], loaded: Callable[[str], str | None]) -> None:
    """Raise ConfigurationError if a JVM that already runs lacks jars or packages that the settings name. loaded:
    returns the value of a setting with which that JVM was started."""
    for name in (JARS, PACKAGES):
        form = _locations if name == JARS else lambda entry: {entry}
        wanted = list(_listed(settings.get(name)))
        held = {place for entry in _listed(loaded(name)) for place in form(entry)} if wanted else set()
        missing = [entry for entry in wanted if not form(entry) <= held]
        if missing:
            raise ConfigurationError(
                f"Spark's JVM already runs in this process, without {', '.join(missing)} ({name})",
                cause="A process has one JVM, which loads jars when it starts. An earlier run or session started it.",
                remedy="Give the same jars to the first run or session of this process, or use another process.",
            )


def advice(settings: Mapping[str, str], text: str) -> tuple[str, str] | None:
    """Return the probable cause of a failed start with this text, and what to do, if packages of Maven were to
    blame; else None."""
    if PACKAGES not in settings or not re.search(r"unresolved dependency|FAILED DOWNLOAD|Maven Coordinates", text):
        return None
    return (
        f"A package that is misspelt, or that no repository has in this version ({PACKAGES}, --packages); or no "
        "repository can be reached from here.",
        "Name each package as GROUP:ARTIFACT:VERSION. Repositories besides Maven Central: --conf "
        "spark.jars.repositories=URL. Where there is no network, bring the files: --jars FILES.",
    )


def _listed(text: str | None) -> Iterator[str]:
    return filter(None, map(str.strip, (text or "").split(",")))


def _files(entry: str) -> list[Path]:
    """Return the files of this machine that an entry names; for a pattern without any, the pattern itself."""
    path = unquote(_FILE.sub("", entry)) if _FILE.match(entry) else entry
    return sorted(map(Path, glob.glob(path))) or [Path(path)]  # noqa: PTH207 - Path.glob takes no absolute pattern


def _locations(entry: str) -> set[str]:
    """Return what an entry names in a form that does not depend on how it is written."""
    return {entry} if _ADDRESS.match(entry) else set(map(os.path.realpath, _files(entry)))


def _objection(path: Path) -> str | None:
    if not path.is_file():
        return "is a directory" if path.is_dir() else "does not exist"
    if not os.access(path, os.R_OK):
        return "cannot be read by this user"
    return None if zipfile.is_zipfile(path) else "is not a jar: it is not a zip file"
