"""Which nodes of a pipeline run, and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.errors import ConfigurationError
from recovery.planning.pipeline import LastNode, order, plan_nodes

NEEDS = {"load": (), "clean": ("load",), "report": ("clean",), "other": ()}
SAME = dict.fromkeys(NEEDS, "v1")
GOOD = {name: LastNode(True, "succeeded", "v1") for name in NEEDS}


def running(last, definitions=SAME, resume=True):
    """The nodes that run, with why."""
    return {plan.name: plan.why for plan in plan_nodes(NEEDS, definitions, last, resume=resume) if plan.runs}


def test_without_resume_all_run():
    """Whatever the last run did."""
    assert list(running(GOOD, resume=False)) == list(NEEDS)


def test_what_succeeded_and_is_unchanged_is_skipped():
    """And each plan says why."""
    assert running(GOOD) == {}
    plans = plan_nodes(NEEDS, SAME, GOOD, resume=True)
    assert {plan.why for plan in plans} == {"it succeeded in the last run, and nothing changed since"}


def test_the_first_run_runs_all():
    """There is nothing to resume."""
    assert set(running(None).values()) == {"there was no run before"}


@pytest.mark.parametrize(
    ("status", "why"),
    [("failed", "it failed in the last run"), ("blocked", "it was blocked in the last run"),
     ("dead", "it was dead in the last run")],
)  # fmt: skip
def test_what_did_not_succeed_runs_again_and_all_behind_it(status, why):
    """What does not need it is skipped."""
    last = {**GOOD, "clean": LastNode(False, status, "v1")}
    assert running(last) == {"clean": why, "report": "clean, which it needs, runs again"}


def test_a_changed_or_new_node_runs():
    """And what needs it."""
    assert running(GOOD, {**SAME, "load": "v2"}) == {
        "load": "its definition changed",
        "clean": "load, which it needs, runs again",
        "report": "clean, which it needs, runs again",
    }
    last = {name: node for name, node in GOOD.items() if name != "report"}
    assert running(last) == {"report": "it was not in the last run"}


@pytest.mark.parametrize(
    "needs",
    [{"a": ("b",)}, {"a": ("a",)}, {"a": ("b",), "b": ("c",), "c": ("a",)}],
    ids=["missing", "itself", "circle"],
)
def test_needs_that_cannot_be_met(needs):
    """Refused when the pipeline is made."""
    with pytest.raises(ConfigurationError):
        order(needs)


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.sampled_from("abcdefgh"), max_size=3)))
def test_every_node_comes_after_those_it_needs(needs):
    """All of them, once."""
    try:
        found = order(needs)
    except ConfigurationError:
        return
    assert sorted(found) == sorted(needs)
    assert all(found.index(each) < found.index(name) for name in needs for each in needs[name])
