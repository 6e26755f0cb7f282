"""This process's limit of open files."""

from __future__ import annotations

import resource

from recovery.errors import StorageError

FILES_OF_OTHERS = 256
"""Files that are open for other purposes than those counted here."""


def allow_open_files(needed: int) -> None:
    """Raise this process's limit of open files, as the JVM does for its own. Raises StorageError if the system does not
    allow so many files."""
    needed += FILES_OF_OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise StorageError(
            f"{needed} files would be open together, and this process may open {hard}",
            cause="There are many partitions and steps, and the limit of open files is low.",
            remedy=f"Raise the limit (ulimit -n {needed}), or use a recovery directory of fewer partitions.",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
