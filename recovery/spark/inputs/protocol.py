"""What each kind of source answers when a run is about to start.

`recovery.spark.inputs.look` asks all sources of a flow. To add a kind: a class with `answers`, `look` and `goes_on`,
and its format in `recovery.spark.inputs.kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from recovery.base.outside import Answers
from recovery.checkpoint.reached import Reached
from recovery.errors import RecoveryError
from recovery.planning.lag import PartLag
from recovery.planning.lost_input import Loss, Needed, There

RUN_ONCE = "To go on without it, run once with --lose-input {} (lose_input)."


@dataclass(frozen=True, slots=True)
class Resumes:
    """Where a run resumes in one source. at: the source's offset; None: the source begins. reached: what was read
    beyond that. identities: what distinguished its parts when the snapshot was made, by their names; several texts with
    spaces between them if sources had parts of one name. left: where runs, or other sources of this one, have stopped
    reading parts that the flow had read, by their names, in the source's own form."""

    at: str | None
    reached: Reached = field(default_factory=Reached)
    identities: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look found. errors: what else is wrong, by the name whose acceptance lifts it. causes: probable causes of
    losses, by source. identities: what distinguishes the parts now, to be kept with the position. left: where
    the flow stops reading parts, by their names. back: parts that the flow had left, and reads again. said: what
    happens if the error of a name is accepted, where that leaves nothing out."""

    needed: tuple[Needed, ...] = ()
    there: Mapping[tuple[str, str], There] = field(default_factory=dict)
    errors: tuple[tuple[str, RecoveryError], ...] = ()
    causes: Mapping[str, str] = field(default_factory=dict)
    identities: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    back: tuple[str, ...] = ()
    said: Mapping[str, str] = field(default_factory=dict)


class StreamInput(Protocol):
    """One source of a flow."""

    answers: ClassVar[Answers]
    tells_lag: ClassVar[bool]
    """Whether `behind` says how much there is."""

    def look(self) -> Looked:
        """Look at the input, and change nothing. Raises the error of what no option accepts."""
        ...

    def goes_on(self, lost: Sequence[Loss]) -> str | None:
        """Return the offset from which Spark reads on without what is lost, which is accepted; None: as before."""
        ...

    def behind(self, at: str) -> Sequence[PartLag]:
        """Return how much there is beyond an offset, part by part. Called by one thread during a run; changes nothing.
        Raises if the input cannot be asked."""
        ...

    def close(self) -> None:
        """Release what `behind` has opened."""
        ...


class SilentInput:
    """The part of a `StreamInput` that does not say how much there is beyond an offset."""

    tells_lag: ClassVar[bool] = False

    def behind(self, at: str) -> Sequence[PartLag]:
        return ()

    def close(self) -> None:
        """Do nothing: nothing was opened."""
