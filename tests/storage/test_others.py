"""Names in a recovery directory: which this package gives, and which are of others."""

from __future__ import annotations

import pytest

from recovery.storage.others import others_beside, others_in

OWN = (
    "part-0.sqlite3", "part-0.sqlite3-wal", "part-12.sqlite3-shm", "part-0.sqlite3-lazy", "part-0.sqlite3-lazy-wal",
    "part-0.sqlite3.replaced", "part-0.sqlite3.replaced-wal", "part-0.sqlite3.replaced-lazy", ".part-0.sqlite3.draft",
    "recovery.lock", "recovery-part-0.sqlite3.lock", "locks", "scratch", "last-backup.json", "waiting.json",
    ".moved-part-3.json", ".last-drill.json.4711-0123abcd", "..moved-part-3.json.1-0123abcd",
    ".standby.json.4711-0123abcd",
    ".move-0123456789abcdef", ".init-12ab", ".restore-7-12ab",
)  # fmt: skip
BESIDE = (".part-0.sqlite3-litestream", "copy of part-0.sqlite3", "part-0.sqlite3.bak", "part-0.sqlite3~",
          "orders.sqlite3.aside-2", "part-0 copy.sqlite3.aside", "part-0 copy.sqlite3.aside-wal",
          "part-0 \n.sqlite3.bak")  # fmt: skip
OTHER = ("notes.txt", "last-backup.json.old", ".last-drill.json.x", "output", "part-x.sqlite3", "standby.json")


def test_names(tmp_path):
    """All that this package makes is its own; of the rest, what carries a partition's name is beside it."""
    for name in (*OWN, *BESIDE, *OTHER):
        (tmp_path / name).touch()
    assert others_in(tmp_path) == sorted((*BESIDE, *OTHER))
    assert others_beside(tmp_path) == sorted(tmp_path / name for name in BESIDE)


def test_copies_of_a_partition_that_left(tmp_path):
    """The name is enough: the partition need not be there."""
    (tmp_path / "part-0.sqlite3.bak").touch()
    assert [path.name for path in others_beside(tmp_path)] == ["part-0.sqlite3.bak"]


@pytest.mark.parametrize("name", ["part-0.sqlite3", "orders"])
def test_beside_a_file_on_another_disk(tmp_path, name):
    """Copies lie where a link leads, whatever the file is called there."""
    directory, disk = tmp_path / "db", tmp_path / "disk"
    directory.mkdir()
    disk.mkdir()
    for each in (
        name,
        f"{name}-wal",
        f"{name}-shm",
        f"{name}-lazy",
        f".{name}.draft",
        f"{name}.bak",
        "recovery.lock",
        "another",
    ):
        (disk / each).touch()
    (directory / "part-0.sqlite3").symlink_to(disk / name)
    assert others_beside(directory) == [disk / f"{name}.bak"]
