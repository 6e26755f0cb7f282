"""`start` in a session of a program's own, and `format("recovery")`, on hosts that do not have the directory."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from recovery import init_partitions
from tests.cluster.support import assert_exact, batches_in, counts_in
from tests.flows.cluster import key_of, truth


@pytest.fixture(scope="module")
def db(lab, tmp_path_factory) -> Path:
    """A recovery directory with the counts of three micro-batches, by `start` in a program's own session."""
    path = tmp_path_factory.mktemp("own") / "db"
    init_partitions(path, 4)
    lab.python("cluster_session.py", path, "counts", 2).succeed()
    return path


@pytest.mark.long
def test_a_frame_in_the_users_session(lab, db):
    """The same code as a run by the command: exact, and a later start goes on."""
    assert assert_exact(db, 2000) == 3
    output = lab.python("cluster_session.py", db, "counts", 4).succeed()
    assert "batch 3" in output
    assert "batch 2" not in output
    assert assert_exact(db, 2000) == 5


@pytest.mark.long
def test_the_states_of_an_epoch_and_what_changed(lab, db):
    """A batch job on other hosts reads each partition through the driver's host; unregistered, it says what to do."""
    first, last = truth(2000), truth(4000)
    output = lab.python("cluster_session.py", db, "read", 2, 1).succeed()
    assert "partitions 4" in output
    assert dict(re.findall(r"^state (\S+) (\d+)$", output, re.MULTILINE)) == {k: str(n) for k, n in last.items()}
    changed = re.findall(r"^changed (\S+) (\S+) (\d+)$", output, re.MULTILINE)
    assert {(key, before, after) for key, before, after in changed} == {
        (key, str(first.get(key)), str(n)) for key, n in last.items() if n != first.get(key)
    }
    run = lab.python("cluster_session.py", db, "read_unregistered")
    assert run.wait() != 0
    assert re.search(r"reads files of host .*, and a task of it runs on host\d(?s:.*)recovery\.register", run.text())


@pytest.mark.long
def test_a_flow_that_joins_with_states(lab, db, tmp_path):
    """Every micro-batch reads the other directory's states on the executors."""
    init_partitions(tmp_path / "db", 2)
    known = {key for key, n in counts_in(db).items() if n % 2 == 0}
    lab.run(f"cluster.py:joined({str(db)!r})", tmp_path / "db", "-s", "0").succeed()
    batches = batches_in(tmp_path / "db")
    found = Counter(key for key in map(key_of, range(2000 * batches)) if key in known)
    assert counts_in(tmp_path / "db") == found
