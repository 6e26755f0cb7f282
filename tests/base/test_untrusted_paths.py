"""Paths that come out of files: which are refused, and that none leads out of its directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.base.untrusted_paths import checked, checked_name, name_objection, objection, open_beneath, read_beneath
from recovery.errors import CorruptPartitionError, StorageError

HOSTILE = [
    "",
    "/",
    "/etc/passwd",
    "//etc/passwd",
    "..",
    "../out",
    "a/../../out",
    "a/..",
    ".",
    "./a",
    "a/./b",
    "a//b",
    "a/",
    "a\0b",
    "a\\..\\..\\b",
    "C:\\b",
    "a" * 256,
    "é" * 128,
    "/".join(["a" * 200] * 20),
    "/".join("a" * 65),
    "\ud800",
    b"a",
    None,
    7,
    ["a"],
]
HARMLESS = [
    "a",
    "offsets/0",
    "state/0/1/20.zip",
    "..a/b..",
    "...",
    "a b/c",
    "Zürich/東京",
    "a\nb",
    "sources/0/-1",
    "~/a",
]


def names(directory: Path) -> list[str]:
    """What lies in a directory."""
    return sorted(path.name for path in directory.iterdir())


def refuse(found: str) -> CorruptPartitionError:
    """How these tests refuse."""
    return CorruptPartitionError(found, path="received")


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: repr(path)[:30])
def test_a_path_that_could_lead_elsewhere_is_refused(path, tmp_path):
    """By the one function, and by all that open by its leave; nothing is made."""
    root = tmp_path / "root"
    root.mkdir()
    assert objection(path) is not None
    assert name_objection(path) is not None
    for use in (lambda: checked(path, refuse), lambda: checked_name(path, refuse)):
        with pytest.raises(CorruptPartitionError, match=r"the (path|name)"):
            use()
    for use in (open_beneath, read_beneath):
        with pytest.raises(CorruptPartitionError), use(root, path, refuse):
            pass
    assert names(tmp_path) == ["root"]
    assert names(root) == []


@pytest.mark.parametrize("path", HARMLESS)
def test_any_other_path_is_written_where_it_says(path, tmp_path):
    """And is read again."""
    assert checked(path, refuse) == path
    with open_beneath(tmp_path, path, refuse, new=True) as file:
        file.write(b"x")
    assert (tmp_path / path).read_bytes() == b"x"
    with read_beneath(tmp_path, path, refuse) as file:
        assert file.read() == b"x"
    with pytest.raises(CorruptPartitionError, match="already exists"), open_beneath(tmp_path, path, refuse, new=True):
        pass


def test_a_name_has_no_slash():
    """Where one part is expected, two are refused."""
    assert name_objection("a") is None
    assert name_objection("a/b") == "has a slash"


@pytest.mark.parametrize("use", [open_beneath, read_beneath])
def test_no_link_below_the_directory_is_followed(use, tmp_path):
    """Neither of a directory on the way, nor of the file; links above are the user's own."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "f").write_bytes(b"precious")
    (root / "d").symlink_to(outside)
    (root / "f").symlink_to(outside / "f")
    (root / "dangling").symlink_to(outside / "new")
    for path in ("d/f", "f", "dangling"):
        with pytest.raises(CorruptPartitionError, match="link"), use(root, path, refuse):
            pass
    assert names(outside) == ["f"]
    assert (outside / "f").read_bytes() == b"precious"
    above = tmp_path / "above"
    above.symlink_to(outside)
    with use(above, "f", refuse) as file:
        assert file.read() == b"precious"


@pytest.mark.parametrize("use", [open_beneath, read_beneath])
def test_what_is_no_file_is_refused_without_waiting(use, tmp_path):
    """A FIFO nobody writes to, a directory, a file where a directory should be."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    for path in ("fifo", "directory", "file/below"):
        with pytest.raises(CorruptPartitionError), use(tmp_path, path, refuse):
            pass


def test_a_file_that_is_missing_is_the_systems_error(tmp_path):
    """And no directory is made for reading."""
    with pytest.raises(StorageError), read_beneath(tmp_path, "a/b", refuse):
        pass
    assert names(tmp_path) == []
