"""What starts leave in the user's cache directory, so that later ones are faster: archives of the classes that Spark's
JVM loads, and this package's own Java classes, compiled. Other rooms import these names only.

class_archive.py  archives that `recovery warmup` makes; the cache directory
left_archive.py   archives that runs leave by themselves
class_cache.py    the compiled classes
"""

from pathlib import Path

from recovery.spark.jvm.cache.class_archive import (
    CACHE_VARIABLE,
    archive_options,
    archive_path,
    make_archive,
    remove_archives,
)
from recovery.spark.jvm.cache.class_cache import compiled_once
from recovery.spark.jvm.cache.left_archive import VARIABLE as ARCHIVE_VARIABLE
from recovery.spark.jvm.cache.left_archive import give_up, leave, leaves_archive, left_options

__all__ = [
    "ARCHIVE_VARIABLE",
    "CACHE_VARIABLE",
    "archive_path",
    "compiled_once",
    "give_up",
    "leave",
    "leaves_archive",
    "make_archive",
    "remove_archives",
    "start_options",
]


def start_options(java_home: Path, given: str) -> str:
    """Return Java options to start with the archive of `recovery warmup`, or else with one that an earlier run left,
    or to leave one (see `leaves_archive`). Empty if there shall be none, or if the user set up class sharing, in
    `given` or in the environment."""
    return archive_options(archive_path(java_home), given) or left_options(java_home, given)
