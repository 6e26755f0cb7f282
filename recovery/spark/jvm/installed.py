"""Which PySpark is installed, without importing it: the package's command starts faster, and says what is missing."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

from recovery.errors import SparkUnavailableError

OLDEST, NEWEST = (4, 0), (4, 3)
SUPPORTED = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
_REMEDY = f"pip install 'pyspark>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}'"


def check_installed() -> None:
    """Raise SparkUnavailableError if PySpark is missing, or of a version that this package does not support."""
    found = installed_version()
    if found is None:
        raise SparkUnavailableError(
            "PySpark is not installed",
            cause="Only what reads and copies recovery directories works without it.",
            remedy=f"{_REMEDY} (versions {SUPPORTED} are supported)",
        )
    if not OLDEST <= version_of(found) <= NEWEST:
        raise SparkUnavailableError(
            f"PySpark {found} is not supported: versions {SUPPORTED} are",
            cause="Parts of Spark that this package uses change from version to version.",
            remedy=_REMEDY,
        )


def installed_version() -> str | None:
    """Return the text of PySpark's version; None if it is not installed."""
    if "pyspark" in sys.modules:
        return str(sys.modules["pyspark"].__version__)
    try:
        spec = find_spec("pyspark")
        # By its loader: executors may have it in an archive.
        text = spec.loader.get_data(str(Path(spec.origin).with_name("version.py"))).decode()  # type: ignore
    except (ImportError, AttributeError, TypeError, OSError):
        return None
    found = re.search(r"""__version__\s*(?::\s*str\s*)?=\s*["']([^"']+)""", text)
    return None if found is None else found[1]


def version_of(text: str) -> tuple[int, int]:
    """Return the two numbers of a version's text that say what it has; (0, 0) if it begins otherwise."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))
