"""What the file is called that exists while the pages of a partition are being fetched."""

from __future__ import annotations

import os
from pathlib import Path

SUFFIX = "-lazy"


def target(path: Path) -> str:
    """Return a path of the file itself, beside which its own files lie: of a link, where the link leads."""
    # Whenever a file is opened: links among its directories need not be followed, for they lead to the same files.
    return os.path.realpath(path) if os.path.islink(path) else os.fspath(path)  # noqa: PTH114


def lazy_path(path: Path) -> Path:
    """Return the path of the file that exists while the pages of a partition are being fetched."""
    return Path(f"{os.path.realpath(path)}{SUFFIX}")


def remove_left_log(path: Path) -> None:
    """Remove the second name of a log: the last connection leaves it if it opened the partition as an ordinary file,
    while others still had it open as a lazy one. Raises OSError."""
    if not is_lazy(path):
        Path(f"{lazy_path(path)}-wal").unlink(missing_ok=True)


def is_lazy(path: Path) -> bool:
    """Return whether the pages of a partition are still being fetched."""
    return os.path.exists(f"{target(path)}{SUFFIX}")  # noqa: PTH110 - whenever a file is opened
