"""How a key came to its value: `recovery history`."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery import ConfigurationError, StateManager, StateNotFoundError, history
from recovery.appended.position import FilePosition, InputOffset
from recovery.base.clock import SystemClock
from recovery.base.reserved import CHECKPOINT_STEP, EPOCH_STEP
from recovery.cli import main
from recovery.cli.common import format_time
from recovery.operational import marks
from recovery.operational.closed_marks import changes
from recovery.operational.steps import epoch_input
from recovery.operational.steps.step_history import REMOVED, TIMED_OUT, WRITTEN, key_history
from recovery.operational.targets import StepTarget
from recovery.planning.comparing import ABSENT
from recovery.storage.store import Store
from tests.stores import STEP, Driver, alter, paths_of, window

KEYS = ["a", "b/c", "'", "🙂"]


def versions(directory, key):
    """Epoch, what and value of each version."""
    found = key_history(StepTarget(Store(directory), STEP, SystemClock()), STEP, key)
    return [(each.epoch, each.what, each.value) for each in found.versions]


@settings(max_examples=10)
@given(seed=st.integers(0, 10**9))
def test_versions_are_those_of_a_model(store_maker, seed):
    """Over changes, removals, logged and folded epochs, collection and a rewind."""
    generator = random.Random(seed)
    directory = store_maker(2)
    model: list[dict[str, int]] = [{}]

    def write(run, batch, floor, logged):
        changes = {key: generator.choice([None, str(batch)]) for key in generator.sample(KEYS, 2)}
        run.apply(batch, changes)
        run.close(batch, floor=floor, logged=logged)
        state = {**model[-1], **{key: int(value) for key, value in changes.items() if value}}
        model.append({key: value for key, value in state.items() if changes.get(key, "") is not None})

    logged = generator.random() < 0.5
    with Driver(directory) as run:
        for batch in range(5):
            write(run, batch, 0, logged)
    back = generator.randrange(2, 6)
    del model[back:]
    with Driver(directory, resume_epoch=back) as run:
        for batch in range(back - 1, 7):
            write(run, batch, 2 if batch > 4 else 0, False)
    oldest, *_, newest = window(directory)
    for key in KEYS:
        changed = [e for e in range(1, newest + 1) if model[e].get(key) != model[e - 1].get(key)]
        held = [e for e in changed if e > oldest]
        first = [e for e in changed if e <= oldest and key in model[oldest]][-1:]
        expected = [(e, WRITTEN, model[e][key]) for e in first]
        expected += [(e, WRITTEN, model[e][key]) if key in model[e] else (e, REMOVED, ABSENT) for e in held]
        if expected:
            found = _merged(versions(directory, key))
            assert found[len(first) :] == expected[len(first) :]
            # A fold moves the epochs that nobody can go back to any more into one.
            assert [(epoch <= oldest, *rest) for epoch, *rest in found[: len(first)]] == [
                (True, *rest) for _, *rest in expected[: len(first)]
            ]
        else:
            with pytest.raises(StateNotFoundError):
                versions(directory, key)


def _merged(found):
    """Without versions that write the value that was there: the model does not see them."""
    kept = []
    for each in found:
        if not kept or kept[-1][1:] != each[1:]:
            kept.append(each)
    return kept


@pytest.fixture
def ran(store_dir):
    """Three epochs of a key: written, changed, timed out; and another key."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": '{"n":1,"total":2}', "b": ("1", 1500)})
        run.close(0)
        run.apply(1, {"a": '{"n":2,"total":2}', "b": None})
        run.close(2)
        run.apply(3, {"a": None})
        run.close(3)
    return store_dir


def test_the_command(ran):
    """A line for each version, with the micro-batches of its epoch and the fields that changed."""
    done = CliRunner().invoke(main, ["history", str(ran), "--step", STEP, "--key", "a"])
    assert done.exit_code == 0, done.output
    header, first, second, third, held = done.output.splitlines()
    assert header.split() == ["epoch", "closed", "execution", "micro-batches", "value", "changed"]
    assert first.split()[0] == "1"
    assert "n: 1 → 2" in second
    assert "1 to 2" in second
    assert "removed" in third
    assert held == "held: epochs 0 to 3"
    words = ["history", str(ran), "--step", STEP, "--key", "b"]
    header, first, second, _ = CliRunner().invoke(main, words).output.splitlines()
    assert "value  times out" in header
    assert first.split()[-5:] == ["written", "1", *format_time(1500).split(), "-"]
    assert second.split()[-5:] == ["timed", "out", "-", "-", "-"]
    answer = CliRunner().invoke(main, [*words, "--json"])
    wrote, ended = json.loads(answer.output)["versions"]
    assert (wrote["epoch"], wrote["what"], wrote["value"], wrote["timeout_ms"]) == (1, WRITTEN, 1, 1500)
    assert (ended["epoch"], ended["what"], "value" in ended) == (2, TIMED_OUT, False)


@pytest.mark.parametrize(("step", "key"), [("other", "a"), (STEP, "unknown")])
def test_a_missing_step_or_key(ran, step, key):
    """An error with its own exit code."""
    done = CliRunner().invoke(main, ["history", str(ran), "--step", step, "--key", key])
    assert done.exit_code == StateNotFoundError.exit_code, done.output


def test_a_row_that_was_altered(ran):
    """It is not shown as if it were right."""
    for path in paths_of(ran):
        alter(path, "UPDATE superseded SET ser_change = '{\"n\":7}' WHERE state_key = 'a' AND snap_epoch IS NOT NULL")
    done = CliRunner().invoke(main, ["history", str(ran), "--step", STEP, "--key", "a"])
    assert done.exit_code == 23, done.output


def offset(**ends):
    """A position in appended files: how far each was read, by name."""
    positions = {
        number: FilePosition(f"/in/{name}", f"/in/{name}", end, end, 0, 7, "ab")
        for number, (name, end) in enumerate(ends.items(), 1)
    }
    return json.dumps(InputOffset(positions, len(ends) + 1, since_ns=5).to_json())


def call(directory, *words):
    """Run the command; its text, or its exit code."""
    done = CliRunner().invoke(main, ["history", str(directory), *map(str, words)])
    return done.output if done.exit_code == 0 else done.exit_code


def test_the_bytes_that_an_epoch_read(store_dir):
    """Of appended files, beside a source of another kind; nothing of an epoch whose predecessor is not held."""
    key = ("--step", STEP, "--key", "k")
    with Driver(store_dir) as run:
        for batch, ends in enumerate(({"a": 10}, {"a": 10, "b": 5}, {"a": 30, "b": 5})):
            position = f'v1\n{{"batchWatermarkMs":0}}\n{offset(**ends)}\n{{"logOffset":{batch}}}'
            run.apply(batch, {"k": str(batch)})
            run.close(batch, floor=0, driver_rows={CHECKPOINT_STEP: {f"offsets/{batch}": position}})
            if batch == 0:
                [only] = json.loads(call(store_dir, *key, "--show-input", "--json"))["versions"]
                ranges = [{"path": "/in/a", "begin": 0, "end": 10}]
                assert only["input"] == [{"source": "0", "ranges": ranges}, {"source": "1", "ranges": None}]
    *_, second, third = json.loads(call(store_dir, *key, "--show-input", "--json"))["versions"]
    assert second["input"][0]["ranges"] == [{"path": "/in/b", "begin": 0, "end": 5}]
    assert third["input"][0]["ranges"] == [{"path": "/in/a", "begin": 10, "end": 30}]
    assert "/in/a" in call(store_dir, *key, "--show-input")
    with Driver(store_dir) as run:
        position = f'v1\n{{"batchWatermarkMs":0}}\n{offset(a=30, b=5)}\n{{"logOffset":2}}'
        run.apply(3, {"idle": "1"})
        run.close(3, floor=0, driver_rows={CHECKPOINT_STEP: {"offsets/3": position}})
    assert ["4", "0", "nothing", "-", "-"] in [
        line.split() for line in call(store_dir, "--step", STEP, "--key", "idle", "--show-input").splitlines()
    ]
    assert "input" not in json.loads(call(store_dir, *key, "--json"))["versions"][0]
    with Driver(store_dir) as run:
        run.apply(4, {"k": "3"})
        run.close(4, floor=4)
    assert "not known: the epoch before it is not held" in call(store_dir, *key, "--show-input")


def test_the_position_of_an_epoch_is_read_once(store_dir, monkeypatch):
    """The position of an epoch is read once, also for the epoch after it, which begins there."""
    with Driver(store_dir) as run:
        for batch in range(4):
            run.apply(batch, {"k": str(batch)})
            run.close(batch, floor=0)
    read = []
    real = epoch_input.position_of
    monkeypatch.setattr(epoch_input, "position_of", lambda at: read.append(at.epoch) or real(at))
    assert [each.epoch for each in history(store_dir, STEP, "k", with_input=True).versions] == [1, 2, 3, 4]
    assert sorted(read) == [1, 2, 3, 4]


def test_a_high_water_mark(store_dir):
    """Moved by two epochs, then set and removed by hand."""
    state = StateManager(store_dir)
    for epoch, value in enumerate((5, 8), 1):
        with Driver(store_dir) as run:
            moved = changes("", {"orders": marks.epoch_row(None, "orders", value, 1_000 * epoch)})
            rows = {key: text for (_, key), (text, _) in moved.items()}
            request, *others = run.requests(epoch)
            run.store.close(run.lease, [replace(request, driver_rows={EPOCH_STEP: rows}), *others])
    assert state.get_hwm("orders") == 8
    found = json.loads(call(store_dir, "--hwm", "orders", "--json"))
    assert [(each["epoch"], each["value"]) for each in found["versions"]] == [(1, 5), (2, 8)]
    assert found["versions"][1]["changes"] == [{"path": "", "before": 5, "after": 8}]
    assert "now" not in found
    assert history(store_dir, hwm="orders").as_json()["versions"] == found["versions"]
    assert history(store_dir, hwm="orders", environment="dev").versions == ()
    for words in ({}, {"step": STEP}, {"step": STEP, "key": "a", "hwm": "orders"}):
        with pytest.raises(ConfigurationError, match="a key of a step, or a mark"):
            history(store_dir, **words)
    state.set_hwm("orders", 12)
    assert json.loads(call(store_dir, "--hwm", "orders", "--json"))["now"]["value"] == 12
    assert "set outside of epochs" in call(store_dir, "--hwm", "orders")
    read = [line.split() for line in call(store_dir, "--hwm", "orders", "--show-input").splitlines()]
    assert ["1", "-", "no", "stream", "-", "-"] in read
    state.remove_hwm("orders")
    assert json.loads(call(store_dir, "--hwm", "orders", "--json"))["now"] is None
    state.set_hwm("by hand", 3)
    assert json.loads(call(store_dir, "--hwm", "by hand", "--json"))["versions"] == []
    assert call(store_dir, "--hwm", "other") == StateNotFoundError.exit_code


def test_words_that_do_not_go_together(ran):
    """Are usage errors; an operator that has no state is found before Spark is started."""
    assert call(ran, "--operator", "0", "--key", "a") == StateNotFoundError.exit_code
    wrong = ["--hwm x --key a", f"--hwm x --step {STEP}", "--key a", f"--step {STEP} --key a --timers"]
    for words in ([], ["--step", STEP], *map(str.split, wrong)):
        assert call(ran, *words) == 2
