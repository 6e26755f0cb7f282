"""What this package asks of things that others own, and when: inputs, targets of sinks, places of copies.

Each class that stands for such a thing declares `answers`: for every question, either what it compares and at which
moments, or why it cannot tell. A check that finds a change raises a typed error before anything is touched; what a
class cannot tell counts as unchanged. `docs/outside.md` prints the table from these declarations, and a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Question(Enum):
    """A question about a thing that others own."""

    SAME = "Is it the one that was used before?"
    THERE = "Is everything there that will be used?"
    CHANGED = "Has somebody changed it behind the newest epoch?"
    ABLE = "Can it do what will be asked of it?"
    OWNER = "Whose is it?"


class Moment(Enum):
    """A moment at which a question is asked, always before anything that it would make impossible or wrong."""

    START = "start"
    GOING_BACK = "going back"
    CLOSING = "closing"
    PUBLISHING = "publishing"
    COPYING = "copying"
    RESTORING = "restoring"


@dataclass(frozen=True, slots=True)
class Checked:
    """The question is answered by looking. by: what is compared, as the documentation prints it."""

    by: str
    at: tuple[Moment, ...]


@dataclass(frozen=True, slots=True)
class CannotTell:
    """The question has no answer. why: the reason, as the documentation prints it."""

    why: str


@dataclass(frozen=True, slots=True)
class DoesNotApply:
    """The question has no meaning for this thing."""


Answers: TypeAlias = Mapping[Question, Checked | CannotTell | DoesNotApply]
"""One answer for each question."""
