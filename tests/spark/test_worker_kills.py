"""Python workers that are killed in a run with the default master: it goes on, and is exact; an error of a step's own
function is still one, the first time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from recovery import init_partitions
from tests.spark.support import ROOT, states
from tests.stores import problems

FLOW = ROOT / "tests" / "flows" / "killed.py"


def recovery_run(target: str, directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """As a user starts it, without a word about the master."""
    command = [sys.executable, "-m", "recovery", "run", target, "-r", str(directory), "-s", "0", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)


@pytest.mark.long
@pytest.mark.parametrize("exchanged", [False, True], ids=["gathered", "exchanged"])
def test_killed_workers_cost_nothing(feed, tmp_path, exchanged):
    """Of a keyed step, of one over tables, and below declared aggregates: the state is that of a plain loop."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    notes = tmp_path / "notes"
    notes.mkdir()
    times: dict[str, int] = {}
    sums: dict[str, int] = {}
    for number in range(3):
        # Past some ten thousand rows, a micro-batch is exchanged, and has a task for each partition.
        feed.add_random(number, count=20_000 if exchanged else 200)
        for key in {key for key, _ in feed.rows[-(20_000 if exchanged else 200) :]}:
            times[key] = times.get(key, 0) + 1
            sums[key] = sums.get(key, 0) + feed.totals()[key][1]
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    done = recovery_run(f"{FLOW}:make({str(feed.path)!r}, {str(notes)!r}, {seed})", directory)
    assert done.returncode == 0, done.stderr
    assert list(notes.iterdir()), "no worker was killed"
    assert "Traceback" not in done.stderr, done.stderr
    assert states(directory, "totals") == feed.totals()
    assert states(directory, "tables") == {key: {"n": times[key], "total": sums[key]} for key in times}
    assert {key: value["n"] for key, value in states(directory, "declared").items()} == times
    assert problems(directory) == []


@pytest.mark.long
def test_an_error_of_a_steps_function_is_not_tried_again(feed, tmp_path):
    """It would come again, at three times the price: it is called once, and reported once."""
    feed.add_random(1)
    init_partitions(tmp_path / "db", 2)
    target = f"{FLOW}:make({str(feed.path)!r}, {str(tmp_path)!r}, 0, 'k3')"
    done = recovery_run(target, tmp_path / "db")
    assert done.returncode == 35, done.stderr
    assert done.stderr.count("ValueError: no k3 here") == 1, done.stderr
    assert "Error: step 'totals', key 'k3', micro-batch 0: ValueError: no k3 here (killed.py, line" in done.stderr
    assert (tmp_path / "calls").read_text() == "called\n"
