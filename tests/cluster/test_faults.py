"""Partitions beside the driver: the process that owns them, an executor and the driver are killed and frozen. The state
is that of a plain loop, and a killed process costs no more than what is not closed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.support import EXECUTOR, PATIENCE_S, Run
from tests.namespaces import family, signal_all
from tests.waiting import wait_until

ROWS = 2000
OWNER = "recovery.owner"


@pytest.fixture
def kept(lab, beside):
    """Four partitions beside the driver of two hosts with executors."""
    return beside(lab)


def kill_owner(run: Run, batch: int, is_there: Callable[[int], bool], what: str) -> None:
    """Kill the owner's process behind a micro-batch, as soon as the condition holds for its number. what: that holds
    then."""
    run.await_text(f"^batch {batch}$")
    run.await_that(lambda: run.processes(OWNER), "the owner's process runs")
    [owner] = run.processes(OWNER)
    run.await_that(lambda: is_there(owner), what)
    os.kill(owner, signal.SIGKILL)


def written_bytes(pid: int) -> int:
    """What a process has written to files so far; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/io").read_text().split("wchar: ")[1].split()[0])
    except OSError:
        return 0


@pytest.mark.long
def test_the_owner_is_killed_within_large_applies(kept):
    """Three times, when it has written a part of what a micro-batch changes."""
    run = kept.run("executors.py:large(2000, 99)")
    begun: dict[int, int] = {}

    def has_written(owner: int) -> bool:
        return written_bytes(owner) > begun.setdefault(owner, written_bytes(owner)) + 6_000_000

    for batch in (1, 3, 5):
        kill_owner(run, batch, has_written, "the owner has written 6 MB")
    run.await_text("^batch 7$")
    assert "Traceback" not in run.stop()
    assert run.text().count("it is started again") == 3
    assert kept.assert_exact(ROWS) >= 8


@pytest.mark.long
def test_the_owner_is_killed_when_an_epoch_is_closed(kept):
    """As soon as the first partition's file changes; the driver closes the epoch from the files."""
    run = kept.run("executors.py:large(2000, 99)")
    log = kept.db / "part-0.sqlite3-wal"
    changed: dict[int, int] = {}

    def is_closing(owner: int) -> bool:
        return log.stat().st_mtime_ns > changed.setdefault(owner, log.stat().st_mtime_ns)

    for batch in (1, 3, 5):
        kill_owner(run, batch, is_closing, "an epoch is being closed")
    run.await_text("^batch 7$")
    assert "Traceback" not in run.stop()
    assert run.text().count("it is started again") == 3
    assert kept.assert_exact(ROWS) >= 8


@pytest.mark.long
def test_executors_are_killed(kept):
    """One: Spark starts another, and its tasks begin again. Both: the same, unless both had the rows that the sink
    reads; then the run ends with 54, and the next one continues."""
    run = kept.run("cluster.py:paced(2000, 99, 0.3)")
    run.await_text("^batch 1$")
    both_run = "two executors run"
    run.await_that(lambda: len(kept.lab.processes(EXECUTOR)) == 2, both_run)
    signal_all(kept.lab.processes(EXECUTOR)[:1], signal.SIGKILL)
    run.await_text("^batch 3$")
    run.await_that(lambda: len(kept.lab.processes(EXECUTOR)) == 2, both_run)
    signal_all(kept.lab.processes(EXECUTOR), signal.SIGKILL)
    wait_until(lambda: run.process.poll() is not None or "\nbatch 5\n" in run.text(), PATIENCE_S)
    if run.process.poll() is None:
        run.stop()
    else:
        assert run.wait() == 54, run.text()
        kept.run(f"cluster.py:counts(2000, {kept.batches() + 1})").succeed()
    assert kept.assert_exact(ROWS) >= 4


@pytest.mark.long
@pytest.mark.parametrize("seconds", [12, 45])
def test_the_drivers_host_is_frozen(kept, seconds):
    """As when a virtual machine is paused, also for longer than executors wait for an answer. Meanwhile no other run
    gets the directory. The run goes on, or ends with 54; either way the next run is exact."""
    run = kept.run("cluster.py:paced(2000, 12, 0.3)")
    run.await_text("^batch 2$")
    nsenter, *frozen = family(run.process.pid)
    signal_all(frozen, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        again = kept.run("cluster.py:counts(2000, 1)")
        assert again.wait() == 40, again.text()
        time.sleep(max(0.0, began_s + seconds - time.monotonic()))
    finally:
        # nsenter stopped as its child did.
        signal_all([*frozen, nsenter], signal.SIGCONT)
    code = run.wait()
    assert code in (0, 54), run.text()
    assert "Traceback" not in run.text()
    done = kept.batches()
    assert done >= 2
    kept.run(f"cluster.py:counts(2000, {done})").succeed()
    assert kept.assert_exact(ROWS) == done + 1
