"""Odibi's page on state management, from top to bottom; docs/coming-from.md has the names that differ."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from recovery import (
    FlowFailedError,
    Node,
    Pipeline,
    RecoveryConfig,
    RetryPolicy,
    StateManager,
    incremental,
    init_partitions,
    run_pipeline,
)
from tests.spark.support import ROOT


@pytest.fixture(params=["directory", "files"])
def make(request, tmp_path):
    """Opens the state: in a recovery directory, and as files of JSON."""
    init_partitions(tmp_path / "db", 1)
    backend = None if request.param == "directory" else f"file://{tmp_path}/state?create=1"
    return lambda **settings: StateManager(tmp_path / "db", backend=backend, **settings)


def test_high_water_marks(make):
    """Get, set, and a batch that is all or nothing; another process sees them."""
    state_mgr = make()
    assert state_mgr.get_hwm("orders.last_processed_id") is None
    assert state_mgr.get_hwm("orders.last_processed_id", 0) == 0
    state_mgr.set_hwm("orders.last_processed_id", 12345)
    state_mgr.set_hwm_batch([{"key": "orders.hwm", "value": 100}, {"key": "customers.hwm", "value": 200}])
    again = make()
    found = [again.get_hwm(key) for key in ("orders.last_processed_id", "orders.hwm", "customers.hwm")]
    assert found == [12345, 100, 200]


def test_run_status(make):
    """Of the node in the last run, with what Odibi returns."""
    state_mgr = make()
    assert state_mgr.get_last_run_status("pipeline_name", "node_name") is None
    assert state_mgr.get_last_run_info("pipeline_name", "node_name") is None
    result = SimpleNamespace(success=True, duration=1.5, rows_processed=5, error=None, metadata={"rows": 5})
    state_mgr.save_pipeline_run("pipeline_name", SimpleNamespace(node_results={"node_name": result}))
    assert state_mgr.get_last_run_status("pipeline_name", "node_name") is True
    info = state_mgr.get_last_run_info("pipeline_name", "node_name")
    assert {"success": info["success"], "metadata": info["metadata"]} == {"success": True, "metadata": {"rows": 5}}


def test_concurrent_writes(make):
    """Several at the same time, with Odibi's retries; none is lost."""
    policy = RetryPolicy()
    assert (policy.delays, policy.jitter) == ((1, 2, 4, 8, 16), 1)

    def work(number: int) -> None:
        state = make()
        for value in range(5):
            state.set_hwm(f"pipeline {number}", value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {mark.key: mark.value for mark in make().list_hwms()} == {f"pipeline {number}": 4 for number in range(4)}


def test_resume_and_troubleshooting(spark, tmp_path):
    """A node that succeeded is skipped; the first load is full; NULLs are counted; a mark that is removed, or a full
    refresh, loads everything; state survives a failed run."""
    init_partitions(tmp_path / "db", 1)
    config, state = RecoveryConfig(tmp_path / "db"), StateManager(tmp_path / "db")
    rows, loads, broken = [(1,), (None,)], [], [True]

    def read(spark):
        return spark.createDataFrame(rows, "id int")

    def report(frame) -> None:
        assert not broken, "out of order"
        frame.count()

    pipeline = Pipeline("orders", [
        Node("load", read=incremental(read, column="id"), write=lambda frame: loads.append(frame.count())),
        Node("report", read=read, write=report, needs=["load"]),
    ])  # fmt: skip
    with pytest.raises(FlowFailedError, match="out of order"):
        run_pipeline(pipeline, config, spark=spark)
    assert (state.get_last_run_status("orders", "load"), state.get_last_run_status("orders", "report")) == (True, False)
    assert (state.get_hwm("load"), state.get_last_run_info("orders", "load")["metadata"]["nulls"]) == (1, {"load": 1})
    broken.clear()
    summary = run_pipeline(pipeline, config, spark=spark, resume=True)
    assert [summary.nodes[name].status for name in ("load", "report")] == ["skipped", "succeeded"]
    rows.append((2,))
    run_pipeline(pipeline, config, spark=spark)
    run_pipeline(pipeline, config, spark=spark, full_refresh=True)

    def hwm(*words: str) -> str:
        command = [sys.executable, "-m", "recovery", "hwm", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert hwm("list", "db").splitlines()[1].split()[:3] == ["load", "int", "2"]
    hwm("rm", "db", "load")
    run_pipeline(pipeline, config, spark=spark)
    assert loads == [2, 1, 3, 3]
