"""The forms in which results of a pipeline's nodes are recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from recovery import ConfigurationError, StateManager, StateValueError
from recovery.cli import main
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
state = StateManager(sys.argv[1])
state.save_pipeline_run("orders", results)
state.save_pipeline_run(pipeline_name="again", results=results.to_dict())
import numpy, pandas
day = pandas.Timestamp("2026-01-31")
state.set_hwm_batch(updates=[{"key": "id", "value": numpy.int64(5)}, {"key": "at", "value": day}])
"""


def test_odibi_s_own_objects(state, store_dir, tmp_path):
    """As Odibi makes them."""
    environ = others.environment(tmp_path)
    others.run([others.python_with("odibi"), "-c", ODIBI, str(store_dir)], tmp_path, environ)
    assert state.get_last_run_info("orders", "load")["metadata"] == {"rows": 5}
    assert state.get_last_run_info("orders", "clean")["error"] == "KeyError: 'k'"
    assert state.get_last_run_status("again", "clean") is False
    assert (state.get_hwm("id"), state.get_hwm("at")) == (5, datetime(2026, 1, 31))  # noqa: DTZ001 - it has no zone


def test_the_stored_form(state):
    """As Odibi's file has it; a node that happens to be called nodes is not taken for it."""
    node = {"success": True, "timestamp": "2024-05-01T01:30:00", "metadata": {"rows": 5}}
    state.save_pipeline_run("orders", {"last_run": "2024-05-01", "nodes": {"load": node}})
    info = state.get_last_run_info("orders", "load")
    assert {name: info[name] for name in node} == node
    state.save_pipeline_run("odd", {"last_run": True, "nodes": {"success": False}})
    assert (state.get_last_run_status("odd", "last_run"), state.get_last_run_status("odd", "nodes")) == (True, False)


def test_the_form_of_to_dict(state):
    """As `PipelineResults.to_dict()` has it, and objects that have only that."""
    given = {"pipeline_name": "orders", "completed": ["load"], "failed": ["clean"], "skipped": ["later"],
             "duration": 1.5, "start_time": "2024-05-01T01:00:00", "end_time": None, "node_count": 2}  # fmt: skip
    for each in (given, SimpleNamespace(to_dict=lambda: given)):
        state.save_pipeline_run("orders", each)
        found = {name: state.get_last_run_info("orders", name)["status"] for name in ("load", "clean", "later")}
        assert found == {"load": "succeeded", "clean": "failed", "later": "blocked"}
        assert state.get_last_run_info("orders")["metadata"]["end_time"] is None


@pytest.mark.parametrize(
    ("given", "status"),
    [("SUCCESS", "succeeded"), ("success", "succeeded"), ("FAILED", "failed"), ("failure", "failed"),
     ("Skipped", "skipped"), ("upstream_failed", "blocked"), ("succeeded", "succeeded")],
)  # fmt: skip
def test_statuses_of_other_tools(state, given, status):
    """Recorded, and asked for, in Odibi's and Airflow's words."""
    state.save_pipeline_run("orders", {"load": {"status": given}})
    assert state.get_last_run_info("orders", "load")["status"] == status
    assert len(state.list_runs(node="load", status=given)) == 1
    result = CliRunner().invoke(
        main, ["runs", str(state.backend.directory), "--node", "load", "--status", given, "--json"]
    )
    assert [run["nodes"]["load"]["status"] for run in json.loads(result.output)] == [status]


@pytest.mark.parametrize("status", ["SUCESS", "", 5, None])
def test_a_status_that_no_run_has(state, status):
    """It is refused, and never an empty answer."""
    with pytest.raises(ConfigurationError, match="has no status"):
        state.save_pipeline_run("orders", {"load": {"status": status}})
    if status is not None:
        with pytest.raises(ConfigurationError, match="there is no status"):
            state.list_runs(status=status)


def test_odibi_s_keywords(state):
    """Its calls with its own names of arguments; a name twice is refused."""
    state.save_pipeline_run(pipeline_name="orders", results=results(load=NodeResult(True)))
    assert state.get_last_run_status(pipeline_name="orders", node_name="load") is True
    assert state.get_last_run_info(pipeline_name="orders", node_name="load")["success"] is True
    state.set_hwm_batch(updates=[{"key": "orders", "value": 5}])
    assert state.get_hwm(key="orders") == 5
    with pytest.raises(ConfigurationError, match="the same argument"):
        state.get_last_run_status(pipeline_name="orders", pipeline="orders")


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
