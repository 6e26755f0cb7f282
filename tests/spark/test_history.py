"""The executions of flows in the run history."""

from __future__ import annotations

import pytest

from recovery import FlowFailedError, StateManager
from tests.spark.support import run_to_end, totals_step

pytestmark = pytest.mark.any_spark


def test_executions_are_recorded(spark, feed, tmp_path):
    """One that succeeded with what it did, one that failed with why; no rewind takes them back."""
    feed.add([("a", 1), ("b", 2)])
    frame = feed.frame(spark).transform(totals_step())
    run_to_end(frame, tmp_path / "db")
    state = StateManager(tmp_path / "db")
    info = state.get_last_run_info("test")
    assert (info["kind"], info["status"], info["error"]) == ("flow", "succeeded", None)
    assert info["details"] == {"execution": 1, "resume_epoch": 1, "epoch": 1, "batches": 1, "rows": 2}
    feed.add([("a", 1)])

    def broken(batch, batch_id):
        raise ZeroDivisionError("in the sink")

    with pytest.raises(FlowFailedError):
        run_to_end(frame, tmp_path / "db", broken)
    assert state.get_last_run_status("test") is False
    assert "in the sink" in state.get_last_run_info("test")["error"]
    run_to_end(frame, tmp_path / "db", resume_epoch=1)
    assert [run.status for run in state.list_runs()] == ["succeeded", "failed", "succeeded"]
    assert [run.details["execution"] for run in state.list_runs()] == [3, 2, 1]
