"""How a key came to its value: `recovery history`."""

from __future__ import annotations

import json
import random

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery import StateNotFoundError
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.operational.step_history import REMOVED, TIMED_OUT, WRITTEN, key_history
from recovery.operational.targets import Steps
from recovery.planning.comparing import ABSENT
from tests.stores import STEP, Driver, alter, paths_of, window

KEYS = ["a", "b/c", "'", "🙂"]


def versions(directory, key):
    """Epoch, what and value of each version."""
    found = key_history(Steps(directory, STEP, SystemClock()), STEP, key)
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
    answer = CliRunner().invoke(main, ["history", str(ran), "--step", STEP, "--key", "b", "--json"])
    wrote, ended = json.loads(answer.output)["versions"]
    assert (wrote["epoch"], wrote["what"], wrote["value"], wrote["timeout_ms"]) == (1, WRITTEN, 1, 1500)
    assert (ended["epoch"], ended["what"], "value" in ended) == (2, TIMED_OUT, False)


@pytest.mark.parametrize(("step", "key"), [("other", "a"), (STEP, "unknown")])
def test_what_is_not_there(ran, step, key):
    """An error with its own exit code."""
    done = CliRunner().invoke(main, ["history", str(ran), "--step", step, "--key", key])
    assert done.exit_code == StateNotFoundError.exit_code, done.output


def test_a_row_that_was_altered(ran):
    """It is not shown as if it were right."""
    for path in paths_of(ran):
        alter(path, "UPDATE superseded SET ser_change = '{\"n\":7}' WHERE state_key = 'a' AND snap_epoch IS NOT NULL")
    done = CliRunner().invoke(main, ["history", str(ran), "--step", STEP, "--key", "a"])
    assert done.exit_code == 23, done.output
