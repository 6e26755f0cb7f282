"""What a starting flow does with the state of its steps: a pure function of both declarations.

A step claims state of the same id if it declares the same key and a type that can read the state. Anything else is an
error that lists the choices, so no state is silently lost, left behind or misread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from recovery.base.ids import StepId
from recovery.base.reserved import quarantine_of, quarantined_step
from recovery.errors import CorruptPartitionError, StepChangedError, UnknownStepError
from recovery.planning.values import StepEdit
from recovery.values.declaration import Convert, Declaration, Form, misfits

Misread = Callable[[StepId, StepId], str | None]
"""Given the step that holds states and the flow's step that takes them over, returns the first state that the latter
cannot read, and why; None when it reads all."""


@dataclass(frozen=True, slots=True)
class FlowStep:
    """A step of the flow: its declaration, and how it converts states of another form, if it can."""

    declaration: Declaration
    migrate: Callable[[Form], Convert] | None = None


@dataclass(frozen=True, slots=True)
class StepChoices:
    """The user's choices for state that does not fit the flow."""

    drop: Sequence[str] = ()
    rename: Mapping[str, str] | None = None
    keep: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """edits: changes of stored state before the first micro-batch. declarations: to record with the next epoch, by step
    id; None for removed steps."""

    edits: tuple[StepEdit, ...]
    declarations: Mapping[str, str | None]


def plan_steps(
    held: AbstractSet[StepId],
    declared: Mapping[str, str],
    steps: Mapping[StepId, FlowStep],
    choices: StepChoices,
    path: Path,
    misread: Misread,
) -> StepPlan:
    """Return the plan for state of the steps `held`, `declared` by the runs that wrote it, in a flow of `steps`.

    State without a recorded declaration is accepted. `misread` reads every state, so it is called only if the user
    chose to keep state of another form, or to drop state that the step cannot read.
    Raises UnknownStepError for state that no step claims, StepChangedError for state that its step cannot read,
    CorruptPartitionError for an invalid declaration.
    """
    renamed = _renames(held, steps, choices.rename or {})
    edits: list[StepEdit] = []
    for old in sorted(held):
        new = renamed.get(old, old)
        if new not in steps:
            if old in choices.drop:
                edits.append(StepEdit(old, None))
            continue
        edit = _claim(old, new, declared.get(old), steps[new], choices, path, misread)
        if edit is not None:
            edits.append(edit)
    gone = {edit.old for edit in edits if edit.new is None}
    unknown = sorted(held - steps.keys() - renamed.keys() - gone)
    if unknown:
        named = " or ".join(f"--rename-step {step}=NEW or --drop-step {step}" for step in unknown[:2])
        raise UnknownStepError(
            f"the partitions hold state of {_listed(unknown)}; the flow has {_listed(sorted(steps)) or 'no steps'}",
            path=path,
            remedy=f"Give {named}.",
        )
    wanted: dict[str, str | None] = {step: each.declaration.to_text() for step, each in steps.items()}
    wanted = {step: text for step, text in wanted.items() if declared.get(step) != text}
    wanted.update((step, None) for step in declared if step not in steps and quarantined_step(step) is None)
    return StepPlan(tuple(edits), wanted)


def plan_quarantines(
    waiting: AbstractSet[StepId],
    declared: Mapping[str, str],
    steps: Mapping[StepId, FlowStep],
    choices: StepChoices,
    path: Path,
) -> StepPlan:
    """Return the edits that move the rows in quarantine of renamed steps, where rows of the steps `waiting` are there.

    Rows of a step that is dropped stay. Until the step comes back, its declaration is recorded under the id of its
    quarantine: the rows wait by that key.
    Raises UnknownStepError if rows wait under both names, or for a step that the flow does not have any more, because
    later rows would pass them under another name; StepChangedError if they wait by a key that is not the step's any
    more; CorruptPartitionError for an invalid declaration.
    """
    edits, rename = list[StepEdit](), choices.rename or {}
    left = {step: text for step, text in declared.items() if quarantined_step(step) is not None}
    wanted: dict[str, str | None] = dict.fromkeys(left)
    for old in sorted(waiting):
        new, own = StepId(rename.get(old, old)), quarantine_of(old)
        if new not in steps:
            if old in declared and old not in choices.drop:
                raise UnknownStepError(
                    f"rows of step {old!r} are in quarantine; the flow has {_listed(sorted(steps)) or 'no steps'}",
                    path=path,
                    remedy=f"Give --rename-step {old}=NEW to take them along, or --drop-step {old} to leave them.",
                )
            wanted.pop(own, None)
            if old in declared:
                wanted[own] = declared[old]
            continue
        if new != old and new in waiting:
            raise UnknownStepError(
                f"step {old!r} cannot be renamed to {new!r}: rows of both are in quarantine",
                cause="",
                remedy="Replay or drop those of one of them: python -m recovery quarantine list DIR.",
            )
        text = declared.get(old, left.get(own))
        if text is not None and new not in choices.keep:
            with _declared_by(old, path):
                before = Declaration.from_text(text)
            _check_waiting_key(old, new, before, steps[new].declaration, path)
        if new != old:
            edits.append(StepEdit(own, quarantine_of(new)))
    return StepPlan(tuple(edits), wanted)


def _check_waiting_key(old: StepId, new: StepId, before: Declaration, now: Declaration, path: Path) -> None:
    if before.key != now.key:
        raise StepChangedError(
            f"step {new!r} has rows in quarantine, which wait by another key: "
            f"the key was {before.key_text()} and is {now.key_text()}",
            path=path,
            remedy="Change the key back and replay them first, or drop them: python -m recovery quarantine drop DIR "
            f"--step {old}.",
        )


def _renames(
    held: AbstractSet[StepId], steps: Mapping[StepId, FlowStep], rename: Mapping[str, str]
) -> dict[StepId, StepId]:
    for old, new in rename.items():
        # When the same command runs again, the step is already renamed.
        both = new in held and old in held
        if new not in steps or both:
            what = "already has state" if both else "is not a step of the flow"
            raise UnknownStepError(
                f"step {old!r} cannot be renamed to {new!r}, which {what}", cause="", remedy="Check the names."
            )
    return {StepId(old): StepId(new) for old, new in rename.items() if old in held}


def _claim(
    old: StepId,
    new: StepId,
    declared: str | None,
    step: FlowStep,
    choices: StepChoices,
    path: Path,
    misread: Misread,
) -> StepEdit | None:
    """Return the edit with which step `new` of the flow takes over the state of `old`; None when it needs none."""
    keeps, drops = new in choices.keep, new in choices.drop
    key: list[str] = []
    state: list[str] = []
    if declared is not None:
        with _declared_by(old, path):
            before, now = Declaration.from_text(declared), step.declaration
            state = list(misfits(before.state, now.state))
        if before.key != now.key and not keeps:
            key = [f"its key was {before.key_text()} and is {now.key_text()}"]
        if state and not key and step.migrate is not None:
            return StepEdit(old, new, step.migrate(before.state))
    unread = None
    if not key and (keeps or not state):
        # Keeping state records the new form, so nothing could convert states left in the old one later.
        unread = misread(old, new) if state or drops else None
        if unread is None:
            return None if old == new else StepEdit(old, new)
    if drops:
        return StepEdit(old, None)
    raise _changed(new, key, state, unread, path)


@contextmanager
def _declared_by(step: StepId, path: Path) -> Iterator[None]:
    """Context manager that raises CorruptPartitionError for a declaration that cannot be read."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptPartitionError(
            f"what step {step!r:.80} declared of its state cannot be read: {error}", path=path
        ) from error


def _changed(step: StepId, key: list[str], state: list[str], unread: str | None, path: Path) -> StepChangedError:
    migrate = "" if key else "the step migrate=FUNCTION to turn its states into the new form, "
    keep = f"--keep-step {step} if the state is right as it is, " if unread is None else ""
    found = [*key, *state, *([unread] if unread is not None else [])]
    return StepChangedError(
        f"step {step!r} does not fit its state: {'; '.join(found)}",
        path=path,
        remedy=f"Change the step back, or give {migrate}{keep}or --drop-step {step} to start again without it.",
    )


def _listed(steps: Sequence[str]) -> str:
    return ", ".join(map(repr, steps))
