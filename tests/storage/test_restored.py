"""The mark of a restored directory: for how long it counts, and where."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from recovery.base.clock import SystemClock
from recovery.errors import StorageError
from recovery.storage.restored import COUNTS_S, NAME, end_restored, mark_restored, read_restored


@pytest.fixture
def marked(tmp_path) -> Path:
    """A directory that was restored just now."""
    (tmp_path / "db").mkdir()
    mark_restored(tmp_path / "db")
    return tmp_path / "db"


def now_ms() -> int:
    return SystemClock().wall_ms()


def test_it_counts_for_a_day(marked):
    """Whatever the clock does meanwhile, in either direction."""
    assert read_restored(marked, now_ms()) == (True, "")
    assert read_restored(marked, now_ms() + int(COUNTS_S * 990)).counts
    for later_s in (COUNTS_S * 3, -COUNTS_S * 3):
        found = read_restored(marked, now_ms() + int(later_s * 1000))
        assert found == (False, "it was restored or promoted 72 h ago, and no run has begun on it since")


def test_a_copy_does_not_have_it(marked, tmp_path):
    """However it was copied. A directory that is moved keeps it."""
    shutil.copytree(marked, tmp_path / "copy", copy_function=shutil.copy2)
    assert read_restored(tmp_path / "copy", now_ms()) == (
        False,
        "it is a copy of a directory that was restored or promoted",
    )
    marked.rename(tmp_path / "moved")
    assert read_restored(tmp_path / "moved", now_ms()).counts


def test_without_one(marked):
    """What cannot be read does not count either."""
    (marked / NAME).write_bytes(b"something else")
    assert not read_restored(marked, now_ms()).counts
    (marked / NAME).unlink()
    os.mkfifo(marked / NAME)
    with pytest.raises(StorageError, match="not a file"):
        read_restored(marked, now_ms())
    end_restored(marked)
    assert read_restored(marked, now_ms()) == (False, "")
