"""A directory of Spark's logs that is being written."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def renaming(directory: Path) -> Iterator[None]:
    """Write a file under a hidden name, rename it and remove it, again and again until the block ends."""
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            draft, log = directory / ".1.tmp", directory / "1"
            draft.write_text("1")
            draft.rename(log)
            log.unlink()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        yield
    finally:
        ended.set()
        writing.join()
