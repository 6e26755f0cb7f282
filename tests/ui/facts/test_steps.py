"""The steps: timeouts that are due, and a sample of states."""

from __future__ import annotations

import pytest

from recovery.storage.initialize import init_partitions
from tests.stores import STEP, Driver
from tests.ui.support import ask, served

HOUR_MS = 3_600_000


@pytest.mark.parametrize("is_logged", [False, True])
def test_timeouts_are_counted_over_all_partitions(tmp_path, is_logged):
    """Those by now, within a minute and within an hour, also while the newest epoch is only logged: there a key has got
    a later timeout, one has none any more, and one is gone."""
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
    assert step["due"] == {"earliest_ms": now - 5, "now": 1, "within_minute": 2, "within_hour": 3}


def test_a_step_without_timeouts(tmp_path):
    """Nothing is due, and there is no earliest one."""
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    with Driver(directory) as run:
        run.apply(0, {"a": "1"})
        run.close(0)
    [step] = ask(served(directory), "steps").facts["steps"]
    assert step["due"] == {"earliest_ms": None, "now": 0, "within_minute": 0, "within_hour": 0}


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
    assert (step["due"], step["sample"], step["keys"]) == (None, None, 1)
