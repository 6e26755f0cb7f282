"""Airflow's proposal for persisted state, from top to bottom; and Airflow's own store of state on this package."""

from __future__ import annotations

import shutil

import pytest

from recovery import StateManager
from tests import others
from tests.operational.support import SetClock
from tests.stores import ROOT

BACKEND = """
import asyncio, json, os
from datetime import datetime, timedelta, timezone
from airflow.sdk import NEVER_EXPIRE, Asset
from airflow.sdk.definitions.asset import AssetAlias, AssetNameRef, AssetUriRef
from airflow.state import AssetScope, BaseStoreBackend, TaskScope, get_state_backend

backend = get_state_backend()
assert isinstance(backend, BaseStoreBackend) and type(backend).__name__ == "RecoveryStoreBackend"
assert not type(backend).__abstractmethods__
soon = datetime.now(tz=timezone.utc) + timedelta(hours=1)
run, mapped = TaskScope("nightly", "run-1", "load"), TaskScope("nightly", "run-1", "load", 3)
for scope in (run, mapped, AssetScope(asset_id=7), AssetScope(name="orders"), AssetScope(uri="s3://w/orders")):
    assert backend.get(scope, "job") is None
    backend.set(scope, "job", json.dumps({"id": 7}), expires_at=None)
    backend.set(scope, "other", "1.50", expires_at=soon)
    # A text comes back as it was given.
    assert (backend.get(scope, "job"), backend.get(scope, "other")) == ('{"id": 7}', "1.50")
    backend.delete(scope, "other")
    backend.delete(scope, "other")
    assert backend.get(scope, "other") is None
backend.clear(run)
assert (backend.get(run, "job"), backend.get(mapped, "job")) == (None, '{"id": 7}')
backend.clear(run, all_map_indices=True)
assert backend.get(mapped, "job") is None

async def later():
    await backend.aset(run, "job", "5", expires_at=soon - timedelta(hours=2))
    assert await backend.aget(run, "job") is None
    await backend.aset(run, "kept", "6")
    assert await backend.aget(run, "kept") == "6"
    await backend.adelete(AssetScope(name="orders"), "job")
    await backend.aclear(AssetScope(uri="s3://w/orders"))

asyncio.run(later())
backend.cleanup()

from recovery import ConfigurationError, StateManager
import recovery

assert recovery.NEVER_EXPIRE == NEVER_EXPIRE
state = StateManager(os.environ["RECOVERY_DIRECTORY"], environment="own", default_retention=0)
orders = Asset(name="orders", uri="s3://w/orders/daily")
state.asset_state_store(orders).set("mark", 5, retention=NEVER_EXPIRE)
assert state.asset_state_store(AssetNameRef(name="orders")).get("mark") == 5
state.asset_state_store(AssetUriRef(uri="s3://w/orders/daily")).set("mark", 6)
assert state.asset_state_store(uri="s3://w/orders/daily").get("mark") == 6
try:
    state.asset_state_store(AssetAlias(name="orders"))
except ConfigurationError:
    pass
else:
    raise AssertionError
"""


def test_airflow_s_store_of_state(tmp_path, store_dir):
    """The example is a whole backend: Airflow opens it by its setting, and everything it asks for works."""
    python = others.python_with("airflow")
    tools = tmp_path / "tools"
    tools.mkdir()
    shutil.copy(ROOT / "examples/airflow/state_store.py", tools)
    environ = others.environment(
        tools, AIRFLOW_HOME=str(tmp_path / "home"), RECOVERY_DIRECTORY=str(store_dir),
        AIRFLOW__STATE_STORE__BACKEND="state_store.RecoveryStoreBackend",
    )  # fmt: skip
    others.run([python, "-c", BACKEND], tmp_path, environ)
    found = {(scope.kind, *scope.names): scope.keys for scope in StateManager(store_dir).list_scopes()}
    assert found == {
        ("asset", "id", "7"): ("job",), ("task-instance", "nightly", "load", "run-1", "-1"): ("kept",),
    }  # fmt: skip


@pytest.fixture
def state(store_dir):
    return StateManager(store_dir, clock=SetClock())


def test_incremental_processes(state):
    """The last mark or an initial value, the new mark of the source, and moving it only if the task succeeds."""
    rows = [("2024-05-01", 1), ("2024-05-02", 2)]
    since = state.get_hwm("source_table", "1900-01-01")
    assert [row for row in rows if row[0] > since] == rows
    state.set_hwm("source_table", max(day for day, _ in rows))
    rows.append(("2024-05-03", 3))
    assert [row for row in rows if row[0] > state.get_hwm("source_table", "1900-01-01")] == rows[2:]


def test_a_remote_job_survives_retries(state):
    """Not cleared when the task starts again, after a failure or a reschedule."""
    for _ in range(3):
        job = state.task_instance_state("dag", "task", "2024-05-01")
        assert job.get() in (None, "job-1")
        job.set("job-1")


def test_the_three_scopes_of_the_proposal(state):
    """ProcessState (namespace, name), TaskState (dag, task) and TaskInstanceState (and execution date): value and
    timestamp of each, and no conflict of names."""
    scopes = [
        state.process_state("acquisition_server01", "target_table"),
        state.task_state("acquisition_server01", "target_table"),
        state.task_instance_state("acquisition_server01", "target_table", "2024-05-01"),
        state.task_instance_state("acquisition_server01", "target_table", "2024-05-02"),
    ]
    for number, scope in enumerate(scopes):
        scope.set(number)
    assert [scope.get() for scope in scopes] == [0, 1, 2, 3]
    assert all(scope.changed_at is not None for scope in scopes)


def test_the_state_of_the_previous_instance(state):
    """The latest instance that has state, by the time when it wrote, not by its execution date: one that is triggered
    by hand may have any date, and one without state does not count."""
    clock = state._clock
    for run in ("2024-05-02", "2024-05-01", "2024-05-03"):
        clock.now_ms += 1
        state.task_instance_state("dag", "task", run).set(run)
    clock.now_ms += 1
    current = state.task_instance_state("dag", "task", "2024-05-04")
    assert current.previous_instance.get() == "2024-05-03"
    assert current.previous_instance.previous_instance.get() == "2024-05-01"


def test_renaming_a_task(state):
    """The state moves along."""
    state.task_state("dag", "task").set(5)
    state.task_state("dag", "task").move_to(state.task_state("dag", "renamed"))
    assert (state.task_state("dag", "task").get(), state.task_state("dag", "renamed").get()) == (None, 5)


def test_airflow_s_examples(state):
    """Its example of a watermark of an asset, and that of a job that a retry takes up again: their lines, with a store
    of this package in place of the context's."""
    store = state.asset_state_store(uri="s3://warehouse/orders/daily")
    for _ in range(2):
        watermark = store.get("watermark", default="2026-01-01T00:00:00+00:00")
        store.set("watermark", "2026-02-01T00:00:00+00:00")
        store.set("total_runs", store.get("total_runs", default=0) + 1)
        store.set("last_run_summary", {"rows_loaded": 5, "prev_watermark": watermark})
    assert store.get("total_runs") == 2
    task_state_store = state.task_state_store("dag", "run_job", "run-1")
    submitted = []
    for attempt in range(2):
        job_id = task_state_store.get("job_id")
        if job_id is None:
            job_id = f"job-{attempt}"
            submitted.append(job_id)
            task_state_store.set("job_id", job_id, retention="never")
    assert submitted == ["job-0"]
