"""The steps: timeouts that are due, and a sample of states."""

from __future__ import annotations

import time

import pytest

from recovery.report.facts import largest
from recovery.storage.initialize import init_partitions
from recovery.storage.reading import FileReader
from recovery.ui.facts.steps import largest_keys, within
from tests.stores import STEP, Driver, alter
from tests.ui.support import ask, served

HOUR_MS = 3_600_000


@pytest.mark.parametrize("is_logged", [False, True])
def test_timeouts_are_counted_over_all_partitions(tmp_path, is_logged):
    """Timeouts by now, within a minute and within an hour, also while the newest epoch is only logged: there a key has
    got a later timeout, one has none any more, and one is gone."""
    directory = tmp_path / "db"
    init_partitions(directory, 3)
    flows = served(directory)
    [flow] = flows
    now = flow.clock.wall_ms()
    ahead = {
        "past": -5,
        "gone": -4,
        "later": -3,
        "unset": -2,
        "soon": 30_000,
        "hour": HOUR_MS // 2,
        "day": 24 * HOUR_MS,
    }
    with Driver(directory) as run:
        run.apply(0, {key: (f'"{key}"', now + ms) for key, ms in ahead.items()} | {"none": '"x"'})
        run.close(0)
        run.apply(1, {"gone": None, "later": ('"l"', now + 2 * HOUR_MS), "unset": '"u"'})
        run.close(1, logged=is_logged)
    [step] = ask(flows, "steps").facts["steps"]
    assert step["due"] == {"earliest_ms": now - 5, "now": 1, "within_minute": 2, "within_hour": 3, "is_cut": False}


def test_a_step_without_timeouts(tmp_path):
    """Nothing is due, and there is no earliest one."""
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    with Driver(directory) as run:
        run.apply(0, {"a": "1"})
        run.close(0)
    [step] = ask(served(directory), "steps").facts["steps"]
    assert step["due"] == {"earliest_ms": None, "now": 0, "within_minute": 0, "within_hour": 0, "is_cut": False}


def test_the_sample_is_of_all_partitions(tmp_path):
    """A few keys with their decoded states, not only those of the first partition; those of a step with one key, too;
    a long state is cut."""
    directory = tmp_path / "db"
    init_partitions(directory, 40)
    with Driver(directory, (STEP, "rare")) as run:
        run.apply(0, {f"k{number}": f'{{"n": {number}}}' for number in range(400)})
        run.apply(0, {"only": f'"{"v" * 1_000_000}"'}, step="rare")
        run.close(0)
    flows = served(directory)
    common, rare = sorted(ask(flows, "steps").facts["steps"], key=lambda each: each["step"])
    assert len(common["sample"]) == 5
    assert all(each["value"] == {"n": int(each["key"][1:])} for each in common["sample"])
    assert len({ask(flows, f"steps/{STEP}/keys/{each['key']}").facts["found"] for each in common["sample"]}) == 1
    [one] = rare["sample"]
    assert (one["key"], one["is_cut"]) == ("only", True)


def test_counting_ends_in_time(tmp_path, monkeypatch):
    """A step whose timeouts take too long to count has no count, and the page is there."""
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    with Driver(directory) as run:
        run.apply(0, {"a": ("1", 5)})
        run.close(0)
    monkeypatch.setattr("recovery.ui.facts.steps.EXTRA_S", 0.0)
    [step] = ask(served(directory), "steps").facts["steps"]
    assert (step["due"], step["sample"], step["problem"], step["keys"]) == (None, None, None, 1)


def test_counting_says_where_it_ends(tmp_path, monkeypatch):
    """More timeouts of a partition than count are no exact number."""
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    with Driver(directory) as run:
        run.apply(0, {f"k{number}": ("1", 5) for number in range(20)})
        run.close(0)
    monkeypatch.setattr("recovery.ui.facts.steps.MOST_DUE", 4)
    [step] = ask(served(directory), "steps").facts["steps"]
    assert step["due"]["is_cut"]


def test_a_damaged_state_hides_no_other_fact(tmp_path):
    """The step with it has the error, with its file; everything else is there."""
    directory = tmp_path / "db"
    init_partitions(directory, 1)
    with Driver(directory, (STEP, "whole")) as run:
        run.apply(0, {"a": ("1", 5)})
        run.apply(0, {"b": ("2", 6)}, step="whole")
        run.close(0)
    alter(directory / "part-0.sqlite3", "UPDATE snaps SET ser_change = '9' WHERE step_id = ?", (STEP,))
    answer = ask(served(directory), "steps")
    damaged, whole = sorted(answer.facts["steps"], key=lambda each: each["step"])
    assert (answer.status, damaged["keys"], damaged["due"]["now"], damaged["sample"]) == (200, 1, 1, None)
    assert damaged["problem"]["error"] == "CorruptPartitionError"
    assert damaged["problem"]["path"] == str(directory / "part-0.sqlite3")
    assert (whole["problem"], len(whole["sample"])) == (None, 1)


def test_all_steps_together_have_a_limit(tmp_path, monkeypatch):
    """A disk on which each reading takes long makes a request of many steps no longer than one of few."""
    directory = tmp_path / "db"
    init_partitions(directory, 1)
    steps = tuple(f"step-{number}" for number in range(20))
    with Driver(directory, steps) as run:
        for step in steps:
            run.apply(0, {"a": "1"}, step=step)
        run.close(0)
    monkeypatch.setattr("recovery.ui.facts.steps.ALL_S", 0.5)
    slow = FileReader.due

    def due(self, *given):
        time.sleep(0.2)
        return slow(self, *given)

    monkeypatch.setattr(FileReader, "due", due)
    found = ask(served(directory), "steps").facts["steps"]
    assert len(found) == 20
    assert 1 <= sum(each["due"] is not None for each in found) <= 4


def test_the_largest_keys_are_those_of_all_partitions_or_not_shown(tmp_path, monkeypatch):
    """Where the time is over in the last partition, too."""
    monkeypatch.setattr("recovery.storage.sqlite.file.opening.OPS_PER_LOOK", 100)
    directory = tmp_path / "db"
    init_partitions(directory, 1)
    with Driver(directory) as run:
        run.apply(0, {f"k{number}": "1" for number in range(100)})
        run.close(0)
    look = next(iter(served(directory))).look()
    assert within(time.monotonic() + 60, 60, lambda: largest_keys(look, 100))
    assert within(time.monotonic(), 60, lambda: largest(look.store, look.gathered, 10)) is None
