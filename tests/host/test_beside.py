"""Documents beside the partitions of a directory."""

from __future__ import annotations

import pytest

from recovery.errors import StorageError
from recovery.host.beside import alone_beside, read_beside, remove_beside, write_beside
from recovery.host.durable import PRIVATE


def test_a_document_comes_and_goes(tmp_path):
    """Written, replaced, read up to a size, removed; what is not there is no error."""
    path = tmp_path / "note.json"
    assert read_beside(path, 10) is None
    remove_beside(path)
    for content in (b"one", b"another"):
        write_beside(path, content, PRIVATE)
        assert read_beside(path, 10) == content
    assert path.stat().st_mode & 0o777 == PRIVATE.file
    with pytest.raises(StorageError, match=r"note\.json"):
        read_beside(path, 3)
    remove_beside(path)
    assert list(tmp_path.iterdir()) == []


def test_one_process_at_a_time_changes_them(tmp_path):
    """The others wait, for a limited time; another directory is not held up."""
    (tmp_path / "other").mkdir()
    with alone_beside(tmp_path, 1.0):
        with pytest.raises(StorageError, match="kept it locked"), alone_beside(tmp_path, 0.02):
            pass
        with alone_beside(tmp_path / "other", 1.0):
            pass
    with alone_beside(tmp_path, 0.0):
        pass
    with pytest.raises(StorageError, match="missing"), alone_beside(tmp_path / "missing", 1.0):
        pass


def test_what_is_in_the_way_is_named(tmp_path):
    """Not a traceback."""
    path = tmp_path / "note.json"
    path.mkdir()
    for step in (lambda: read_beside(path, 10), lambda: write_beside(path, b"", PRIVATE), lambda: remove_beside(path)):
        with pytest.raises(StorageError, match=r"note\.json"):
            step()
