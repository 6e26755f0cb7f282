"""A word count over two hosts that share no disk."""

from __future__ import annotations

from pathlib import Path

from recovery import init_partitions
from tests.cluster.support import assert_exact


def test_a_word_count_is_exact(lab, tmp_path: Path):
    """Each host has a disk of its own, and the partitions are the driver's alone."""
    db = tmp_path / "db"
    init_partitions(db, 4)
    run = lab.run("cluster.py:counts(2000, 5)", db, "-s", "0")
    run.succeed()
    assert assert_exact(db, 2000) == 6
    assert {part.name for part in db.iterdir()} >= {"part-0.sqlite3"}
