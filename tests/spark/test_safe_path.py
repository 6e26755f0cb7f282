"""A directory that somebody sent is where a command runs: none of its modules is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores import ROOT

FLOW = """
import helper
from recovery import Flow, stateful


def build(spark):
    lines = spark.readStream.format("appended").load({log!r})
    return lines.transform(stateful("count", key="value", update=count, output="value string, n long"))


def count(key, rows, state):
    import helper  # in a worker, too
    n = (state.get if state.exists else 0) + helper.ONE * len(rows)
    state.update(n)
    yield key, n


flow = Flow("words", build, sink=lambda batch, batch_id: batch.collect())
"""
NAMES = (
    "recovery",
    "pyspark",
    "py4j",
    "numpy",
    "pandas",
    "msgspec",
    "json",
    "pickle",
    "sitecustomize",
    "usercustomize",
)


def received(tmp_path: Path) -> Path:
    """A directory with modules that say that they were imported."""
    directory = tmp_path / "received"
    directory.mkdir()
    for name in NAMES:
        (directory / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})\n")
    return directory


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as its console script does: without the current directory on the path."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-m", "recovery", *words]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)


def test_a_run_in_a_received_directory(tmp_path):
    """The driver, Spark's daemon, its workers and the processes that plan a source take modules of the flow's own
    directory, and none of the current one."""
    directory, own = received(tmp_path), tmp_path / "own"
    (own / "log").mkdir(parents=True)
    (own / "log" / "a.txt").write_text("x\ny\nx\n")
    (own / "helper.py").write_text("ONE = 1\n")
    (own / "flow.py").write_text(FLOW.format(log=str(own / "log")))
    assert run(directory, "init", ".", "2").returncode == 0
    done = run(directory, "run", str(own / "flow.py"), "-r", ".", "-s", "0")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "imported").exists(), (tmp_path / "imported").read_text()
    shown = run(directory, "state", "get", ".", "--step", "count", "--key", "x")
    assert shown.stdout.strip() == "2", shown.stderr


@pytest.mark.parametrize("module", ["recovery.owner", "recovery.replication", "recovery.partitioning"])
def test_processes_beside_this_one(tmp_path, module):
    """They start where this one is, and import nothing from there."""
    code = f"import subprocess\nfrom recovery.host.children import own_module\ncommand, env = own_module({module!r})\n"
    code += "subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)"
    directory, environment = received(tmp_path), {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-P", "-c", code], cwd=directory, env=environment, check=True, timeout=100)
    assert not (tmp_path / "imported").exists()
