"""Flows in sessions that users have made: in a script and in a notebook, with settings of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from recovery.spark.jvm.given_sessions import COSTS, slower_settings
from tests.flows.own_notebook import CELLS
from tests.spark.support import ROOT, states
from tests.spark.test_sinks import running_totals

WARNING = "This SparkSession was made elsewhere"
UNUSUAL = {
    "spark.master": "local[2,4]",
    "spark.ui.enabled": "false",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.session.timeZone": "Asia/Kolkata",
    "spark.sql.shuffle.partitions": "3",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.python.worker.reuse": "false",
}
CLUSTER = {
    **UNUSUAL,
    "spark.master": "local-cluster[2,1,1024]",
    "spark.python.worker.reuse": "true",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.kryo.registrationRequired": "false",
    "spark.task.maxFailures": "4",
}
SCRIPTS = {
    "unusual": {"conf": UNUSUAL, "first attempts": "killed"},
    "usual": {"conf": {"spark.master": "local[2]"}, "first attempts": "slow"},
    "cluster": {"conf": CLUSTER, "first attempts": "slow"},
    "Hive": {"conf": {"spark.master": "local[2,4]"}, "hive": True, "first attempts": "killed"},
}


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(feed, tmp_path, name):
    """The session is made before the package is imported, another query runs beside the flow, and workers die: state
    and output are exact, also after going back, and what makes it slower is said once."""
    for seed in range(3):
        feed.add_random(seed, count=200)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    program = [sys.executable, ROOT / "tests" / "flows" / "own_session.py", feed.path, tmp_path]
    done = subprocess.run(
        [*program, json.dumps(SCRIPTS[name])],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [list(row) for row in sorted(running_totals(feed.rows, 200))]
    assert states(tmp_path / "db", "totals") == feed.totals()
    assert {key: n for key, (n, _) in feed.totals().items()} == {
        key: value["n"] for key, value in states(tmp_path / "db2", "most").items()
    }
    assert done.stderr.count(WARNING) == 1, done.stderr
    [line] = [line for line in done.stderr.splitlines() if WARNING in line]
    assert "spark.python.unix.domain.socket.enabled=true" in line
    assert ("spark.python.worker.reuse=true" in line) == (name == "unusual")


def test_which_settings_are_slower():
    """Those that differ from what this package sets, whatever the case of their letters; none changes a result."""
    assert "spark.python.unix.domain.socket.enabled" in slower_settings({}, "local[2]")
    # It depends on the hosts of executors whether they can use such sockets.
    assert slower_settings({}, "spark://h:7077") == slower_settings({}, "yarn") == {}
    given = {
        "spark.python.unix.domain.socket.enabled": "TRUE",
        "spark.python.worker.reuse": "False",
        "spark.speculation": "true",
        "spark.python.daemon.module": "recovery.spark.jvm.daemon",
    }
    assert slower_settings(given, "local[2]") == {"spark.python.worker.reuse": "true", "spark.speculation": "false"}
    assert set(slower_settings(given, "local[2]")) <= set(COSTS)


def test_a_session_of_the_package_is_complete(spark, feed, tmp_path, caplog):
    """Nothing is said of it."""
    from recovery.spark.jvm.given_sessions import log_slower_settings

    log_slower_settings(spark)
    assert caplog.records == []


@pytest.mark.long
def test_a_notebook(feed, tmp_path, monkeypatch):
    """Functions and classes of cells are those of the step; the line below the cell tells how the run ended."""
    client = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    for name, value in {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}.items():
        monkeypatch.setenv(name, value)
    for seed in range(3):
        feed.add_random(seed)
    first, *rest = CELLS
    cells = [first % (str(feed.path), str(tmp_path)), *rest]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each.strip()) for each in cells])
    # The kernel is this Python.
    client.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [[each.get("data", {}) for each in cell.outputs] for cell in notebook.cells]
    assert states(tmp_path / "db", "totals") == feed.totals()
    ended = "ended: 3 micro-batches, 900 rows, 3 epochs closed in "
    assert next(data["text/plain"] for data in shown[2] if data).startswith(f"totals: {ended}")
    assert f"<RecoveryQuery 'totals' on {tmp_path / 'db'}: running" in shown[3][-1]["text/plain"]
    assert ended in shown[4][-1]["text/plain"]
    assert "<th>rows</th><td>900</td>" in shown[5][-1]["text/html"]
    assert shown[6][-1]["text/plain"] == "0"
    assert (
        " ".join(shown[7][-1]["text/plain"].split())
        == f"(StateManager('{tmp_path}/db'), FileSink('{tmp_path}/out', 'parquet'))"
    )
