"""Sources whose input cannot be looked at, or needs no look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from recovery.base.outside import Answers, CannotTell, DoesNotApply, Question
from recovery.planning.lost_input import Loss
from recovery.spark.inputs.protocol import Looked, SilentInput

_RUNS_ITS_CODE = "Only the source's own code knows its input: Spark asks it for offsets and rows, and for nothing else."


class _Unseen(SilentInput):
    """The `StreamInput` of a source at which a run does not look."""

    def look(self) -> Looked:
        return Looked()

    def goes_on(self, lost: Sequence[Loss]) -> str | None:
        return None


class OtherInput(_Unseen):
    """A source of another format, such as one in Python: what it lacks is its own error, in its first micro-batch."""

    answers: ClassVar[Answers] = {
        Question.SAME: CannotTell(_RUNS_ITS_CODE),
        Question.THERE: CannotTell(_RUNS_ITS_CODE),
        Question.CHANGED: CannotTell(_RUNS_ITS_CODE),
        Question.ABLE: CannotTell(_RUNS_ITS_CODE),
        Question.OWNER: DoesNotApply(),
    }


class GeneratedInput(_Unseen):
    """A source that makes its rows from their numbers or from the time, as `rate` and the timeouts of steps do: nobody
    else owns them, so nothing can be lost."""

    answers: ClassVar[Answers] = {question: DoesNotApply() for question in Question}
