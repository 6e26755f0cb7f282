"""The forms in which results of a pipeline's nodes are recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recovery import ConfigurationError, StateManager, StateValueError
from tests import others


@dataclass
class NodeResult:
    """As Odibi's."""

    success: Any
    duration: Any = 1.5
    rows_processed: int | None = None
    error: Exception | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


def results(**nodes: NodeResult) -> SimpleNamespace:
    """As Odibi's PipelineResults."""
    return SimpleNamespace(
        node_results=nodes, skipped=["later"], failed=[n for n, r in nodes.items() if not r.success],
        start_time="2024-05-01T01:00:00", end_time="2024-05-01T02:00:00",
    )  # fmt: skip


@pytest.fixture
def state(store_dir):
    return StateManager(store_dir)


def test_result_objects(state):
    """Odibi's: metadata of any kind becomes text; what was skipped because something failed is blocked."""
    metadata = {"timestamp": "2024-05-01T01:30:00", "path": Path("/x"), "n": float("nan")}
    given = results(
        load=NodeResult(True, rows_processed=5, metadata=metadata), clean=NodeResult(False, error=KeyError("k"))
    )
    state.save_pipeline_run("orders", given)
    info = state.get_last_run_info("orders", "load")
    assert (info["success"], info["metadata"]) == (True, {**metadata, "path": "/x", "n": "NaN"})
    assert (info["timestamp"], info["rows"], info["duration_s"]) == ("2024-05-01T01:30:00", 5, 1.5)
    assert state.get_last_run_info("orders", "clean")["error"] == "KeyError: 'k'"
    assert state.get_last_run_info("orders", "later")["status"] == "blocked"
    assert state.get_last_run_status("orders") is False
    assert state.get_last_run_info("orders")["metadata"] == {"start_time": given.start_time, "end_time": given.end_time}


ODIBI = """
import sys
from odibi.node import NodeResult
from odibi.pipeline import PipelineResults
from recovery import StateManager

results = PipelineResults("orders", failed=["clean"])
results.node_results["load"] = NodeResult(node_name="load", success=True, duration=1.5, metadata={"rows": 5})
results.node_results["clean"] = NodeResult(node_name="clean", success=False, duration=1.5, error=KeyError("k"))
StateManager(sys.argv[1]).save_pipeline_run("orders", results)
"""


def test_odibi_s_own_objects(state, store_dir, tmp_path):
    """As Odibi makes them."""
    environ = others.environment(tmp_path)
    others.run([others.python_with("odibi"), "-c", ODIBI, str(store_dir)], tmp_path, environ)
    assert state.get_last_run_info("orders", "load")["metadata"] == {"rows": 5}
    assert state.get_last_run_info("orders", "clean")["error"] == "KeyError: 'k'"


def test_the_stored_form(state):
    """As Odibi's file has it; a node that happens to be called nodes is not taken for it."""
    node = {"success": True, "timestamp": "2024-05-01T01:30:00", "metadata": {"rows": 5}}
    state.save_pipeline_run("orders", {"last_run": "2024-05-01", "nodes": {"load": node}})
    info = state.get_last_run_info("orders", "load")
    assert {name: info[name] for name in node} == node
    state.save_pipeline_run("odd", {"last_run": True, "nodes": {"success": False}})
    assert (state.get_last_run_status("odd", "last_run"), state.get_last_run_status("odd", "nodes")) == (True, False)


def test_this_package_s_summary(state):
    """What `run_pipeline` returns."""
    from recovery.operational.runs import NodeRun

    summary = SimpleNamespace(pipeline="orders", nodes={"load": NodeRun("failed", error="no")})
    state.save_pipeline_run("orders", summary)
    assert state.get_last_run_status("orders", "load") is False
    assert state.get_last_run_info("orders", "load")["error"] == "no"


def test_success_and_metadata_of_other_records(state):
    """Every record has them: success is None while it is unknown, metadata are the details."""
    state.save_pipeline_run("orders", {"load": {"success": True, "file": "a.csv"}}, details={"by": "cron"})
    run, node = state.get_last_run_info("orders"), state.get_last_run_info("orders", "load")
    assert (run["success"], run["metadata"]) == (True, {"by": "cron"})
    assert (node["success"], node["metadata"]) == (True, {"file": "a.csv"})
    assert datetime.fromisoformat(node["timestamp"]).utcoffset() is not None
    state.history.begin("flow", "flow")
    assert state.get_last_run_info("flow")["success"] is None


@pytest.mark.parametrize("given", [None, 5, "load", ["load"], object(), SimpleNamespace(nodes=["load"])])
def test_anything_else_is_refused(state, given):
    with pytest.raises(ConfigurationError, match="is not the result of a pipeline"):
        state.save_pipeline_run("orders", given)
    assert state.list_runs() == []


@pytest.mark.parametrize(
    "node",
    [
        {"success": True, "at": datetime(2024, 1, 1)},  # noqa: DTZ001 - JSON has no times
        {"success": True, "rows": "five"},
        {"success": True, "details": 5},
        {"success": True, "duration_s": float("inf")},
    ],
)
def test_what_could_not_be_read_back_is_refused(state, node):
    with pytest.raises(StateValueError, match="'load' cannot be recorded"):
        state.save_pipeline_run("orders", {"load": node})


def test_results_without_an_outcome_are_refused(state):
    for success in (None, 1, "yes"):
        with pytest.raises(ConfigurationError, match="no success that is True or False"):
            state.save_pipeline_run("orders", results(load=NodeResult(success)))
