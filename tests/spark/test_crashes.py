"""Killed at any moment and run again, a flow's state is that of the uninterrupted run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recovery import init_partitions
from recovery.faults import VARIABLE
from recovery.storage.files import scan
from tests.spark.support import ROOT, states

FLOW = ROOT / "tests" / "flows" / "totals.py"
START_POINTS = ["start.1", "start.2", "start.3.partition", "start.3", "start.4"]
CLOSE_POINTS = [
    "close.1",
    "close.2.checked",
    "close.2.snaps",
    "close.2.driver",
    "close.2.epochs",
    "close.2.collected",
    "close.2.committed",
    "close.3",
    "close.4",
    "close.5",
]


def recovery_run(
    directory: Path, feed, *options: str, crash_at: str = "", pause_s: float = 0.0, output: Path | None = None
) -> subprocess.Popen:
    """`recovery run` of the flow as a user starts it, in a process group of its own. `output`: of a FileSink."""
    target = f"{FLOW}:make({str(feed.path)!r}, {pause_s}, {str(output) if output else None!r})"
    command = [sys.executable, "-m", "recovery", "run", target, "-r", str(directory), "--master", "local[2]", *options]
    return subprocess.Popen(
        command,
        env={**os.environ, VARIABLE: crash_at},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen, timeout_s: float = 240) -> str:
    """Wait for the end; returns what was printed."""
    try:
        return process.communicate(timeout=timeout_s)[0]
    finally:
        process.kill()


def test_every_numbered_step(feed, tmp_path):
    """Killed at the end of each step of starting and of closing, one after the other, nothing is lost or doubled."""
    for seed in range(24):
        feed.add_random(seed, count=60)
    directory = tmp_path / "db"
    init_partitions(directory, 3)
    # The first visits of a point may come before there is anything to lose, so some are killed at a later one.
    points = [*START_POINTS, *(f"{point}:{2 + n % 4}" for n, point in enumerate(CLOSE_POINTS))]
    for point in points:
        process = recovery_run(directory, feed, "-s", "0", crash_at=point)
        output = finish(process)
        assert process.returncode == -signal.SIGKILL, f"{point}: {output}"
    process = recovery_run(directory, feed, "-s", "0")
    output = finish(process)
    assert process.returncode == 0, output
    assert states(directory, "totals") == feed.totals()


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, id="a few"),
        pytest.param(int(os.environ.get("RECOVERY_TEST_KILLS", "50")), id="many", marks=pytest.mark.long),
    ],
)
def test_random_kills(feed, tmp_path, kills):
    """Killed at random moments, and once more during the resume, the state is exact every time."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"replay with: RECOVERY_TEST_SEED={seed} python -m pytest tests/spark/test_crashes.py -k 'random_kills'")
    generator = random.Random(seed)
    directory = tmp_path / "db"
    init_partitions(directory, 3)
    for number in range(kills):
        for _ in range(4):
            feed.add_random(generator.randrange(10**9), count=200)
        process = recovery_run(directory, feed, "-s", generator.choice(["0", "0.2", "1"]), pause_s=0.05)
        if generator.random() < 0.7:
            wait_for_batch(process)
            time.sleep(generator.uniform(0, 1.0))
        else:
            time.sleep(generator.uniform(0, 8.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if number % 10 == 9 or number == kills - 1:
            process = recovery_run(directory, feed)
            output = finish(process)
            assert process.returncode == 0, output
            assert states(directory, "totals") == feed.totals(), f"seed {seed}, kill {number}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_the_epoch(feed, tmp_path, number):
    """The first signal, to the whole process group, finishes the micro-batch and closes the epoch: no replay."""
    for seed in range(30):
        feed.add_random(seed, count=50)
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    process = recovery_run(directory, feed, "-s", "1h", pause_s=0.3)
    done = [wait_for_batch(process) for _ in range(2)][-1]
    os.killpg(process.pid, number)
    output = finish(process)
    assert process.returncode == 0, output
    batches = [
        done,
        *(int(line.split()[1]) for line in output.splitlines() if line.startswith("batch ") and " · " not in line),
    ]
    newest = [file.description.newest for file in scan(directory)]
    assert {closed.batch_id for closed in newest} == {batches[-1]}
    assert len(batches) < 30
    process = recovery_run(directory, feed, "-s", "1h", "--json")
    output = finish(process)
    assert json.loads(output[output.index("{") :])["batches"] == 30 - batches[-1] - 1
    assert states(directory, "totals") == feed.totals()


def test_a_second_signal_ends_at_once(feed, tmp_path):
    """A second signal does not wait for the running micro-batch; the next run counts everything once."""
    for seed in range(3):
        feed.add_random(seed, count=50)
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    process = recovery_run(directory, feed, "-s", "1h", pause_s=30)
    wait_for_batch(process)
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert process.returncode == 128 + signal.SIGTERM
    assert time.monotonic() - started < 10
    process = recovery_run(directory, feed)
    output = finish(process)
    assert process.returncode == 0, output
    assert states(directory, "totals") == feed.totals()


def wait_for_batch(process: subprocess.Popen) -> int:
    """The number of the next micro-batch that the sink reports."""
    for line in process.stdout:
        if line.startswith("batch ") and " · " not in line:
            return int(line.split()[1])
    raise AssertionError("the run ended early")
