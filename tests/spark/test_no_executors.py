"""A cluster without executors: the run says what it waits for, health shows it, a signal and a limit end it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from recovery import SparkUnavailableError, init_partitions
from recovery.backup.note import WAITING_NAME
from tests.spark.support import states
from tests.spark.test_crashes import FLOW, finish, limited, recovery_command
from tests.spark.test_failures import standalone
from tests.stores import problems

SOON = (
    "from recovery.spark.run.reporting import spark_waits; spark_waits.REPORTED_S = 2.0; "
    "from recovery.__main__ import main; main()"
)
"""The command, which reports waits earlier."""


@pytest.fixture
def master(tmp_path):
    """A master that has no worker."""
    with standalone(tmp_path, ()) as master:
        yield master


def begin(feed, directory: Path, master: str, *options: str) -> subprocess.Popen:
    target = f"{FLOW}:make({str(feed.path)!r}, 0, None)"
    return subprocess.Popen(
        [sys.executable, "-c", SOON, "run", target, "-r", directory, "-s", "0", "--master", master, *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def line_with(process: subprocess.Popen, text: str) -> str:
    with limited(process, 240):
        for line in process.stdout:
            if text in line:
                return line
    raise AssertionError(f"no line with {text!r}")


def status_of(directory: Path) -> dict:
    command = [sys.executable, "-m", "recovery", "status", directory, "--json", "--threshold", "wait=1s/1h"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.long
def test_a_signal_ends_a_run_that_waits_for_executors(feed, tmp_path, master):
    """It says so, `status` and the metrics show it, and the signal ends it well: the micro-batch is left to the next
    run."""
    feed.add_random(1)
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    process = begin(feed, directory, master, "--metrics-port", "0")
    try:
        url = line_with(process, "metrics at ").split()[-1]
        line = line_with(process, "no task of micro-batch")
        assert re.match(
            r"waiting for \d+ s: no task of micro-batch 0 runs: Spark has no executor \(master spark:", line
        )
        facts = status_of(directory)
        assert facts["level"] == "warning"
        assert "no task of micro-batch 0 runs" in facts["waiting"]["what"]
        [found] = [each for each in facts["health"] if each["target"] == "wait"]
        assert found["value"] > 1
        with urllib.request.urlopen(url, timeout=30) as answer:
            waited = [text for text in answer.read().decode().splitlines() if text.startswith("recovery_wait_seconds")]
        assert float(waited[0].split()[1]) > 1
        process.send_signal(signal.SIGTERM)
        output = finish(process, 60)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert not (directory / WAITING_NAME).exists()
    assert status_of(directory)["waiting"] is None
    assert problems(directory) == []
    process = recovery_command(f"{FLOW}:make({str(feed.path)!r}, 0, None)", directory)
    output = finish(process)
    assert process.returncode == 0, output
    assert states(directory, "totals") == feed.totals()


@pytest.mark.long
def test_a_limit_ends_a_run_that_waits_for_executors(feed, tmp_path, master):
    """With the error of a Spark that cannot work, which says how long it waited, and for what."""
    feed.add_random(1)
    directory = tmp_path / "db"
    init_partitions(directory, 1)
    process = begin(feed, directory, master, "--wait-limit", "20s")
    output = finish(process)
    assert process.returncode == SparkUnavailableError.exit_code, output
    assert "no task of micro-batch 0 runs: Spark has no executor" in output
    assert "Traceback" not in output
    assert not (directory / WAITING_NAME).exists()
