"""Killed at any moment and run again, a flow's state is that of the uninterrupted run."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery import RecoveryConfig, init_partitions, run
from recovery.base.faults import VARIABLE
from recovery.demo.flights import add_plainly, read_flights
from recovery.demo.flow import Delays
from recovery.storage.scan import scan
from tests.flows import totals
from tests.namespaces import family
from tests.spark.support import ROOT, states

GONE_S = 120
"""How long what was killed, or has said all, may take to end with its JVM."""
FLOW = ROOT / "tests" / "flows" / "totals.py"
FLIGHTS_FLOW = ROOT / "tests" / "flows" / "flights.py"
START_POINTS = ["start.1", "start.2", "start.3.looked", "start.3.partition", "start.3", "start.4"]
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
    return recovery_command(target, directory, *options, crash_at=crash_at)


def recovery_command(
    target: str, directory: Path, *options: str, crash_at: str = "", master: str = "local[2]"
) -> subprocess.Popen:
    """The same, of any flow."""
    command = [sys.executable, "-m", "recovery", "run", target, "-r", str(directory), "--master", master, *options]
    return subprocess.Popen(
        command,
        env={**os.environ, VARIABLE: crash_at},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@contextlib.contextmanager
def limited(process: subprocess.Popen, timeout_s: float) -> Iterator[threading.Event]:
    """Kill the process and all that it has started if the block takes longer: its JVM would hold its output open.
    Yields an event that says so."""
    late = threading.Event()

    def end() -> None:
        late.set()
        for pid in family(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(timeout_s, end)
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def finish(process: subprocess.Popen, timeout_s: float = 240) -> str:
    """Wait for the end; returns what was printed after the last line that was read."""
    try:
        with limited(process, timeout_s) as late:
            # Not communicate(): it leaves out the lines that came together with the last one.
            output = process.stdout.read()
            process.wait()
    finally:
        process.kill()
    assert not late.is_set(), f"it did not end within {timeout_s} s: {output}"
    return output


def json_of(output: str) -> dict:
    """What `--json` printed, whatever a JVM says before and after."""
    [start] = [found.start() for found in re.finditer(r"^{", output, re.MULTILINE)][:1]
    return json.JSONDecoder().raw_decode(output, start)[0]


# The first visits of a point may come before there is anything to lose, so some are killed at a later one.
EVERY_POINT = [*START_POINTS, *(f"{point}:{2 + n % 4}" for n, point in enumerate(CLOSE_POINTS))]
LOGGING_POINTS = ["close.1:2", "close.2.logged:4", "close.2.committed:8", "close.3:3"]
FOLD_POINTS = [
    "fold.1",
    "fold.2.collected",
    "fold.2.snaps:2",
    "fold.2.epochs",
    "fold.2.committed:2",
    "fold.3",
    "fold.4",
]


def test_a_kill_while_an_epoch_is_closed(spark, feed, tmp_path):
    """Of the command, when some partitions hold the epoch and others do not: the next run, in another session, is
    exact."""
    for seed in range(4):
        feed.add_random(seed, count=60)
    directory = tmp_path / "db"
    init_partitions(directory, 3)
    process = recovery_run(directory, feed, "-s", "0", "-b", "1h", crash_at="close.2.committed:4")
    output = finish(process)
    assert process.returncode == -signal.SIGKILL, output
    assert sorted(file.description.newest_epoch for file in scan(directory)) == [1, 1, 2]
    run(totals.make(str(feed.path)), RecoveryConfig(directory, snapshot_interval=0), spark=spark)
    assert states(directory, "totals") == feed.totals()


@pytest.mark.long
@pytest.mark.parametrize(
    ("points", "backup_interval"),
    [
        pytest.param(["fold.2.snaps"], "0", id="one-logged"),
        pytest.param(EVERY_POINT, "1h", id="every"),
        pytest.param([*LOGGING_POINTS, *FOLD_POINTS], "0", id="every-logged"),
    ],
)
def test_kills_at_numbered_steps(feed, tmp_path, points, backup_interval):
    """Killed at the end of steps of starting and of closing, one after the other, nothing is lost or doubled."""
    for seed in range(24 if len(points) > 1 else 8):
        feed.add_random(seed, count=60)
    directory = tmp_path / "db"
    init_partitions(directory, 3)
    for point in points:
        if point.startswith("fold"):
            # Epochs are folded when the input ends, if more than one is logged.
            for seed in range(4):
                feed.add_random(seed, count=60)
        process = recovery_run(directory, feed, "-s", "0", "-b", backup_interval, crash_at=point)
        output = finish(process)
        assert process.returncode == -signal.SIGKILL, f"{point}: {output}"
    process = recovery_run(directory, feed, "-s", "0", "-b", backup_interval)
    output = finish(process)
    assert process.returncode == 0, output
    assert states(directory, "totals") == feed.totals()


class Flights:
    """The demo's flights in a growing file, and what the flow makes of them."""

    def __init__(self, root: Path, count: int | None) -> None:
        self.file = root / "flights.csv"
        self.directory = root / "db"
        self.flights = list(itertools.islice(read_flights(), count))
        self._written = 0
        init_partitions(self.directory, 3)

    def append(self, part: float) -> None:
        """Let the file grow up to this part of all flights."""
        until = int(len(self.flights) * part)
        with self.file.open("a") as file:
            file.writelines(",".join(flight) + "\n" for flight in self.flights[self._written : until])
        self._written = until

    def start(self, bytes_per_batch: str, *options: str, directory: Path | None = None) -> subprocess.Popen:
        """A run over what the file holds."""
        target = f"{FLIGHTS_FLOW}:make({str(self.file)!r}, {bytes_per_batch!r})"
        return recovery_command(target, directory or self.directory, *options)

    def states(self, directory: Path) -> dict[tuple[str, str], Delays]:
        """The recovered state of every airplane."""
        found = states(directory, "delays")
        return {tuple(json.loads(key)): Delays(**value) for key, value in found.items()}


@pytest.mark.parametrize(
    ("kills", "count"),
    [
        pytest.param(2, 30_000, id="a few", marks=pytest.mark.long),
        pytest.param(int(os.environ.get("RECOVERY_TEST_KILLS", "50")), None, id="many", marks=pytest.mark.long),
    ],
)
def test_random_kills_over_real_flights(tmp_path, kills, count):
    """SIGKILL at random moments of runs over the demo's flights: every airplane's counts are those of a run that nobody
    killed, and of a plain loop."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"replay with: RECOVERY_TEST_SEED={seed} python -m pytest tests/spark/test_crashes.py -k real_flights")
    generator = random.Random(seed)
    flights = Flights(tmp_path, count)
    flights.append(0.6)
    at_work = 0
    for number in range(kills):
        if number == kills // 2:
            flights.append(1)
        process = flights.start("8k", "-s", generator.choice(["0", "0.3", "1"]))
        if generator.random() < 0.8:
            # Most kills fall where the work is, and not into the seconds in which Spark starts.
            wait_for_batch(process)
            at_work += 1
            time.sleep(generator.uniform(0, 1.5))
        else:
            time.sleep(generator.uniform(0, 8.0))
        assert process.poll() is None, "the run ended before it was killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=GONE_S)
    process = flights.start("4m")
    output = finish(process)
    assert process.returncode == 0, output
    print(f"{kills} kills, {at_work} of them after the first micro-batch of a run")
    found = flights.states(flights.directory)
    assert found == add_plainly(flights.flights), f"seed {seed}"
    if count is None:
        whole = tmp_path / "whole"
        init_partitions(whole, 3)
        process = flights.start("4m", directory=whole)
        output = finish(process)
        assert process.returncode == 0, output
        assert states(flights.directory, "delays") == states(whole, "delays")


@pytest.mark.long
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
    assert json_of(output)["batches"] == 30 - batches[-1] - 1
    assert states(directory, "totals") == feed.totals()


STARTING = """
import os, signal
from pathlib import Path
from recovery import Flow
from tests.flows import totals

def make(path, jvm, number):
    def build(spark):
        Path(jvm).write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
        os.kill(os.getpid(), number)
        return totals.make(path).build(spark)
    return Flow("totals", build)
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_stream_ends_immediately(feed, tmp_path, number):
    """While the flow is built on a Spark that is up: nothing is printed but that it was starting, the JVM ends, and
    the next run begins as if this one had not been."""
    feed.add_random(1)
    directory, jvm, flow = tmp_path / "db", tmp_path / "jvm", tmp_path / "starting.py"
    init_partitions(directory, 2)
    flow.write_text(STARTING)
    process = recovery_command(f"{flow}:make({str(feed.path)!r}, {str(jvm)!r}, {int(number)})", directory)
    output = finish(process)
    assert process.returncode == 128 + number, output
    lines = [line for line in output.splitlines() if not line.startswith("Picked up")]
    assert lines == ["totals: starting Spark …"]
    deadline = time.monotonic() + 60
    while is_running(int(jvm.read_text())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(int(jvm.read_text()))
    output = finish(process := recovery_run(directory, feed))
    assert process.returncode == 0, output
    assert states(directory, "totals") == feed.totals()


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only what nobody has waited for."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.long
def test_a_second_signal_ends_immediately(feed, tmp_path):
    """A second signal does not wait for the running micro-batch; the next run counts everything once."""
    for seed in range(3):
        feed.add_random(seed, count=50)
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    process = recovery_run(directory, feed, "-s", "1h", pause_s=120)
    wait_for_batch(process)
    started = time.monotonic()
    # Two that come before the process looks are one to it, so it may take a third.
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    finish(process)
    assert process.returncode == 128 + signal.SIGTERM
    assert time.monotonic() - started < 60
    process = recovery_run(directory, feed)
    output = finish(process)
    assert process.returncode == 0, output
    assert states(directory, "totals") == feed.totals()


def wait_for_batch(process: subprocess.Popen, timeout_s: float = 240) -> int:
    """The number of the next micro-batch that the sink reports."""
    with limited(process, timeout_s) as late:
        for line in process.stdout:
            if line.startswith("batch ") and " · " not in line:
                return int(line.split()[1])
    raise AssertionError(f"there was none within {timeout_s} s" if late.is_set() else "the run ended early")
