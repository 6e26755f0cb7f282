"""Executors and owners of partitions on different hosts that share no disk. Whichever fails, the state is that of a
plain loop."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.fleet import Fleet
from tests.cluster.support import Lab, Run, assert_exact, deliver_packets, lose_packets
from tests.wire.certificates import make_certificates

ROWS = 2000
"""Of a micro-batch."""


@pytest.fixture
def spread(make_lab, make_store, tmp_path) -> tuple[Lab, Fleet]:
    """Four partitions: one in the driver's directory, three at owners on two hosts, with TLS. Executors run on both,
    and on a third host."""
    lab = make_lab(1)
    certificates = make_certificates(tmp_path, names=("host2", "host3"))
    fleet = Fleet(lab.network, make_store(4), tmp_path, ([1], [0, 3], [2]), certificates)
    for owner in fleet.owners:
        lab.cluster.add_worker(owner.host)
    return lab, fleet


def start(lab: Lab, fleet: Fleet, last: int, flow: str = "counts", pause_s: float = 0.3) -> Run:
    """Start a run that ends with a micro-batch."""
    return lab.run(f"cluster.py:{flow}({ROWS}, {last}, {pause_s})", fleet.db, "-s", 0, "-b", "1h", *fleet.options)


def together(fleet: Fleet, done: int) -> Path:
    """Check the state after so many micro-batches; return a directory with all partitions."""
    found = fleet.together()
    assert assert_exact(found, ROWS) == done
    return found


@pytest.mark.long
def test_a_host_of_executors_is_lost_then_an_owner_then_the_driver(spread):
    """The run outlives the host: others do its tasks. It ends with 47 for the owner, and the next run goes on from what
    was closed, with the owner back at its place."""
    lab, fleet = spread
    run = start(lab, fleet, 5)
    run.await_text(r"^batch 1$")
    lab.network.hosts[0].crash()
    run.succeed()
    assert fleet.done() == 6
    run = start(lab, fleet, 99)
    run.await_text(r"^batch 7$")
    fleet.owners[0].end(signal.SIGKILL)
    fleet.owners[0].start()
    assert run.wait() == 47, run.text()
    assert f"the owner at {fleet.owners[0].at}" in run.text()
    done = fleet.done()
    assert done >= 7
    run = start(lab, fleet, 99)
    run.await_text(rf"^batch {done + 1}$")
    run.kill()
    done = fleet.done()
    start(lab, fleet, done).succeed()
    together(fleet, done + 1)


@pytest.mark.long
def test_a_cable_of_an_owner_and_the_process_beside_the_driver(spread):
    """The process that answers for the driver's own partition is killed and started again. A host with an executor and
    an owner is cut off for 12 s: the run goes on, or ends with 47, as TCP has it."""
    lab, fleet = spread
    run = start(lab, fleet, 9, "paced")
    run.await_text(r"^batch 1$")
    [process] = run.processes("recovery.owner")
    os.kill(process, signal.SIGKILL)
    run.await_text(r"^batch 3$")
    fleet.owners[1].host.cut()
    time.sleep(12)
    fleet.owners[1].host.repair()
    code = run.wait()
    assert code in (0, 47), run.text()
    assert "it is started again" in run.text()
    done = fleet.done()
    assert done >= 3
    start(lab, fleet, done).succeed()
    together(fleet, done + 1)


@pytest.mark.long
def test_the_driver_is_cut_off_from_one_owner_alone(make_lab, make_store, tmp_path):
    """Executors reach all owners meanwhile. For 5 s, the run goes on. For longer, the run ends with 47 and names the
    owner, and so does the next one; the first one that reaches the owner again is exact, also if the cut came while an
    epoch was being closed, and if packets got lost in one direction alone."""
    lab = make_lab(2)
    fleet = Fleet(lab.network, make_store(4), tmp_path, ([1], [0, 3], [2]))
    driver, (one, two) = lab.network.driver, fleet.owners
    run = start(lab, fleet, 99, "paced")
    run.await_text(r"^batch 1$")
    lose_packets(driver, one.host)
    time.sleep(5)
    deliver_packets(driver, one.host)
    run.await_text(r"^batch 4$")
    lose_packets(driver, one.host)
    lose_packets(one.host, driver)
    assert run.wait() == 47, run.text()
    assert f"the owner at {one.at}" in run.text()
    again = start(lab, fleet, 99)
    assert again.wait() == 47, again.text()
    assert f"the owner at {one.at}" in again.text()
    deliver_packets(driver, one.host)
    deliver_packets(one.host, driver)
    done = fleet.done()
    assert done >= 4
    run = start(lab, fleet, 99, "paced")
    run.await_text(rf"^batch {done + 1}$")
    log = fleet.db / "part-1.sqlite3-wal"
    before = log.stat().st_mtime_ns
    run.await_that(lambda: log.stat().st_mtime_ns > before, "an epoch is being closed")
    lose_packets(driver, two.host)
    assert run.wait() == 47, run.text()
    assert f"the owner at {two.at}" in run.text()
    assert "Traceback" not in run.text()
    deliver_packets(driver, two.host)
    assert fleet.done() >= done + 1
    done = fleet.done()
    start(lab, fleet, done).succeed()
    together(fleet, done + 1)
