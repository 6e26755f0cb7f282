"""The state of Spark's own operators on hosts that share a mount and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from recovery import init_partitions
from tests.cluster.operator_counts import FEW, assert_counts
from tests.cluster.support import batches_in
from tests.flows.cluster import truth
from tests.stores import paths_of, problems, query
from tests.waiting import wait_until


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A recovery directory on the driver's disk."""
    init_partitions(tmp_path / "db", 2)
    return tmp_path / "db"


@pytest.mark.long
def test_killed_resumed_gone_back_and_where_a_host_lacks_the_mount(make_lab, tmp_path, db):
    """Every micro-batch of every run counts what a plain loop does. Without the mount nothing is closed, and the error
    says why. Nothing is left on the share."""
    share = tmp_path / "share"
    share.mkdir()
    lab = make_lab(2, shares=[share])
    options = ["-s", "0", "-b", "1h", "--scratch", f"file://{share}/scratch", *FEW]
    run = lab.run("cluster.py:native(500, 99, 0.3)", db, *options)
    run.await_text(r"^batch 4$")
    run.kill()
    assert assert_counts(run.text(), 500)[0] == 0
    assert list((share / "scratch").iterdir()) != []
    closed = batches_in(db)
    output = lab.run(f"cluster.py:native(500, {closed + 2})", db, *options).succeed()
    assert assert_counts(output, 500) == [closed, closed + 1, closed + 2]
    output = lab.run("cluster.py:native(500, 3)", db, *options, "--resume-after", "2").succeed()
    assert assert_counts(output, 500) == [2, 3]
    assert problems(db) == []
    assert list((share / "scratch").iterdir()) == []

    output = lab.python("cluster_session.py", db, "native", f"file://{share}/scratch").succeed()
    states = dict(re.findall(r"^(older|newest) (\{.*\})$", output, re.MULTILINE))
    assert json.loads(states["older"]) == truth(1000)
    assert json.loads(states["newest"]) == truth(2000)
    assert "operators 1" in output
    # Spark's JVM removes them, and ends soon after Python.
    wait_until(lambda: list((share / "scratch").iterdir()) == [], 60)
    assert re.search(r"native_state does not run on master spark://.*scratch_directory", output)

    lab.network.hosts[0].run(["umount", share])
    [(before,)] = query(paths_of(db)[0], "SELECT max(epoch) FROM epochs")
    run = lab.run("cluster.py:native(500, 99, 0.3)", db, *options)
    assert run.wait() != 0
    assert "state" in run.text()
    assert query(paths_of(db)[0], "SELECT max(epoch) FROM epochs") == [(before,)]
