"""Partitions on several hosts that share no disk: what becomes of a run when hosts, owners, drivers and cables fail,
and what the next run finds. The state is that of a plain loop every time. The runs do without Spark; test_spread.py has
those with it."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.cluster.fleet import Fleet
from tests.cluster.support import ROOT, installed
from tests.faults.minirun import states, totals
from tests.flows.minidriver import NUMBER
from tests.stores import problems


@pytest.fixture
def make_fleet(possible, make_store, tmp_path):
    """Makes four partitions on hosts of their own."""
    made: list[Fleet] = []

    def make(*spread: list[int]) -> Fleet:
        from hosts import Network

        network = Network(hidden=[ROOT, *installed()], disk_size="64m")
        try:
            made.append(Fleet(network, make_store(4), tmp_path, spread))
        except BaseException:
            network.close()
            raise
        return made[-1]

    yield make
    for each in made:
        each.close()


def goes_on(fleet: Fleet, done: int) -> int:
    """Run for three more micro-batches, and return how many there are then."""
    fleet.run(done + 3).succeed()
    found = fleet.done()
    assert found == done + 3
    return found


def assert_exact(fleet: Fleet, done: int) -> Path:
    """Check the state after so many micro-batches; returns a directory with all partitions."""
    together = fleet.together()
    assert states(together) == totals(NUMBER, done)
    assert problems(together) == []
    return together


@pytest.mark.long
def test_an_owner_host_is_lost_with_its_disk(make_fleet):
    """The run ends with 47, soon. A backup of all hosts, made in the midst of the run, takes the place of the lost
    disk on another host, and the run goes on from the epoch that all share."""
    fleet = make_fleet([1], [0, 3], [2])
    run = fleet.run(999, 0.1)
    run.await_text(r"^batch 4$")
    backup = fleet.command("backup", fleet.db, fleet.root / "backups", *fleet.options)
    assert backup.returncode == 0, backup.stderr
    run.await_text(r"^batch 20$")
    began_s = time.monotonic()
    lost = fleet.owners.pop()
    lost.host.crash()
    assert run.wait() == 47, run.text()
    assert time.monotonic() - began_s < 60
    assert lost.at in run.text()
    missing = fleet.command("plan", fleet.db, *fleet.options)
    assert (missing.returncode, "part-2.sqlite3" in missing.stderr) == (21, True), missing.stderr
    restored = fleet.command("restore", fleet.root / "backups", fleet.root / "restored")
    assert restored.returncode == 0, restored.stderr
    owner = fleet.add()
    owner.put(fleet.root / "restored" / "part-2.sqlite3")
    owner.start()
    done = fleet.done()
    assert done >= 4
    assert_exact(fleet, goes_on(fleet, done))


@pytest.mark.long
def test_an_owner_is_frozen_and_its_cable_pulled(make_fleet):
    """For some seconds: nothing is lost. For good: the run ends with 47, and the next one goes on."""
    fleet = make_fleet([], [0, 3], [1, 2])
    run = fleet.run(60, 0.1)
    run.await_text(r"^batch 5$")
    fleet.owners[0].send(signal.SIGSTOP)
    threading.Timer(3, fleet.owners[0].send, (signal.SIGCONT,)).start()
    run.await_text(r"^batch 15$")
    fleet.owners[1].host.cut()
    time.sleep(12)
    fleet.owners[1].host.repair()
    code = run.wait()
    # A task gives up after 5 s here; the run itself waits.
    assert code in (0, 47), run.text()
    done = fleet.done()
    assert done >= 15
    done = goes_on(fleet, done)
    run = fleet.run(999, 0.1)
    run.await_text(rf"^batch {done + 5}$")
    fleet.owners[0].send(signal.SIGSTOP)
    assert run.wait() == 47, run.text()
    fleet.owners[0].send(signal.SIGCONT)
    assert_exact(fleet, goes_on(fleet, fleet.done()))


@pytest.mark.long
def test_a_driver_is_killed_and_the_next_runs_have_other_hosts(make_fleet):
    """More hosts, with an older copy left behind; fewer; an owner that has died; each run finds what the last one
    closed."""
    fleet = make_fleet([], [0, 1, 3], [2])
    run = fleet.run(999, 0.1)
    run.await_text(r"^batch 5$")
    run.kill()
    done = goes_on(fleet, fleet.done())
    # More: partition 3 is copied to a new host, and stays behind as an older copy.
    copies = fleet.root / "copies"
    copies.mkdir()
    fleet.owners[0].end()
    fleet.owners[0].get(copies)
    fleet.owners[0].start()
    owner = fleet.add()
    owner.put(copies / "part-3.sqlite3")
    owner.start()
    assert fleet.done() == done
    fleet.owners.reverse()  # of equal copies, that of the owner named first counts
    done = goes_on(fleet, done)
    plan = fleet.command("plan", fleet.db, *fleet.options)
    assert "older copy of part-3.sqlite3, not used" in plan.stdout, plan.stdout
    # Fewer: what the new host has goes to the driver's directory, and the host is gone.
    fleet.owners.reverse()
    last = fleet.owners.pop()
    last.end()
    last.get(fleet.db)
    last.host.crash()
    done = goes_on(fleet, done)
    # An owner dies while a run goes on, and comes back immediately.
    run = fleet.run(999, 0.1)
    run.await_text(rf"^batch {done + 5}$")
    fleet.owners[1].end(signal.SIGKILL)
    fleet.owners[1].start()
    assert run.wait() == 47, run.text()
    done = goes_on(fleet, fleet.done())
    fleet.owners[0].remove("part-3.sqlite3")
    assert_exact(fleet, done)


@pytest.mark.long
def test_owners_that_do_not_fit_together(make_fleet):
    """An owner under two names, another token, copies that went different ways: each is refused by name, and what was
    closed stays."""
    fleet = make_fleet([1], [0, 3], [2])
    fleet.run(3).succeed()
    again = fleet.run(9, 0.0, f"{fleet.owners[0].host.address}:7337")
    assert again.wait() == 11, again.text()
    assert "are one owner" in again.text()
    other = fleet.root / "other"
    other.write_text("another token of 32 characters, at least")
    refused = fleet.run(9, token=other)
    assert refused.wait() == 48, refused.text()
    # A copy of everything that ran on by itself.
    forked = Path(shutil.copytree(fleet.together(), fleet.root / "forked"))
    for owner in fleet.owners:
        owner.start()
    fleet.run(5, db=forked).succeed()
    done = goes_on(fleet, 3)
    shutil.copyfile(forked / "part-2.sqlite3", fleet.db / "part-2.sqlite3")
    two = fleet.run(99)
    assert two.wait() == 25, two.text()
    (fleet.db / "part-2.sqlite3").unlink()
    assert_exact(fleet, goes_on(fleet, done))
