"""Partitions beside the driver: the process that owns them, an executor and the driver are killed and frozen. The state
is that of a plain loop, and a killed process costs no more than what is not closed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.support import EXECUTOR, Run
from tests.namespaces import family, signal_all

ROWS = 2000
OWNER = "recovery.owner"


@pytest.fixture
def kept(lab, beside):
    """Four partitions beside the driver of two hosts with executors."""
    return beside(lab)


def written_bytes(pid: int) -> int:
    """What a process has written to files so far; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/io").read_text().split("wchar: ")[1].split()[0])
    except OSError:
        return 0


def owner_of(run: Run) -> int:
    """The process beside the driver, once it runs."""
    found: list[int] = []
    run.await_that(lambda: found.extend(run.processes(OWNER)) or found, "the owner's process runs")
    return found[0]


@pytest.mark.long
def test_the_owner_is_killed_within_large_applies(kept):
    """Three times, when it has written a part of what a micro-batch changes."""
    run = kept.run("executors.py:large(2000, 99)")
    for batch in (1, 3, 5):
        run.await_text(f"^batch {batch}$")
        owner = owner_of(run)
        begun = written_bytes(owner)
        run.await_that(lambda: written_bytes(owner) > begun + 6_000_000, "the owner writes 6 MB")
        os.kill(owner, signal.SIGKILL)
    run.await_text("^batch 7$")
    assert "Traceback" not in run.stop()
    assert run.text().count("it is started again") == 3
    assert kept.assert_exact(ROWS) >= 8


@pytest.mark.long
def test_the_owner_is_killed_when_an_epoch_is_closed(kept):
    """As soon as the first partition's file changes; the driver closes the epoch from the files."""
    run = kept.run("executors.py:large(2000, 99)")
    log = kept.db / "part-0.sqlite3-wal"
    for batch in (1, 3, 5):
        run.await_text(f"^batch {batch}$")
        owner, before = owner_of(run), log.stat().st_mtime_ns
        run.await_that(lambda: log.stat().st_mtime_ns > before, "an epoch is being closed")
        os.kill(owner, signal.SIGKILL)
    run.await_text("^batch 7$")
    assert "Traceback" not in run.stop()
    assert run.text().count("it is started again") == 3
    assert kept.assert_exact(ROWS) >= 8


@pytest.mark.long
def test_executors_are_killed(kept):
    """One, then both: Spark starts others, and their tasks begin again."""
    run = kept.run("cluster.py:paced(2000, 99, 0.3)")
    run.await_text("^batch 1$")
    for number, batch in ((1, 3), (2, 5)):
        run.await_that(lambda: len(kept.lab.processes(EXECUTOR)) == 2, "two executors run")
        signal_all(kept.lab.processes(EXECUTOR)[:number], signal.SIGKILL)
        run.await_text(f"^batch {batch}$")
    run.stop()
    assert kept.assert_exact(ROWS) >= 6


@pytest.mark.long
@pytest.mark.parametrize("seconds", [12, 45])
def test_the_drivers_host_is_frozen(kept, seconds):
    """As when a virtual machine is paused, also for longer than executors wait for an answer. Meanwhile no other run
    gets the directory. The run goes on, or ends with 54; either way the next run is exact."""
    run = kept.run("cluster.py:paced(2000, 12, 0.3)")
    run.await_text("^batch 2$")
    frozen = family(run.process.pid)[1:]
    signal_all(frozen, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        again = kept.run("cluster.py:counts(2000, 1)")
        assert again.wait() == 40, again.text()
        time.sleep(max(0.0, began_s + seconds - time.monotonic()))
    finally:
        signal_all(frozen, signal.SIGCONT)
    code = run.wait()
    assert code in (0, 54), run.text()
    assert "Traceback" not in run.text()
    done = kept.batches()
    assert done >= 2
    kept.run(f"cluster.py:counts(2000, {done})").succeed()
    assert kept.assert_exact(ROWS) == done + 1
