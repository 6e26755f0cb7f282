"""Flows of all kinds over two hosts that share no disk, also when hosts, processes and cables fail."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from recovery import init_partitions
from tests.cluster.support import assert_exact, batches_in, counts_in
from tests.flows.cluster import truth
from tests.stores import paths_of, query, state_at, window


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A recovery directory on the driver's disk."""
    init_partitions(tmp_path / "db", 4)
    return tmp_path / "db"


@pytest.mark.long
def test_a_word_count(lab, db):
    """On two hosts without the directory."""
    lab.run("cluster.py:counts(2000, 2)", db, "-s", "0").succeed()
    assert assert_exact(db, 2000) == 3


@pytest.mark.long
def test_a_word_count_outlives_a_host(make_lab, db):
    """One of two hosts loses its power in the midst of a run; the state is that of a plain loop."""
    lab = make_lab(2)
    run = lab.run("cluster.py:counts(2000, 4, 0.2)", db, "-s", "0")
    run.await_text(r"^batch 1$")
    lab.network.hosts[0].crash()
    run.succeed()
    assert assert_exact(db, 2000) == 5
    [(measure,)] = query(paths_of(db)[0], "SELECT content FROM measures ORDER BY measure_id DESC LIMIT 1")
    for process in ("driver", "owner", "executors"):
        assert json.loads(measure)[f"memory_{process}_bytes"] > 10_000_000


@pytest.mark.long
def test_every_kind_of_step(lab, db):
    """A step per key, an Arrow step and one with timeouts, one after the other."""
    lab.run("cluster.py:kinds(2000, 4)", db, "-s", "0").succeed()
    for step in ("each", "waiting"):
        assert assert_exact(db, 2000, step) == 5
    assert numbers_of(db, "arrow") == truth(10_000)


@pytest.mark.long
def test_an_aggregate(lab, db):
    """Also where the driver merges its rows: it uses the files."""
    lab.run("cluster.py:totals(2000, 4)", db, "-s", "0").succeed()
    assert numbers_of(db, "totals") == truth(10_000)


@pytest.mark.long
def test_all_keys_of_an_aggregate_at_each_epoch(lab, db):
    """Tasks read the partitions of the run through a process of the driver's host; a run that goes on begins with what
    the last one closed."""
    closed = 0
    for _ in range(2):
        output = lab.run(f"cluster.py:every_key({str(db)!r}, {closed + 3})", db, "-s", "0").succeed()
        found = re.findall(r"^epoch (\d+) (\{.*\})$", output, re.MULTILINE)
        assert [int(epoch) for epoch, _ in found] == list(range(closed, window(db)[-1] + 1))
        assert all(json.loads(counts) == truth(2000 * int(epoch)) for epoch, counts in found)
        closed = window(db)[-1]
    assert closed >= 6


@pytest.mark.long
def test_timeouts(lab, db):
    """Keys without rows time out: their partitions are woken through the owner."""
    output = lab.run("cluster.py:expiring()", db, "-s", "0").succeed()
    assert "ended k0" in output
    assert counts_in(db, "until").keys() < {"k0", "k1", "k2"}


@pytest.mark.long
def test_a_cable_that_is_pulled_for_twelve_seconds(make_lab, db):
    """Spark waits or runs the tasks elsewhere; either way every row counts once."""
    lab = make_lab(2)
    run = lab.run("cluster.py:counts(2000, 8, 0.5)", db, "-s", "0")
    run.await_text(r"^batch 2$")
    host = lab.network.hosts[0]
    host.cut()
    time.sleep(12)
    host.repair()
    run.succeed()
    assert assert_exact(db, 2000) == 9


@pytest.mark.long
def test_an_owner_that_is_killed_or_frozen(lab, db):
    """The driver starts it again, and tasks wait for it."""
    run = lab.run("cluster.py:paced(2000, 8, 0.3)", db, "-s", "0")
    for batch in (1, 3):
        run.await_text(rf"^batch {batch}$")
        [owner] = run.processes("recovery.owner")
        os.kill(owner, signal.SIGKILL)
    run.await_text(r"^batch 5$")
    [owner] = run.processes("recovery.owner")
    os.kill(owner, signal.SIGSTOP)
    threading.Timer(5, os.kill, (owner, signal.SIGCONT)).start()
    output = run.succeed()
    assert output.count("it is started again") == 2
    assert assert_exact(db, 2000) == 9


@pytest.mark.long
def test_a_driver_that_is_killed_continues_with_more_and_with_fewer_hosts(make_lab, db):
    """Each run finds what the last one closed, whatever hosts it has."""
    lab = make_lab(2)
    run = lab.run("cluster.py:counts(2000, 99, 0.5)", db, "-s", "0", "-b", "1h")
    run.await_text(r"^batch 2$")
    run.kill()
    closed = batches_in(db)
    assert closed >= 2
    lab.add_host()
    lab.run(f"cluster.py:counts(2000, {closed + 2})", db, "-s", "0", "-b", "1h").succeed()
    assert assert_exact(db, 2000) == closed + 3
    for host in lab.network.hosts[:2]:
        host.crash()
    lab.run(f"cluster.py:counts(2000, {closed + 4})", db, "-s", "0", "-b", "1h", "--serve", "10.77.0.1:7400").succeed()
    assert assert_exact(db, 2000) == closed + 5
    # Back to the beginning, and the same again.
    lab.run("cluster.py:counts(2000, 1)", db, "-s", "0", "-b", "1h", "--resume-after", "0").succeed()
    assert assert_exact(db, 2000) == 2


def numbers_of(db: Path, step: str) -> dict[str, int]:
    """The states of a step whose state has one column."""
    held = state_at(db, window(db)[-1])
    return {key: next(iter(json.loads(text).values())) for (each, key), (text, _) in held.items() if each == step}
