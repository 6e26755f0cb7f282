"""What happens to stored state when a flow starts on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.errors import CorruptPartitionError, StepChangedError, UnknownStepError
from recovery.planning.steps import FlowStep, StepChoices, plan_quarantines, plan_steps
from recovery.planning.values import StepEdit
from recovery.values.declaration import Declaration

HERE = Path("db")
WORD = (("word", "string"),)
PLAIN = Declaration(WORD, "plain")
INT = Declaration(WORD, "int")
OTHER_KEY = Declaration((("user", "string"),), "plain")
OTHER_TYPE = Declaration((("word", "bigint"),), "plain")
BOTH = Declaration((("user", "string"),), "int")


def migrate(old):
    """A stand-in for a converter, which records what it was asked to convert."""
    return ("from", old)


UNREAD = "the state of key 'a', 9, cannot be read: Expected `str`"


def reads_all(old, new):
    """A stand-in for a scan of all states."""


def not_asked(old, new):
    """For what is planned without a look at the states."""
    raise AssertionError(f"the states of {old} were read")


def plan(held="s", declared=PLAIN, step=PLAIN, *, name="s", migrates=False, misread=not_asked, **choices):
    """The plan for one held step under a flow of one step."""
    recorded = {} if declared is None else {held: declared.to_text()}
    steps = {name: FlowStep(step, migrate if migrates else None)}
    return plan_steps({held} if held else set(), recorded, steps, StepChoices(**choices), HERE, misread)


def test_what_fits_continues():
    """No edit, and nothing to record."""
    assert plan() == plan(keep=("s",), migrates=True)
    assert plan() == plan(drop=("s",), keep=("s",), migrates=True, misread=reads_all)
    assert (plan().edits, plan().declarations) == ((), {})


def test_a_new_step_is_recorded():
    """State of its own begins with its declaration."""
    assert plan(held="", declared=None).declarations == {"s": PLAIN.to_text()}


def test_state_without_a_declaration_is_kept_unchanged():
    """It is recorded from now on; a migration has nothing to go by."""
    planned = plan(declared=None, migrates=True)
    assert (planned.edits, planned.declarations) == ((), {"s": PLAIN.to_text()})


def test_a_declaration_without_state_is_replaced():
    """Where all keys were discarded, nothing can be misread."""
    planned = plan_steps(set(), {"s": PLAIN.to_text()}, {"s": FlowStep(BOTH)}, StepChoices(), HERE, not_asked)
    assert (planned.edits, planned.declarations) == ((), {"s": BOTH.to_text()})


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (OTHER_KEY, "its key was word string and is user string\n"),
        (OTHER_TYPE, "its key was word string and is word bigint\n"),
        (INT, "the state was a plain JSON value and is int\n"),
        (BOTH, "its key was word string and is user string; the state was a plain JSON value and is int\n"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_choices(step, expected):
    """Each difference is reported; a migration is offered where one helps."""
    with pytest.raises(StepChangedError, match=f"step 's' does not fit its state: {expected}") as raised:
        plan(step=step)
    assert ("migrate=" in raised.value.remedy) == (step.key == WORD)
    assert "--keep-step s" in raised.value.remedy
    assert "--drop-step s" in raised.value.remedy


@pytest.mark.parametrize("step", [OTHER_KEY, INT, BOTH])
def test_keep_leaves_the_state_unchanged(step):
    """The new declaration is recorded, the state stays."""
    planned = plan(step=step, keep=("s",), misread=not_asked if step == OTHER_KEY else reads_all)
    assert (planned.edits, planned.declarations) == ((), {"s": step.to_text()})


@pytest.mark.parametrize("step", [INT, BOTH])
def test_what_the_step_cannot_read_is_not_kept(step):
    """It is reported before the new form is recorded, so that the other choices remain."""
    with pytest.raises(StepChangedError, match=f"the state was a plain JSON value and is int; {UNREAD}\n") as raised:
        plan(step=step, keep=("s",), misread=lambda old, new: UNREAD)
    assert "migrate=" in raised.value.remedy
    assert "--keep-step" not in raised.value.remedy
    assert "--drop-step s" in raised.value.remedy
    assert plan(step=step, keep=("s",), migrates=True).edits == (StepEdit("s", "s", ("from", "plain")),)
    both = plan(step=step, keep=("s",), drop=("s",), misread=lambda old, new: UNREAD)
    assert both.edits == (StepEdit("s", None),)


@pytest.mark.parametrize("declared", [PLAIN, None])
def test_what_the_step_cannot_read_is_dropped(declared):
    """Also where the declaration fits, or was never recorded: states that were edited, for instance."""
    planned = plan(declared=declared, drop=("s",), migrates=True, misread=lambda old, new: UNREAD)
    assert planned.edits == (StepEdit("s", None),)
    assert plan(declared=declared, drop=("s",), misread=reads_all).edits == ()


@pytest.mark.parametrize("step", [OTHER_KEY, INT, BOTH])
def test_drop_starts_from_nothing(step):
    """The state is discarded, the new declaration is recorded."""
    planned = plan(step=step, drop=("s",))
    assert (planned.edits, planned.declarations) == ((StepEdit("s", None),), {"s": step.to_text()})


def test_a_migration_converts_in_place():
    """By the form that was recorded."""
    planned = plan(step=INT, migrates=True)
    assert planned.edits == (StepEdit("s", "s", ("from", "plain")),)
    assert planned.declarations == {"s": INT.to_text()}


def test_a_migration_does_not_excuse_another_key():
    """Only together with keep."""
    with pytest.raises(StepChangedError):
        plan(step=BOTH, migrates=True)
    assert plan(step=BOTH, migrates=True, keep=("s",)).edits == (StepEdit("s", "s", ("from", "plain")),)


def test_renaming_moves_the_declaration():
    """Under the new id the same rules hold."""
    assert plan("old", rename={"old": "s"}).edits == (StepEdit("old", "s"),)
    assert plan("old", rename={"old": "s"}).declarations == {"s": PLAIN.to_text(), "old": None}
    with pytest.raises(StepChangedError):
        plan("old", step=INT, rename={"old": "s"})
    assert plan("old", step=INT, migrates=True, rename={"old": "s"}).edits == (StepEdit("old", "s", ("from", "plain")),)
    kept = plan("old", step=INT, rename={"old": "s"}, keep=("s",), misread=reads_all)
    assert kept.edits == (StepEdit("old", "s"),)


def test_steps_that_the_flow_lacks():
    """They are dropped when that was said, and refused otherwise."""
    with pytest.raises(UnknownStepError, match="'old'; the flow has 's'"):
        plan("old")
    planned = plan("old", drop=("old",))
    assert (planned.edits, planned.declarations) == (
        (StepEdit("old", None),),
        {"s": PLAIN.to_text(), "old": None},
    )


def test_renames_that_cannot_be():
    """To a step that is not there, or that has state while the other has it too."""
    with pytest.raises(UnknownStepError, match="cannot be renamed to 'nowhere', which is not a step"):
        plan(rename={"s": "nowhere"})
    steps, both = {"s": FlowStep(PLAIN)}, {"s": PLAIN.to_text(), "other": PLAIN.to_text()}
    with pytest.raises(UnknownStepError, match="cannot be renamed to 's', which already has state"):
        plan_steps(set(both), both, steps, StepChoices(rename={"other": "s"}), HERE, not_asked)


def test_a_rename_that_was_done_already():
    """Whoever was killed runs the same command again."""
    assert plan(rename={"other": "s"}).edits == ()


def test_a_damaged_declaration_is_damage():
    """Not a change of the flow."""
    with pytest.raises(CorruptPartitionError, match="not a declaration"):
        plan_steps({"s"}, {"s": "{"}, {"s": FlowStep(PLAIN)}, StepChoices(), HERE, not_asked)


def plan_rows(*waiting, declared=("s",), left=None, step=PLAIN, name="s", **choices):
    """The plan where rows of these steps are in quarantine under a flow of one step, and these are declared. left: the
    key by which rows of step s, which was dropped earlier, wait."""
    recorded = {each: PLAIN.to_text() for each in declared}
    if left is not None:
        recorded["$bad s"] = left.to_text()
    return plan_quarantines({*waiting}, recorded, {name: FlowStep(step)}, StepChoices(**choices), HERE)


@pytest.mark.parametrize(
    ("edits", "given"),
    [
        ([], {}),
        ([], {"step": INT}),
        ([], {"step": OTHER_KEY, "keep": ("s",)}),
        ([("$bad s", "$bad t")], {"name": "t", "rename": {"s": "t"}}),
        ([], {"name": "t", "drop": ("s",)}),
        ([], {"name": "t", "declared": ()}),
        ([], {"left": PLAIN, "declared": ()}),
    ],
)
def test_rows_in_quarantine_stay_or_move(edits, given):
    """Rows fit a step of the same key, whatever its state is. Those of a dropped step stay; the next run, where the
    step is not declared any more, needs no option."""
    assert plan_rows("s", **given).edits == tuple(StepEdit(*each) for each in edits)


@pytest.mark.parametrize(
    ("recorded", "waiting", "given"),
    [
        ({"$bad s": PLAIN.to_text()}, "s", {"name": "t", "drop": ("s",)}),
        ({}, "s", {"name": "t", "declared": (), "left": PLAIN}),
        ({"$bad s": None}, "s", {"declared": (), "left": PLAIN}),
        ({"$bad s": None}, "", {"name": "t", "declared": (), "left": PLAIN}),
        ({}, "s", {}),
    ],
)
def test_the_key_of_rows_in_quarantine_is_known_while_their_step_is_gone(recorded, waiting, given):
    """Recorded when the step is dropped, kept while rows wait, and removed when the step is back or nothing waits."""
    assert plan_rows(*waiting, **given).declarations == recorded


@pytest.mark.parametrize(
    ("error", "found", "waiting", "given"),
    [
        (UnknownStepError, "rows of step 's' are in quarantine; the flow has 't'", "s", {"name": "t"}),
        (UnknownStepError, "rows of both", "st", {"name": "t", "rename": {"s": "t"}}),
        (StepChangedError, "the key was word string and is user string", "s", {"step": OTHER_KEY}),
        (StepChangedError, "the key was word string and is word bigint", "s", {"step": OTHER_TYPE, "drop": ("s",)}),
        (StepChangedError, "step 't' has", "s", {"step": OTHER_KEY, "name": "t", "rename": {"s": "t"}}),
        (StepChangedError, "is word bigint", "s", {"step": OTHER_TYPE, "declared": (), "left": PLAIN}),
        (
            StepChangedError,
            "is user string",
            "s",
            {"step": OTHER_KEY, "name": "t", "declared": (), "left": PLAIN, "rename": {"s": "t"}},
        ),
    ],
)
def test_rows_in_quarantine_that_no_step_could_replay_are_refused(error, found, waiting, given):
    """A step whose state is missing is refused, too: because all of its rows have failed, or was dropped in between."""
    with pytest.raises(error, match=found):
        plan_rows(*waiting, **given)
