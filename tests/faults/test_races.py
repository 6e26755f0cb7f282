"""Two runs on one directory, and a driver that was stopped while its successor began: never do both write."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from recovery.base.clock import SystemClock
from recovery.errors import DirectoryLockedError, LeaseLostError, RecoveryError
from recovery.storage import lock
from recovery.storage.lock import LOCK_NAME
from recovery.storage.scan import scan
from tests.faults.minirun import MiniRun, child, freeze, killed_afterwards, run, states, totals, wait
from tests.faults.test_copies import contents
from tests.stores import ROOT, Driver, paths_of, problems, query

BATCHES = 4


def contender(directory: Path, gate: int, report: Path) -> int:
    """A process that starts a run when the gate opens, and holds the directory until it is killed; it says what
    happened in `report`."""

    def work() -> None:
        # The loser gets the winner's name however long the winner takes to write it.
        lock.NAME_ATTEMPTS = 10_000
        os.read(gate, 1)
        started = time.monotonic()
        try:
            execution = MiniRun(directory, 1)
        except RecoveryError as error:
            outcome = {"error": type(error).__name__, "text": str(error), "seconds": time.monotonic() - started}
        else:
            execution.batch()
            outcome = {"pid": os.getpid()}
        report.with_suffix(".draft").write_text(json.dumps(outcome))
        report.with_suffix(".draft").rename(report)
        if "pid" in outcome:
            time.sleep(300)

    return child(work)


def race(directory: Path, root: Path) -> dict:
    """Two contenders concurrently; returns the loser's report, after checking the winner's part."""
    reading, writing = os.pipe()
    reports = [root / "0.json", root / "1.json"]
    for report in reports:
        report.unlink(missing_ok=True)
    contenders = [contender(directory, reading, report) for report in reports]
    os.close(reading)
    with killed_afterwards(*contenders):
        os.write(writing, b"go")
        os.close(writing)
        deadline = time.monotonic() + 60
        while not all(report.exists() for report in reports):
            assert time.monotonic() < deadline, "a contender says nothing"
            time.sleep(0.002)
        outcome = [json.loads(report.read_text()) for report in reports]
        winners = [each for each in outcome if "pid" in each]
        losers = [each for each in outcome if "pid" not in each]
        assert len(winners) == 1, outcome
        assert losers[0]["error"] == DirectoryLockedError.__name__, outcome
        assert f"process {winners[0]['pid']} on " in losers[0]["text"], (winners, losers)
        newest = [query(path, "SELECT pid FROM exs ORDER BY ex_num DESC LIMIT 1") for path in paths_of(directory)]
        assert newest == [[(winners[0]["pid"],)]] * 2, "the loser wrote"
    return losers[0]


def race_often(store_maker, tmp_path: Path, races: int) -> float:
    """So many races on one directory, each after the winner of the one before was killed; returns the slowest loser's
    seconds."""
    directory = store_maker(2)
    slowest = 0.0
    for number in range(races):
        try:
            slowest = max(slowest, race(directory, tmp_path)["seconds"])
        except BaseException as error:
            error.add_note(f"race {number}")
            raise
    run(directory, 1, BATCHES)
    assert states(directory) == totals(1, BATCHES)
    assert slowest < 5
    shutil.rmtree(directory)
    return slowest


@pytest.mark.parametrize(
    "races",
    [
        pytest.param(10, id="a few"),
        pytest.param(int(os.environ.get("RECOVERY_TEST_RACES", "200")), id="many", marks=pytest.mark.long),
    ],
)
def test_one_of_two_runs_wins(store_maker, tmp_path, races):
    """The other is refused within 5 s, names the winner, and wrote nothing."""
    print(f"{races} races, slowest refusal {race_often(store_maker, tmp_path, races):.3f} s")


def test_the_command_line_is_refused_immediately(store_maker, tmp_path):
    """`recovery run` on a directory in use ends before Spark starts, which takes several times the processor time, and
    names who uses it."""
    directory = store_maker(2)
    reading, writing = os.pipe()
    report = tmp_path / "0.json"
    holder = contender(directory, reading, report)
    with killed_afterwards(holder):
        os.write(writing, b"x")
        deadline = time.monotonic() + 60
        while not report.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        before = contents(directory)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        target = f"{ROOT / 'tests' / 'flows' / 'totals.py'}:make({str(tmp_path)!r})"
        command = [sys.executable, "-m", "recovery", "run", target, "-r", str(directory)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert contents(directory) == before
    os.close(reading)
    os.close(writing)
    shutil.rmtree(directory)
    assert done.returncode == DirectoryLockedError.exit_code
    assert f"process {holder} on " in done.stderr
    assert "Traceback" not in done.stderr
    assert now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime < 4


def sleeper(directory: Path, number: int) -> int:
    """A driver that works until it is refused, and exits with 7 then; it does not hold the directory's lock, as on a
    disk whose locks are lost while it is frozen."""

    def work() -> None:
        try:
            with Driver(directory, ["a"]) as driver:
                batch = 0
                while True:
                    batch += 1
                    driver.apply(batch, {f"old{key}": f'"{number}:{batch}"' for key in range(20)}, "a")
                    driver.close(batch)
        except LeaseLostError:
            os._exit(7)

    return child(work)


def woken_too_late(directory: Path, number: int, generator: random.Random) -> bool:
    """Stop a driver at a random moment, let its successor begin, wake it, and let the successor close an epoch. Returns
    whether the successor could begin while the other was stopped: inside a commit it holds SQLite's lock."""
    first = newest_epochs(directory)
    pid = sleeper(directory, number)
    with killed_afterwards(pid):
        deadline = time.monotonic() + 60
        while min(newest_epochs(directory)) <= max(first):
            assert time.monotonic() < deadline
        time.sleep(generator.uniform(0, 0.05))
        freeze(pid)
        if any(is_being_written(path) for path in paths_of(directory)):
            return False
        with Driver(directory, ["a"]) as successor:
            before = {path: rows_of(path) for path in successor.store.paths}
            successor.apply(10_000, {"new": f'"{number}"'}, "a")
            os.kill(pid, signal.SIGCONT)
            successor.close(10_000)
            assert wait(pid) == 7, "the driver that woke up was not refused"
            for path, rows in before.items():
                assert rows_of(path).items() - {("new", f'"{number}"')} == rows.items() - {("new", rows.get("new"))}
            assert newest_epochs(directory) == [successor.plan.resume_epoch] * 2
    return True


def is_being_written(path: Path) -> bool:
    """Whether somebody is within a transaction that writes to the partition. Does not wait for its end."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute("BEGIN IMMEDIATE")
    except (apsw.BusyError, apsw.ProtocolError):
        return True
    finally:
        connection.close()
    return False


def newest_epochs(directory: Path) -> list[int]:
    """Of each partition."""
    return [file.description.newest_epoch for file in scan(directory)]


def rows_of(path: Path) -> dict[str, str]:
    """The newest states of a partition."""
    return dict(query(path, "SELECT state_key, ser_change FROM snaps WHERE step_id = 'a'"))


@pytest.mark.parametrize(
    "times",
    [
        pytest.param(6, id="a few"),
        pytest.param(int(os.environ.get("RECOVERY_TEST_SLEEPERS", "100")), id="many", marks=pytest.mark.long),
    ],
)
def test_a_stopped_driver_that_wakes_is_refused(store_maker, times):
    """SIGSTOP at any moment, a successor, SIGCONT: no row of the stopped driver is accepted any more."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    generator = random.Random(seed)
    directory = store_maker(2)
    done = tried = 0
    while done < times:
        tried += 1
        assert tried < 20 * times
        done += woken_too_late(directory, tried, generator)
        assert problems(directory) == []
    print(f"{done} successors began while the other was stopped, in {tried} tries")
    shutil.rmtree(directory)


def test_what_a_loser_reads_of_a_dead_holder_is_not_reported(tmp_path, monkeypatch):
    """The lock file still names a process that died, and its successor has not written its own name yet: whoever is
    refused waits for that name, and gets no other."""
    dead = child(lambda: None)
    assert wait(dead) == 0
    (tmp_path / LOCK_NAME).write_text(json.dumps({"pid": dead, "host": socket.gethostname(), "purpose": "old"}))
    reading, writing = os.pipe()

    def hold() -> None:
        lock.os.ftruncate = lambda *_: os.read(reading, 1)
        with lock.DirectoryLock(tmp_path, SystemClock(), "new"):
            time.sleep(300)

    is_dead, seen = lock.has_ended, []

    def let_it_go_on(holder) -> bool:
        # The successor writes its name once the dead one's was read.
        seen.append(is_dead(holder))
        if seen == [True]:
            os.write(writing, b"x")
        return seen[-1]

    pid = child(hold)
    with killed_afterwards(pid):
        deadline = time.monotonic() + 60
        while not is_locked(tmp_path / LOCK_NAME):
            assert time.monotonic() < deadline
        monkeypatch.setattr(lock, "has_ended", let_it_go_on)
        monkeypatch.setattr(lock, "NAME_ATTEMPTS", 10_000)
        with pytest.raises(DirectoryLockedError, match=rf"process {pid} on .* \(new\)"):
            lock.DirectoryLock(tmp_path, SystemClock(), "again").acquire()
    assert seen[0]
    os.close(reading)
    os.close(writing)


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock of the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
