"""Run history."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner

from recovery import ConfigurationError, StateManager
from recovery.cli import main
from recovery.host import processes
from recovery.operational.runs import NodeRun, identity
from tests.namespaces import as_process_1
from tests.operational.support import HOUR_MS, SetClock, background
from tests.stores import ROOT

BEGIN = """
import sys
from recovery import StateManager
StateManager(sys.argv[1]).history.begin("orders", "flow")
print("begun", flush=True)
sys.stdin.read()
"""
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def clock():
    return SetClock()


@pytest.fixture
def state(store_dir, clock):
    return StateManager(store_dir, clock=clock)


def test_the_status_of_the_last_run(state):
    """True, False, or None for what never ran; of a pipeline and of its nodes."""
    assert state.get_last_run_status("orders") is None
    state.save_pipeline_run("orders", {"load": True, "clean": False})
    assert state.get_last_run_status("orders") is False
    assert state.get_last_run_status("orders", "load") is True
    assert state.get_last_run_status("orders", "clean") is False
    assert state.get_last_run_status("orders", "ship") is None
    state.save_pipeline_run("orders", {"clean": True})
    assert state.get_last_run_status("orders") is True
    assert state.get_last_run_status("orders", "load") is True
    assert state.get_last_run_status("order") is None


def test_a_run_that_continues_has_no_status_yet(state):
    """Neither True nor False; its end makes it one of the two."""
    run = state.history.begin("orders", "flow")
    assert state.get_last_run_status("orders") is None
    assert [each.status for each in state.list_runs()] == ["running"]
    run.end(ValueError("no"))
    run.end()
    [ended] = state.list_runs()
    assert (ended.status, ended.error) == ("failed", "ValueError: no")


def test_info_has_what_was_recorded(state):
    """Of the nodes too, with what their makers added."""
    nodes = {"load": {"status": "succeeded", "duration_s": 1.5, "rows": 7, "files": ["a"]}, "clean": NodeRun("skipped")}
    run_id = state.save_pipeline_run("orders", nodes, details={"by": "cron"})
    info = state.get_last_run_info("orders")
    assert (info["run_id"], info["status"], info["details"]) == (run_id, "succeeded", {"by": "cron"})
    node = state.get_last_run_info("orders", "load")
    assert (node["rows"], node["duration_s"], node["details"]) == (7, 1.5, {"files": ["a"]})
    assert state.get_last_run_info("other") is None


@pytest.mark.parametrize("result", [None, "ok", {"rows": 5}, {"status": "fine"}])
def test_a_result_without_a_status_is_refused(state, result):
    """Nothing is recorded then."""
    with pytest.raises(ConfigurationError, match="'load'"):
        state.save_pipeline_run("orders", {"load": result})
    assert state.list_runs() == []


def test_a_crashed_run_shows_as_dead(store_dir):
    """As soon as its process is gone, and not before."""
    state = StateManager(store_dir)
    process = background(BEGIN, store_dir)
    assert process.stdout.readline() == "begun\n"
    assert [run.status for run in state.list_runs("orders")] == ["running"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    [run] = state.list_runs("orders")
    assert run.status == "dead"
    assert state.get_last_run_status("orders") is False
    assert state.list_runs(status="running") == []


def test_a_process_of_the_same_number_is_another(state, monkeypatch):
    """A number that is used again does not bring a dead run back."""
    state.history.begin("orders", "flow")
    monkeypatch.setattr("recovery.operational.runs.identity", lambda pid: f"{identity(pid)}0")
    assert [run.status for run in state.list_runs()] == ["dead"]


def test_a_run_of_another_host_lives_by_its_heartbeats(state, clock, monkeypatch):
    """It is dead when it missed several of them."""
    monkeypatch.setattr("recovery.operational.runs.socket.gethostname", lambda: "elsewhere")
    run = state.history.begin("orders", "flow")
    monkeypatch.undo()
    clock.now_ms += 50_000
    assert [each.status for each in state.list_runs()] == ["running"]
    clock.now_ms += 20_000
    assert [each.status for each in state.list_runs()] == ["dead"]
    run.write()
    assert [each.status for each in state.list_runs()] == ["running"]


def test_a_heartbeat_is_noted_while_a_run_continues(store_dir, clock):
    """By a thread of its own, which ends with the run."""
    import time

    state = StateManager(store_dir, clock=clock)
    run = state.history.begin("orders", "flow")
    run.beat(0.01)
    clock.now_ms += 5_000
    deadline = time.monotonic() + 30
    while state.list_runs()[0].heartbeat_ms != clock.now_ms:
        assert time.monotonic() < deadline
    run.end()
    assert not run._thread.is_alive()


def test_nobody_waits_for_a_slow_backend(state, clock, monkeypatch):
    """What is noted while a record is being written is in the next one."""
    run = state.history.begin("orders", "flow")
    writing, answered = threading.Event(), threading.Event()
    update = state.backend.update

    def slowly(changes):
        writing.set()
        assert answered.wait(30)
        return update(changes)

    monkeypatch.setattr(state.backend, "update", slowly)
    thread = threading.Thread(target=run.write)
    thread.start()
    assert writing.wait(30)
    run.note(epoch=7)
    assert not answered.is_set()
    answered.set()
    thread.join()
    run.end(rows=3)
    [found] = state.list_runs("orders")
    assert found.details == {"epoch": 7, "rows": 3}


def test_runs_are_selected_and_newest_first(state, clock):
    """By pipeline, node, status and age; a limit keeps the newest."""
    for day, (pipeline, good) in enumerate([("a", True), ("b", False), ("a", False), ("a", True)]):
        clock.now_ms = 1_800_000_000_000 + day * DAY_MS
        state.save_pipeline_run(pipeline, {f"node-{pipeline}": good})
    assert [run.pipeline for run in state.list_runs()] == ["a", "a", "b", "a"]
    assert [run.pipeline for run in state.list_runs(limit=2)] == ["a", "a"]
    assert len(state.list_runs("a", status="succeeded")) == 2
    assert len(state.list_runs(node="node-b")) == 1
    assert len(state.list_runs(days=1.5)) == 2


def test_the_last_run_is_the_last_also_by_a_wrong_clock(store_dir):
    """A run that began on a machine an hour behind comes after the one before it, and took as long as it took."""
    ahead, behind = SetClock(), SetClock(1_800_000_000_000 - HOUR_MS)
    StateManager(store_dir, clock=ahead).save_pipeline_run("orders", {"load": True})
    late = StateManager(store_dir, clock=behind)
    late.save_pipeline_run("orders", {"load": False})
    assert late.get_last_run_status("orders") is False
    behind.elapsed_s = lambda: behind.now_ms / 1000
    run = late.history.begin("orders", "flow")
    behind.now_ms += 7_500
    run.end()
    assert late.list_runs()[0].duration_s == 7.5


def test_cleaning_keeps_the_last_and_the_running(state, clock):
    """What is old goes, but the last run of each pipeline stays; a dry run only tells."""
    for _ in range(3):
        state.save_pipeline_run("orders", {"load": True})
    running = state.history.begin("other", "flow")
    state.save_pipeline_run("other", {"load": True})
    clock.now_ms += 31 * DAY_MS
    assert len(state.history.clean(30 * 86400, dry_run=True)) == len(state.history.clean("30d", dry_run=True)) == 2
    assert len(state.list_runs()) == 5
    assert {run.pipeline for run in state.history.clean(30 * 86400)} == {"orders"}
    assert sorted(run.pipeline for run in state.list_runs()) == ["orders", "other", "other"]
    running.end()


def test_pipelines_and_environments_do_not_meet(store_dir):
    """A pipeline whose name begins like another's, or that belongs to another environment."""
    dev, prod = (StateManager(store_dir, environment=name) for name in ("dev", "prod"))
    dev.save_pipeline_run("a", {"n": True})
    assert prod.get_last_run_status("a") is None
    dev.save_pipeline_run("a/b", {"n": False})
    assert dev.get_last_run_status("a") is True


def test_a_run_in_another_pid_namespace_lives_by_its_heartbeats(store_dir):
    """A container's numbers mean other processes here, or none. Its end is known when heartbeats are missed."""
    process = as_process_1(sys.executable, "-c", BEGIN, store_dir, env={**os.environ, "PYTHONPATH": str(ROOT)},
                           stdin=subprocess.PIPE)  # fmt: skip
    try:
        assert process.stdout.readline() == "begun\n"
        state = StateManager(store_dir)
        assert [(run.status, run.pid) for run in state.list_runs()] == [("running", 1)]
        assert state.get_last_run_status("orders") is None
    finally:
        process.kill()
        process.communicate()
    assert [run.status for run in state.list_runs()] == ["running"]
    [run] = StateManager(store_dir, clock=SetClock(run_ms := state.list_runs()[0].heartbeat_ms + 61_000)).list_runs()
    assert (run.status, run.last_seen_ms) == ("dead", run_ms - 61_000)


def test_where_a_process_is_seen(monkeypatch):
    """On the same host, since the same boot, in the same namespace, whose own /proc is mounted."""
    noted = processes.identity(os.getpid())
    host = socket.gethostname()
    assert processes.is_visible(host, noted)
    boot, _, began = noted.split(":")
    assert processes.is_visible(host, f"{boot}:{began}"), "as earlier versions noted it"
    assert processes.is_same(noted, f"{boot}:{began}")
    assert not processes.is_visible("elsewhere", noted)
    assert not processes.is_visible(host, f"another:{noted.partition(':')[2]}")
    assert not processes.is_visible(host, f"{boot}:1:{began}")
    assert not processes.is_visible(host, None)
    monkeypatch.setattr(processes.os, "readlink", lambda _: "1")
    assert not processes.is_visible(host, noted), "the numbers of /proc are those of another namespace"


def test_of_a_dead_run_the_end_is_unknown(store_dir, clock, monkeypatch):
    """Its last heartbeat is when it was last seen, and is named so."""
    state = StateManager(store_dir, clock=clock)
    run = state.history.begin("orders", "flow")
    began_ms = clock.now_ms
    clock.now_ms += 40_000
    run.write()
    monkeypatch.setattr("recovery.operational.runs.identity", lambda _: None)
    [dead] = state.list_runs()
    assert (dead.status, dead.duration_s, dead.last_seen_ms) == ("dead", None, began_ms + 40_000)
    facts = dead.as_json()
    assert (facts["ended_ms"], facts["duration_s"], facts["last_seen_ms"]) == (None, None, began_ms + 40_000)
    shown = CliRunner().invoke(main, ["runs", str(store_dir)]).output
    assert "unknown, last seen after 40 s" in shown
    monkeypatch.undo()
    run.end()
    [ended] = state.list_runs()
    assert (ended.duration_s, ended.last_seen_ms) == (40.0, None)


def test_no_node_runs_on_in_a_run_that_has_ended(state):
    """A signal may end it before it has noted what became of them."""
    run = state.history.begin("orders", "pipeline")
    run.node("load", NodeRun("running"))
    run.end(KeyboardInterrupt())
    assert state.get_last_run_status("orders", "load") is False
    assert state.list_runs()[0].nodes["load"].status == "dead"
