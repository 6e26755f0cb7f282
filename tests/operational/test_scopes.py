"""Scoped state."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner

from recovery import (
    ConfigurationError,
    StateLockedError,
    StateManager,
    StateNotFoundError,
    StateValueError,
    process_state,
    task_instance_state,
    task_state,
)
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.operational.backends.backend import DirectoryBackend
from recovery.operational.scopes import remove_expired
from tests.forks import run_code
from tests.operational.support import HOUR_MS, SetClock
from tests.stores import problems


@pytest.fixture
def clock():
    return SetClock()


@pytest.fixture
def state(store_dir, clock):
    return StateManager(store_dir, clock=clock)


def test_get_set_delete(state):
    """With a default before it is set and after it was deleted; None is a value."""
    job = state.process_state("billing", "job")
    assert job.get("nothing") == "nothing"
    assert (job.exists, job.previous, job.changed_at, job.delete()) == (False, None, None, False)
    job.set({"id": 7})
    assert (job.get(), job.exists, job.previous) == ({"id": 7}, True, None)
    job.set(None)
    assert (job.get("nothing"), job.previous) == (None, {"id": 7})
    assert job.delete()
    assert (job.get("nothing"), job.exists, job.previous) == ("nothing", False, None)


def test_the_time_of_the_last_change(state, clock):
    """Of setting and of deleting, in UTC; setting the same again is a change."""
    job = state.process_state("billing", "job")
    job.set(1)
    assert job.changed_at == datetime.fromtimestamp(clock.now_ms / 1000, tz=UTC)
    for change in (lambda: job.set(1), lambda: job.set(1), job.delete):
        clock.now_ms += 1000
        change()
        assert job.changed_at == datetime.fromtimestamp(clock.now_ms / 1000, tz=UTC)


def test_retention(state, clock):
    """After its time a value is as if it had been deleted; setting it again restarts its time."""
    job = state.process_state("billing", "job")
    job.set(1, retention="1h")
    clock.now_ms += 3_599_999
    assert job.get() == 1
    clock.now_ms += 1
    assert (job.get(), job.exists) == (None, False)
    job.set(2)
    clock.now_ms += 10**9
    assert (job.get(), job.previous) == (2, None)


@pytest.mark.parametrize("never", [0, 0.0, "0", "0s", timedelta(0), "never", timedelta.max])
def test_a_retention_of_zero_is_never(store_dir, clock, never):
    """As in Airflow: of one value, of a default, and in place of a default."""
    default, other = (StateManager(store_dir, clock=clock, default_retention=each) for each in (never, "1h"))
    default.task_instance_state("d", "t", "r").set(1)
    other.task_instance_state("d", "t", "s").set(2, retention=never)
    other.task_state_store("d", "t", "s").set("k", 3, retention=never)
    other.task_state_store("d", "t", "s").update("l", lambda _: 4, retention=never)
    clock.now_ms += 10**12
    assert default.task_instance_state("d", "t", "r").get() == 1
    assert other.task_instance_state("d", "t", "s").get() == 2
    assert other.task_state_store("d", "t", "s").items() == {"k": 3, "l": 4}


def test_updating_begins_the_retention_again(state, clock):
    """The interval with which the value was set, or the one that is given; a fixed end stays."""
    interval, end, plain = (state.process_state("n", name) for name in ("interval", "end", "plain"))
    interval.set(1, retention="1h")
    end.set(1, retention=datetime.fromtimestamp((clock.now_ms + HOUR_MS) / 1000, tz=UTC))
    plain.set(1)
    for _ in range(3):
        clock.now_ms += HOUR_MS - 1
        for each in (interval, plain) if interval.get() > 1 else (interval, end, plain):
            each.update(lambda before: before + 1)
    assert (interval.get(), end.get(), plain.get()) == (4, None, 4)
    interval.update(lambda before: before + 1, retention="2h")
    plain.update(lambda before: before + 1, retention="1h")
    clock.now_ms += HOUR_MS
    assert (interval.get(), plain.get()) == (5, None)
    plain.update(lambda before: (before or 0) + 1)
    clock.now_ms += 10**12
    assert (interval.get(), plain.get()) == (None, 1)


def test_a_retry_sees_what_the_attempt_before_wrote(store_dir):
    """The state of a task instance belongs to all its tries, and they are different processes."""
    code = """
import sys
from recovery import task_instance_state
state = task_instance_state("dag", "submit", "2024-05-01", directory=sys.argv[1])
if not state.exists:
    state.set({"job": 42})
    import os; os._exit(9)
print(state.get())
"""
    assert run_code(code, store_dir).returncode == 9
    assert run_code(code, store_dir).stdout == "{'job': 42}\n"


def test_scopes_are_apart(state):
    """One can neither read nor list another's, whatever the names hold."""
    names = [("a", "b/c"), ("a/b", "c"), ("a", "b"), ("", "a"), ("a", ""), ("%", "a"), ("a*", "b"), ("a", "..")]
    scoped = [make(*name) for name in names for make in (state.process_state, state.task_state)]
    for number, each in enumerate(scoped):
        each.set(number)
    assert [each.get() for each in scoped] == list(range(len(scoped)))
    assert state.process_states("a") == {"b/c": 0, "b": 4, "": 8, "..": 14}
    assert state.process_states("a/b") == {"c": 2}
    assert state.process_states("b") == {}
    dev = StateManager(state.backend.directory, environment="dev")
    assert dev.process_state("a", "b").get() is None
    assert dev.process_states("a") == {}


def test_task_instances(state):
    """Of different runs and map indexes are different; a moment is the same one in every zone; None is not mapped."""
    moment = datetime(2024, 5, 1, 12, tzinfo=UTC)
    state.task_instance_state("d", "t", moment).set(1)
    assert state.task_instance_state("d", "t", moment.astimezone(ZoneInfo("Asia/Tokyo")), -1).get() == 1
    assert state.task_instance_state("d", "t", moment, 0).get() is None
    state.task_instance_state("d", "t", date(2024, 5, 1), 3).set(2)
    assert state.task_instance_state("d", "t", "2024-05-01", 3).get() == 2
    assert state.task_state("d", "t").get() is None
    with pytest.raises(ConfigurationError, match="map_index"):
        state.task_instance_state("d", "t", moment, "0")


@pytest.mark.parametrize("name", ["a/b", "..", "*", "'\"", "🙂", "n" * 10_000])
def test_names_are_texts_of_any_kind(state, name):
    """They come back as they were."""
    state.process_state(name, name).set(name)
    assert state.process_states(name) == {name: name}


def test_copying_and_moving(state):
    """How state is renamed: with its retention; moving to itself is a mistake, and so is moving nothing."""
    old, new = state.task_state("dag", "old"), state.task_state("dag", "new")
    old.set(5, retention="1h")
    old.copy_to(new)
    assert (old.get(), new.get()) == (5, 5)
    new.delete()
    old.move_to(new)
    assert (old.exists, new.get()) == (False, 5)
    with pytest.raises(ConfigurationError, match="itself"):
        new.move_to(state.task_state("dag", "new"))
    assert new.get() == 5
    with pytest.raises(StateNotFoundError, match="dag/old"):
        old.move_to(new)


def test_a_value_that_is_set_while_it_is_moved_stays(state, monkeypatch):
    """What was durable is not removed: the move is refused, and in a directory nothing of it has happened."""
    old, new = state.task_state("dag", "old"), state.task_state("dag", "new")
    old.set("seen")
    update = state.backend.update

    def meddle(changes):
        monkeypatch.undo()
        old.set("set meanwhile")
        return update(changes)

    monkeypatch.setattr(state.backend, "update", meddle)
    with pytest.raises(StateLockedError, match="changed while it was moved"):
        old.move_to(new)
    assert (old.get(), new.get()) == ("set meanwhile", None)


def test_moving_to_another_directory(make_store):
    """The same name in another directory is another state."""
    old, new = (process_state("n", "k", directory=make_store(1)) for _ in range(2))
    old.set(5)
    old.move_to(new)
    assert (old.exists, new.get()) == (False, 5)


def test_one_directory_is_one_place_however_it_is_named(store_dir, tmp_path, monkeypatch):
    """A state is not moved to itself, and where its removal is refused the other one is not written."""
    (tmp_path / "link").symlink_to(store_dir)
    old = process_state("n", "old", directory=store_dir)
    old.set(5)
    with pytest.raises(ConfigurationError, match="itself"):
        old.move_to(process_state("n", "old", directory=tmp_path / "link"))
    new = process_state("n", "new", directory=tmp_path / "link")
    update = DirectoryBackend.update

    def meddle(self, changes):
        monkeypatch.undo()
        process_state("n", "old", directory=store_dir).set(6)
        return update(self, changes)

    monkeypatch.setattr(DirectoryBackend, "update", meddle)
    with pytest.raises(StateLockedError):
        old.move_to(new)
    assert (old.get(), new.exists) == (6, False)


def test_a_place_that_is_opened_twice_is_one_place(tmp_path):
    """Of another backend, too: a state that is moved to itself would be removed."""
    uri = tmp_path.as_uri()
    one, other = (StateManager(uri).process_state("n", "k") for _ in range(2))
    one.set(5)
    with pytest.raises(ConfigurationError, match="itself"):
        one.move_to(other)
    assert one.get() == 5


@pytest.mark.parametrize("name", ["link", "other/../state"])
def test_a_place_with_two_names_is_one_place(tmp_path, name):
    """Of files, too: by a link, or on a way around, a state is not moved to itself."""
    for made in ("state", "other"):
        (tmp_path / made).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "state")
    one, other = (StateManager(f"file://{tmp_path}/{each}").process_state("n", "k") for each in ("state", name))
    one.set(5)
    assert other.get() == 5
    for old, new in ((one, other), (other, one)):
        with pytest.raises(ConfigurationError, match="itself"):
            old.move_to(new)
    assert (one.get(), other.get()) == (5, 5)


def test_update_is_one_step(state):
    """What it makes of the value before is there when it returns; an error of the function changes nothing."""
    count = state.process_state("billing", "count")
    assert [count.update(lambda n: n + 1, 0) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        count.update(lambda n: n // 0)
    with pytest.raises(StateValueError):
        count.set(object())
    assert (count.get(), count.previous) == (3, 2)


def test_the_functions_find_the_directory(store_dir, monkeypatch):
    """By argument, or by the environment variable; without either they say so."""
    monkeypatch.delenv("RECOVERY_DIRECTORY", raising=False)
    with pytest.raises(ConfigurationError, match="no recovery directory"):
        process_state("n", "x")
    process_state("n", "x", directory=store_dir).set(1)
    monkeypatch.setenv("RECOVERY_DIRECTORY", str(store_dir))
    assert process_state("n", "x").get() == 1
    task_state("d", "t").set(2)
    assert task_state("d", "t", directory=store_dir).get() == 2
    task_instance_state("d", "t", "r", 1).set(3)
    assert StateManager(store_dir).task_instance_state("d", "t", "r", 1).get() == 3


def test_gc_removes_what_has_expired(store_dir):
    """Scoped state of every environment and kind whose time has passed, and nothing else; its generation goes on, and
    the space is given back."""
    past = SetClock(SystemClock().wall_ms() - 2 * HOUR_MS)
    old, now = StateManager(store_dir, clock=past), StateManager(store_dir)
    prod = StateManager(store_dir, environment="prod", clock=past)
    expired = [old.process_state("n", "old"), old.task_state("d", "t"), prod.task_instance_state("d", "t", "r")]
    for each in expired:
        each.set("x" * 50_000, retention="1h")
    kept = [old.process_state("n", "kept"), old.process_state("n", "long"), now.process_state("n", "new")]
    for each, retention in zip(kept, (None, "1d", "1h"), strict=True):
        each.set("kept", retention=retention)
    old.set_hwm("process/n/old", 5)
    generations = {each.state_id: each.generation for each in now.backend.list()}
    done = CliRunner().invoke(main, ["gc", str(store_dir)])
    assert done.exit_code == 0, done.output
    assert "up to epoch 0, and removed 3 expired states: " in done.stdout
    for document in now.backend.list():
        gone = document.state_id in {each.state_id for each in expired}
        assert (document.content is None, document.generation) == (gone, generations[document.state_id] + gone)
    assert [each.get() for each in kept] == ["kept"] * 3
    assert now.get_hwm("process/n/old") == 5
    again = json.loads(CliRunner().invoke(main, ["gc", str(store_dir), "--json"]).stdout)
    assert again["expired"] == 0
    assert again["bytes_before"] < 150_000
    assert problems(store_dir) == []


def test_gc_leaves_what_is_set_meanwhile(store_dir, clock, monkeypatch):
    """Between the look and the removal: the new value counts, whatever became of the others."""
    state = StateManager(store_dir, clock=clock)
    for name in ("a", "b", "c"):
        state.process_state("n", name).set("old", retention="1h")
    clock.now_ms += HOUR_MS
    found = state.backend.list

    def list_and_set(prefix=""):
        documents = found(prefix)
        state.process_state("n", "a").set("new")
        state.process_state("n", "b").delete()
        return documents

    monkeypatch.setattr(state.backend, "list", list_and_set)
    remove_expired(state.backend, clock.now_ms)
    assert state.process_states("n") == {"a": "new"}
    assert {d.state_id: d.content is None for d in found("")} == {
        "process/n/a": False,
        "process/n/b": True,
        "process/n/c": True,
    }
