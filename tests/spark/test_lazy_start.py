"""A flow begins on an empty directory, and takes its state from a backup."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from recovery import init_partitions
from recovery.cli import main
from recovery.storage.hydration import hydrating
from tests.spark.support import states
from tests.spark.test_crashes import finish, recovery_run
from tests.stores import problems


@pytest.mark.long
def test_a_run_from_a_backup(feed, tmp_path):
    """What its tasks read is fetched by them; the same command goes on when the directory is there."""
    for seed in range(4):
        feed.add_random(seed, count=2000)
    init_partitions(tmp_path / "db", 2)
    process = recovery_run(tmp_path / "db", feed)
    output = finish(process)
    assert process.returncode == 0, output
    result = CliRunner().invoke(main, ["backup", str(tmp_path / "db"), str(tmp_path / "backups")])
    assert result.exit_code == 0, result.output
    for seed in range(4, 6):
        feed.add_random(seed, count=60)
    again = tmp_path / "again"
    process = recovery_run(again, feed, "--from", str(tmp_path / "backups"))
    output = finish(process)
    assert process.returncode == 0, output
    assert "usable, its pages are fetched when they are read" in output
    assert states(again, "totals") == feed.totals()
    feed.add_random(6, count=60)
    process = recovery_run(again, feed, "--from", str(tmp_path / "backups"))
    output = finish(process)
    assert process.returncode == 0, output
    assert "holds partitions; nothing was restored" in output
    assert states(again, "totals") == feed.totals()
    if hydrating(again):
        result = CliRunner().invoke(main, ["restore", "--lazy", "--json", str(tmp_path / "backups"), str(again)])
        assert json.loads(result.output)["continued"]
    assert problems(again) == []
