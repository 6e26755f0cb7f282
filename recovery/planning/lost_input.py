"""Whether a run can read its input from the position that it resumes at: a pure function of values.

A source consists of parts: files, partitions of a topic, one table. A run reads each part from a position on. Epochs
that the start discards, and micro-batches that no epoch closed, may have read further: that much has to be there as
well, since the run reads it again. What comes after that nobody has read, so it may be missing.

    needed.begin ≤ needed.reached       what the run reads, and what was read before
    there.first  ≤ there.end            what is there now

The run reads exactly what was read before if `there.first <= begin`, `reached <= there.end`, and the part is the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from recovery.base.wording import counted
from recovery.errors import InputLostError, InputRewrittenError, RecoveryError

SHOWN_PARTS = 5
"""The number of parts that an error names for each source; all further parts are counted."""


class PartKind(Enum):
    """What a part of a source is, with the unit of positions in it. A file that is read as a whole is one position."""

    FILE = "file"
    GROWING_FILE = "byte"
    TOPIC_PARTITION = "offset"
    TABLE = "version"


@dataclass(frozen=True, slots=True)
class Needed:
    """A part of a source that a run reads from position `begin` on.

    source: the name by which a user accepts its loss. part: the part's name; "" if the source is one part. reached: how
    far it was read before, by what the start discards; at least `begin`. identity: what distinguishes it from another
    part of the same name; None: unknown.
    """

    source: str
    part: str
    kind: PartKind
    begin: int
    reached: int
    identity: str | None = None


@dataclass(frozen=True, slots=True)
class There:
    """What is there of a part now: the positions from `first` up to `end`, which is excluded. identity: as above."""

    first: int
    end: int
    identity: str | None = None


class Change(Enum):
    """What happened to a part."""

    REMOVED = "removed"
    TRIMMED = "trimmed"
    SHORTENED = "shortened"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Loss:
    """A part that a run cannot read as it was read before. there: None: the part is gone."""

    needed: Needed
    change: Change
    there: There | None

    @property
    def lost(self) -> tuple[int, int]:
        """The first position that is lost, and the one after the last, as far as is known."""
        needed, there = self.needed, self.there
        if self.change is Change.TRIMMED and there is not None:
            # What was cut off at the end as well counts with it.
            return needed.begin, there.first if there.end >= needed.reached else max(there.first, needed.reached)
        if self.change is Change.SHORTENED and there is not None:
            return there.end, needed.reached
        return needed.begin, needed.reached

    @property
    def goes_on_at(self) -> int | None:
        """Where a run reads on if the loss is accepted; None: the part is left out.

        Nothing that is still there is left out, and nothing that was counted is read again.
        """
        if self.there is None:
            return None
        return self.needed.begin if self.change is Change.SHORTENED else self.there.first

    @property
    def is_rewritten(self) -> bool:
        """Whether content was changed, and no record taken away that had still to be read for the first time."""
        return self.needed.kind is PartKind.GROWING_FILE or (
            self.change is Change.REPLACED and self.needed.kind is not PartKind.TOPIC_PARTITION
        )


def loss_of(needed: Needed, there: There | None) -> Loss | None:
    """Return what is lost of one part; None: the run can read it as it was read before."""
    if there is None:
        return Loss(needed, Change.REMOVED, None)
    if None not in (needed.identity, there.identity) and needed.identity != there.identity:
        return Loss(needed, Change.REPLACED, there)
    if there.end < needed.begin:
        # It ends before what the snapshot counts, so it is another part, or was cut off.
        return Loss(needed, Change.REPLACED, there)
    if there.first > needed.begin:
        return Loss(needed, Change.TRIMMED, there)
    if there.end < needed.reached:
        return Loss(needed, Change.SHORTENED, there)
    return None


def losses(needed: Iterable[Needed], there: Mapping[tuple[str, str], There]) -> tuple[Loss, ...]:
    """Return what is lost of the parts that a run needs. there: what was found, by source and part; without parts that
    are gone."""
    found = (loss_of(each, there.get((each.source, each.part))) for each in needed)
    return tuple(loss for loss in found if loss is not None)


def check_losses(
    lost: Sequence[Loss],
    accepted: Collection[str],
    discards: str | None = None,
    causes: Mapping[str, str] | None = None,
) -> None:
    """Raise unless the loss of every source is accepted by its name.

    discards: the epochs that the start would discard, as text; None: none. causes: probable causes, by source. Raises
    InputLostError if something is gone, otherwise InputRewrittenError, naming all sources that are not accepted.
    """
    refused = [loss for loss in lost if not is_accepted(loss.needed.source, accepted)]
    if not refused:
        return
    sources = list(dict.fromkeys(loss.needed.source for loss in refused))
    texts = [_parts_text([loss for loss in refused if loss.needed.source == source]) for source in sources]
    options = " ".join(f"--lose-input {shlex.quote(source)}" for source in sources)
    again = f"the run would discard {discards}" if discards else "the run would read on from its position"
    kind: type[RecoveryError] = InputLostError
    if all(loss.is_rewritten for loss in refused):
        kind = InputRewrittenError
    cause = " ".join(dict.fromkeys(filter(None, ((causes or {}).get(source) for source in sources))))
    raise kind(
        f"{'; '.join(texts)}. Nothing was changed: {again}, and could not read that input as it was",
        cause=cause or None,
        remedy="Put the input back as it was, and run the same command again. To go on without what is lost, run once "
        f"with {options} (lose_input={tuple(sources)!r}).",
    )


def is_accepted(source: str, accepted: Iterable[str]) -> bool:
    """Return whether a user accepts the loss of a source. A slash at the end of a path makes no difference."""
    return source.rstrip("/") in {each.rstrip("/") for each in accepted}


def left_out_text(lost: Sequence[Loss]) -> str:
    """Return what an accepted loss leaves out of one source, as text for people."""
    replaced = [loss for loss in lost if loss.there is not None and loss.change is Change.REPLACED]
    gone = [loss for loss in lost if loss not in replaced]
    texts = []
    if gone:
        texts.append(f"left out: {_parts_text(gone)}")
    if replaced:
        texts.append(f"read as it is now: {_parts_text(replaced)}")
    return "; ".join(texts)


def _parts_text(lost: Sequence[Loss]) -> str:
    """Return what happened to parts of one source; files that are read as a whole share a sentence."""
    texts: list[str] = []
    for change, verb in ((Change.REMOVED, "gone"), (Change.REPLACED, "changed since")):
        names = [loss.needed.part for loss in lost if loss.needed.kind is PartKind.FILE and loss.change is change]
        if names:
            shown = ", ".join(names[:SHOWN_PARTS])
            more = f" and {len(names) - SHOWN_PARTS} more" if len(names) > SHOWN_PARTS else ""
            texts.append(
                f"{counted(len(names), 'file')} below {lost[0].needed.source} that {_was_were(len(names))} read "
                f"{'is' if len(names) == 1 else 'are'} {verb}: {shown}{more}"
            )
    ranged = [loss for loss in lost if loss.needed.kind is not PartKind.FILE]
    texts += map(_range_text, ranged[:SHOWN_PARTS])
    if len(ranged) > SHOWN_PARTS:
        texts.append(f"and {counted(len(ranged) - SHOWN_PARTS, 'part')} more")
    return "; ".join(texts)


def _range_text(loss: Loss) -> str:
    unit, source, part = loss.needed.kind.value, loss.needed.source, loss.needed.part
    name = {
        PartKind.TOPIC_PARTITION: f"topic {source}, partition {part}",
        PartKind.TABLE: f"the table {source}",
    }.get(loss.needed.kind, f"the file {part}")
    first, end = loss.lost
    span = f"{unit}s {first} to {end - 1}" if end - first > 1 else f"{unit} {first}"
    if loss.there is None:
        return f"{name} is gone{f', with {span}' * (first < end)}"
    if loss.change is Change.TRIMMED:
        now = f"it begins with {unit} {loss.there.first} now"
        return f"{name}, {span} {'are' if end - first > 1 else 'is'} gone: {now}"
    if loss.change is Change.SHORTENED:
        now = f"it ends before {unit} {loss.there.end} now"
        return f"{name}, {span} {'are' if end - first > 1 else 'is'} gone: {now}"
    return f"{name} is another one than the one read before, or lost what was read{f': {span}' * (first < end)}"


def _was_were(count: int) -> str:
    return "was" if count == 1 else "were"
