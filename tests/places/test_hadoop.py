"""Listings of a mount, which Spark changes meanwhile."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from recovery.places.hadoop import HadoopFiles, number_of
from tests.renaming import renaming


def test_a_tree_has_what_is_not_hidden(tmp_path):
    """Sizes in bytes, times in milliseconds; nothing of a missing directory."""
    for name in ("metadata", "state/0/1.delta", "state/0/.1.delta.crc", ".hidden/x", "odd name, ü"):
        path = tmp_path / "there" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    Path(tmp_path, "there/gone").symlink_to("nowhere")
    files = HadoopFiles("file://")
    time_ms = 1_700_000_000_123
    assert files.tree(tmp_path / "there") == {
        "metadata": (8, time_ms), "state/0/1.delta": (15, time_ms), "odd name, ü": (12, time_ms),
    }  # fmt: skip
    assert files.tree(tmp_path / "missing") == {}


def test_a_tree_of_files_that_are_renamed_and_removed_meanwhile(tmp_path):
    """As Spark finishes its logs: under a hidden name, which is renamed. What stays is always listed."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("0")
    with renaming(tmp_path / "offsets"):
        for _ in range(500):
            assert "offsets/0" in HadoopFiles("file://").tree(tmp_path)


def test_a_tree_that_cannot_be_read(tmp_path):
    """A refusal is not an empty listing."""
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        HadoopFiles("file://").tree(tmp_path / "file")


@pytest.mark.parametrize(
    ("kind", "text", "number"),
    [
        ("java.io.FileNotFoundException", "File file:/out/a(1) does not exist", errno.ENOENT),
        ("java.io.FileNotFoundException", "/out/a (No such file or directory)", errno.ENOENT),
        ("java.io.FileNotFoundException", "/out/owner.json (Permission denied)", errno.EACCES),
        ("java.io.FileNotFoundException", "/out/owner.json (Stale file handle)", errno.ESTALE),
        ("java.io.IOException", "No space left on device", errno.EIO),
        ("org.apache.hadoop.fs.FileAlreadyExistsException", "/out", errno.EEXIST),
    ],
)
def test_a_file_that_may_not_be_read_is_not_missing(kind, text, number):
    """Java says FileNotFoundException of both."""
    assert number_of(kind, f"{kind}: {text}") == number
