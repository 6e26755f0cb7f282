"""Flows on a real YARN with HDFS, over hosts that share no disk, also when executors, hosts and the driver fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery import init_partitions
from tests.cluster.support import assert_exact
from tests.cluster.yarn import Yarn, needs_jars

pytestmark = needs_jars


@pytest.fixture(scope="module")
def yarn(possible, tmp_path_factory):
    """Two hosts, for tests that leave them alive."""
    made = Yarn(tmp_path_factory.mktemp("yarn"))
    yield made
    made.close()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A recovery directory on the driver's disk."""
    init_partitions(tmp_path / "db", 4)
    return tmp_path / "db"


@pytest.mark.long
def test_a_word_count(yarn, db):
    """With the environment that the command of the example sends."""
    yarn.run("cluster.py:counts(2000, 2)", db, "-s", "0").succeed()
    assert assert_exact(db, 2000) == 3
