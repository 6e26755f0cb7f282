"""Several values by key in a scope, the previous run of a task, retention, and the listing of scopes."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from recovery import NEVER_EXPIRE, ConfigurationError, StateManager, StateValueError
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.storage.lock import DirectoryLock
from tests.operational.support import HOUR_MS, SetClock


@pytest.fixture
def clock():
    return SetClock()


@pytest.fixture(params=["directory", "file"])
def manager(request, store_dir, tmp_path, clock):
    """A StateManager in the recovery directory, and elsewhere."""

    def make(**settings) -> StateManager:
        backend = None if request.param == "directory" else f"file://{tmp_path}/state?create=1"
        return StateManager(store_dir, backend=backend, clock=clock, **settings)

    return make


def test_keys_of_a_scope(manager):
    """They are independent of each other, of other runs, and of the value without a key."""
    state = manager()
    store = state.task_state_store("nightly", "load", "run-1")
    assert (store.get("job"), store.get("job", "none"), store.keys()) == (None, "none", [])
    store.set("job", {"id": 7})
    store.set("a/b%", 1)
    state.task_instance_state("nightly", "load", "run-1").set("alone")
    state.task_state_store("nightly", "load", "run-2").set("job", 8)
    state.task_state_store("nightly", "load").set("job", 9)
    assert store.items() == {"a/b%": 1, "job": {"id": 7}}
    assert state.task_state_store("nightly", "load").keys() == ["job"]
    assert store.update("count", lambda n: n + 1, default=0) == 1
    assert store.delete("count")
    assert not store.delete("count")
    assert (store.key("job").previous, store.clear(), store.clear()) == (None, 2, 0)
    assert store.items() == {}
    assert state.task_instance_state("nightly", "load", "run-1").get() == "alone"
    assert state.task_state_store("nightly", "load", "run-2").get("job") == 8
    with pytest.raises(StateValueError, match="cannot be None"):
        store.set("job", None)
    with pytest.raises(ConfigurationError):
        store.get("")


def test_keys_under_long_names(manager):
    """In a path, a character of another alphabet takes nine: what has the longest names is found as well."""
    dag, task, run, key, environment = (text * 13 for text in "あいうえお")
    store = manager(environment=environment).task_state_store(dag, task, run)
    store.set(key, 1)
    store.set("k", 2)
    assert store.items() == {"k": 2, key: 1}
    assert (store.clear(), store.get(key)) == (2, None)


def test_mapped_instances_are_cleared_together_on_request(manager):
    """Otherwise each instance clears its own keys."""
    state = manager()
    stores = [state.task_state_store("d", "t", "r", index) for index in (0, 1)]
    for store in stores:
        store.set("cursor", 5)
    assert (stores[0].clear(), stores[1].get("cursor")) == (1, 5)
    stores[0].set("cursor", 6)
    assert (stores[0].clear(all_map_indices=True), stores[1].get("cursor")) == (2, None)


def test_cleared_when_the_block_succeeds(manager):
    """And kept when it fails, so that a retry finds them."""
    state = manager()

    def fails() -> None:
        with state.task_state_store("d", "t", "r", clear_on_success=True) as store:
            store.set("job", 5)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    with state.task_state_store("d", "t", "r", clear_on_success=True) as store:
        assert store.get("job") == 5
    with state.task_state_store("d", "t", "r") as store:
        assert store.keys() == []
        store.set("job", 6)
    assert store.get("job") == 6


def test_assets(manager):
    """By name, URI or id: three scopes. Default retention is for task instances only."""
    state = manager(default_retention="1h")
    stores = [state.asset_state_store("orders"), state.asset_state_store(uri="s3://w/orders"),
              state.asset_state_store(asset_id=7)]  # fmt: skip
    for number, store in enumerate(stores):
        store.set("watermark", number)
    assert [store.get("watermark") for store in stores] == [0, 1, 2]
    assert {scope.expires_ms for scope in state.list_scopes("asset/*")} == {None}
    for names in ({}, {"name": "a", "uri": "b"}, {"name": ""}, {"asset_id": True}):
        with pytest.raises(ConfigurationError, match="exactly one"):
            state.asset_state_store(**names)


def test_default_retention(manager, clock):
    """Of the state of task instances; a value may have another, or never expire."""
    state = manager(default_retention=timedelta(hours=1))
    store = state.task_state_store("d", "t", "r")
    store.set("default", 1)
    store.set("longer", 2, retention="2h")
    store.set("until", 3, retention=datetime.fromtimestamp(clock.now_ms / 1000, UTC) + timedelta(hours=3))
    store.set("never", 4, retention="never")
    # Airflow's NEVER_EXPIRE.
    store.set("for ever", 5, retention=timedelta.max)
    store.update("counted", lambda n: n + 1, default=0)
    state.task_instance_state("d", "t", "r").set(6)
    state.task_state("d", "t").set(7)
    kept = [7, 4, 3, 2, 2]
    for hours in range(5):
        alone = state.task_instance_state("d", "t", "r").exists
        assert len(store.keys()) + alone == kept[hours], hours
        clock.now_ms += HOUR_MS
    assert store.items() == {"never": 4, "for ever": 5}
    assert state.task_state("d", "t").get() == 7
    with pytest.raises(ConfigurationError, match="time zone"):
        store.set("no zone", 1, retention=datetime(2030, 1, 1))  # noqa: DTZ001 - that is what is refused
    with pytest.raises(ConfigurationError):
        manager(default_retention="soon")


def test_cleaning_anywhere(manager, clock):
    """Of all environments, in every backend, without the lock of the directory; a dry run removes nothing."""
    state, other = manager(), manager(environment="dev")
    for each in (state, other):
        store = each.task_state_store("d", "t", "r")
        store.set("short", 1, retention="1h")
        store.set("long", 2)
    clock.now_ms += 2 * HOUR_MS
    assert (state.clean_expired(dry_run=True), state.clean_expired(), state.clean_expired()) == (2, 2, 0)
    assert other.task_state_store("d", "t", "r").items() == {"long": 2}


def test_the_previous_run(manager, clock):
    """In the order in which runs began to keep state, whatever their dates; a retry sees the same one."""
    state = manager()

    def stores(run: str, index: int | None = None):
        clock.now_ms += 1
        return state.task_state_store("d", "t", run, index), state.task_instance_state("d", "t", run, index)

    for run in ("2024-05-02", "manual__2024-01-01", "2024-05-03"):
        store, alone = stores(run)
        store.set("cursor", run)
        alone.set(run)
    stores("other map index", 0)[0].set("cursor", "no")
    stores("no state yet")[0].delete("cursor")
    new, new_alone = stores("2024-05-04")
    assert (new.previous_run.get("cursor"), new_alone.previous_instance.get()) == ("2024-05-03", "2024-05-03")
    second, alone = stores("2024-05-02")
    second.set("cursor", "again")
    assert (second.previous_run, alone.previous_instance) == (None, None)
    third, alone = stores("2024-05-03")
    third.set("more", 5)
    assert third.previous_run.items() == {"cursor": "manual__2024-01-01"}
    assert alone.previous_instance.previous_instance.get() == "2024-05-02"
    assert state.task_state("d", "t").previous_instance is None


def test_listing_scopes(manager, clock):
    """With their keys and the moment when the first of them expires."""
    state = manager(environment="dev")
    state.process_state("billing", "a/b").set(1)
    store = state.task_state_store("d", "t", "r", 3)
    store.set("x", 1, retention="1h")
    store.set("y", 2)
    store.set("gone", 3)
    store.delete("gone")
    state.asset_state_store("orders").set("mark", 5)
    found = {(scope.kind, *scope.names): (scope.keys, scope.expires_ms) for scope in state.list_scopes()}
    assert found == {
        ("process", "billing", "a/b"): ((), None),
        ("task-instance", "d", "t", "r", "3"): (("x", "y"), clock.now_ms + HOUR_MS),
        ("asset", "name", "orders"): (("mark",), None),
    }
    assert [scope.kind for scope in state.list_scopes("task-instance/d/*")] == ["task-instance"]
    assert manager().list_scopes() == []


def test_commands(store_dir):
    """`state scopes`, `state clean`, and plain values in `state set`."""

    def command(*words: str) -> str:
        done = CliRunner().invoke(main, list(words))
        assert done.exit_code == 0, done.output
        return done.stdout

    db = str(store_dir)
    command("state", "set", db, "task-instance/d/t/r/-1/job", '"job-17"')
    command("state", "set", db, "task-instance/d/t/r/-1/job", "18", "--force")
    command("state", "set", db, "asset/name/orders/summary", '{"rows": 5}')
    state = StateManager(store_dir)
    job = state.task_state_store("d", "t", "r").key("job")
    assert (job.get(), job.previous) == (18, "job-17")
    assert state.asset_state_store("orders").get("summary") == {"rows": 5}
    # What `get` prints is the value.
    command("state", "set", db, "task/d/t", command("state", "get", db, "task-instance/d/t/r/-1/job"))
    assert state.task_state("d", "t").get() == 18
    listed = json.loads(command("state", "scopes", db, "--json"))
    assert [(scope["kind"], scope["keys"]) for scope in listed] == [
        ("asset", ["summary"]), ("task", []), ("task-instance", ["job"]),
    ]  # fmt: skip
    assert "asset  name orders  summary" in command("state", "scopes", db, "--pattern", "asset/*")
    past = datetime(2020, 1, 1, tzinfo=UTC)
    job.set(19, retention=past)
    with DirectoryLock(store_dir, SystemClock(), "a run"):
        assert command("state", "clean", db, "--dry-run") == "would remove 1 expired state\n"
        job.set(20, retention=past)
        state.process_state("n", "x").set(1, retention=past)
        assert command("state", "clean", db) == "removed 2 expired states\n"
    job.set(21, retention=past)
    assert command("state", "clean", db, "--dry-run") == "would remove 1 expired state\n"
    assert json.loads(command("state", "clean", db, "--json")) == {"dry_run": False, "expired": 1}
    assert command("state", "clean", db) == "removed 0 expired states\n"


def test_without_blocking_an_event_loop(store_dir):
    """Airflow's names for it: a task's checkpoint, as in its own example."""
    store = StateManager(store_dir).task_state_store("d", "t", "r")

    async def work():
        assert await store.aget("progress", default={"done": []}) == {"done": []}
        await store.aset("progress", {"done": [1]}, retention=NEVER_EXPIRE)
        await asyncio.gather(*(store.aset(str(number), number) for number in range(5)))
        assert await store.adelete("0")
        return await store.aget("progress"), await store.aclear()

    assert asyncio.run(work()) == ({"done": [1]}, 5)
    assert store.keys() == []


class Asset:
    """As Airflow's, which is named by its name."""

    def __init__(self, name, uri):
        self.name, self.uri = name, uri


class AssetUriRef:
    """As Airflow's."""

    uri = "s3://w/orders"


class AssetAlias:
    """As Airflow's: it stands for any number of assets."""

    name = "orders"


def test_airflow_s_assets(store_dir):
    """In place of a name or a URI."""
    state = StateManager(store_dir)
    state.asset_state_store(Asset("orders", "s3://w/orders")).set("mark", 1)
    state.asset_state_store(AssetUriRef()).set("mark", 2)
    assert state.asset_state_store("orders").get("mark") == 1
    assert state.asset_state_store(uri="s3://w/orders").get("mark") == 2
    for wrong in (AssetAlias(), 5, ["orders"]):
        with pytest.raises(ConfigurationError, match="is no asset"):
            state.asset_state_store(wrong)
    with pytest.raises(ConfigurationError):
        state.asset_state_store(AssetUriRef(), uri="s3://w/other")


def test_a_value_by_key_is_never_none(store_dir):
    """Neither set nor as the result of an update."""
    store = StateManager(store_dir).task_state_store("d", "t", "r")
    store.set("k", 1)
    for change in (lambda: store.set("k", None), lambda: store.update("k", lambda _: None)):
        with pytest.raises(StateValueError, match="cannot be None"):
            change()
    assert store.get("k") == 1


def test_an_end_after_all_dates(store_dir):
    """From another program, or as far away as a datetime can be: it is listed as a date."""
    state = StateManager(store_dir)
    state.backend.update({"process/n/x": lambda _: {"value": 1, "expires_ms": 2**60}})
    state.process_state("n", "y").set(1, retention=datetime.max.replace(tzinfo=UTC))
    result = CliRunner().invoke(main, ["state", "scopes", str(store_dir)])
    assert result.exit_code == 0, result.output
    assert result.output.count("9987") == 2
    assert state.process_states("n") == {"x": 1, "y": 1}
