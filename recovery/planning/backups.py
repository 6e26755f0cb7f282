"""Which copies to restore, and which backups to keep: pure functions of the copies' descriptions.

Every copy of a partition holds a range of epochs. A set of copies, one of each partition, can be restored together
at an epoch that all of them hold, closed by the same execution after the same micro-batch. Among all copies of
different ages this module finds the set with the newest such epoch.

An epoch is *abandoned* when a later execution began at or before it, after a rewind or the restore of an older backup.
At a place of backups, all is abandoned that does not lead to the latest backup. Abandoned epochs are never chosen
unless the user asks for them by number or by time.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recovery.base.ids import NO_EPOCH, Epoch, PartitionIndex
from recovery.base.intervals import format_interval, parse_interval
from recovery.errors import ConfigurationError, EpochNotHeldError, ForeignPartitionError, InconsistentPartitionsError
from recovery.planning.held import holds, merged_spans, unlisted_parts
from recovery.planning.resume import BEGINNING, Cut, ResumePlan, cuts_of, plan_resume
from recovery.planning.timeline import TimelinePart, fork, timeline
from recovery.planning.values import ClosedEpoch, Execution, FoundFile, PartitionDescription

OPERATIONAL = PartitionIndex(0)
"""The partition that holds operational state, which has no epochs."""
MOST_DIGITS = 9
"""The most digits of a number of backups: nobody makes more."""


@dataclass(frozen=True, slots=True)
class PartitionCopy:
    """One copy of one partition. origin: where it is. taken_ms: the wall time at which it was taken.

    changed_ms: when its operational state last changed; 0: unknown. For a plain file, taken_ms is the time of its last
    copying, which says nothing about its age. term: of the writer that made the backup (`Manifest.term`); 0: none.
    """

    description: PartitionDescription
    origin: str
    taken_ms: int
    changed_ms: int = 0
    term: int = 0

    @property
    def index(self) -> PartitionIndex:
        """The index of the copied partition."""
        return self.description.index


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The copies to restore, one per partition in the order of their indexes, and what the restore loses.

    snapshot: the epoch whose state the directory will hold; None: the time before the first epoch.
    newest: the newest epoch in any copy that is not abandoned. kept: the last epoch on the timeline of `newest` that
    stays; it is `epoch`, unless that was abandoned. kept_ms: when `kept` was closed, or when the lost part began; None:
    all of it is lost. limiting: the partitions without a copy that holds `newest`. abandoned: the restored epoch is an
    abandoned one, which the user asked for.
    """

    copies: tuple[PartitionCopy, ...]
    epoch: Epoch
    snapshot: ClosedEpoch | None
    newest: ClosedEpoch | None
    kept: Epoch
    kept_ms: int | None
    limiting: tuple[PartitionIndex, ...]
    abandoned: bool
    resume: ResumePlan

    @property
    def lost_epochs(self) -> int:
        """The number of epochs between `kept` and `newest`."""
        return self.newest.epoch - self.kept if self.newest is not None else 0

    @property
    def lost_ms(self) -> int | None:
        """The wall time from `kept_ms` to the closing of `newest`; None when everything is lost."""
        if self.newest is None:
            return 0
        return None if self.kept_ms is None else max(0, self.newest.closed_ms - self.kept_ms)


def plan_restore(
    copies: Sequence[PartitionCopy],
    *,
    epoch: int | None = None,
    at_ms: int | None = None,
    unusable: Sequence[PartitionCopy] = (),
    latest: Sequence[PartitionCopy] = (),
) -> RestorePlan:
    """Return the plan for the newest common epoch of `copies`, for `epoch`, or for the newest closed by `at_ms`.

    unusable: copies that cannot be restored; their epochs still count as lost. latest: those of the latest backup by
    `recovery.planning.following.age`, usable or not; empty: the copies are files, and their executions say what is
    abandoned.
    Raises NoPartitionsError, ForeignPartitionError, MissingPartitionsError, FlowMismatchError,
    InconsistentPartitionsError or EpochNotHeldError.
    """
    groups = _by_partition(copies, latest)
    held = [_CopiesOfOne(group) for group in groups]
    history = _History([*copies, *unusable], latest)
    shared = {cut for cut in (BEGINNING, *history.closed) if all(cut in each for each in held)}
    if not shared:
        raise _no_common(groups)
    chosen, abandoned = _choose(shared, history, epoch, at_ms)
    newest_wanted = epoch is None and at_ms is None
    picked = tuple(
        _latest(each.copies(chosen), latest)
        if newest_wanted and each.index == OPERATIONAL
        else _closest(each.copies(chosen))
        for each in held
    )
    newest = history.newest
    resume = plan_resume(
        [FoundFile(d.path, d) for d in (_as_restored(copy, history.closed.get(chosen)) for copy in picked)],
        resume_epoch=chosen[0] + 1,
    )
    kept, kept_ms = history.kept(chosen)
    return RestorePlan(
        copies=picked,
        epoch=chosen[0],
        snapshot=history.closed.get(chosen),
        newest=newest,
        kept=kept,
        kept_ms=kept_ms,
        limiting=tuple(each.index for each in held if newest is not None and newest.cut not in each),
        abandoned=abandoned,
        resume=resume,
    )


def _by_partition(copies: Sequence[PartitionCopy], latest: Sequence[PartitionCopy]) -> list[list[PartitionCopy]]:
    """Return the copies of each partition of one store. Raises what `plan_resume` raises for an invalid set."""
    stores = {copy.description.store_id: copy for copy in copies}
    if len(stores) > 1:
        listed = ", ".join(f"{store} in {copy.origin}" for store, copy in sorted(stores.items()))
        raise ForeignPartitionError(
            f"copies of several stores: {listed}", remedy="Keep the copies of each recovery directory apart."
        )
    groups: dict[PartitionIndex, list[PartitionCopy]] = defaultdict(list)
    for copy in copies:
        groups[copy.index].append(copy)
    newest = [max(groups[index], key=lambda copy: (copy in latest, copy.taken_ms)) for index in sorted(groups)]
    # If the newest copies do not fit together, older ones may.
    with contextlib.suppress(InconsistentPartitionsError):
        plan_resume([FoundFile(d.path, d) for d in map(_as_restored, newest)])
    return [groups[index] for index in sorted(groups)]


def _as_restored(copy: PartitionCopy, closed: ClosedEpoch | None = None) -> PartitionDescription:
    """Return the description with the path that the restored copy will have. closed: an epoch that it lists, too."""
    found = replace(copy.description, path=Path(f"part-{copy.index}.sqlite3"))
    if closed is None or any(each.cut == closed.cut for each in found.epochs):
        return found
    return replace(found, epochs=(closed, *found.epochs))


class _CopiesOfOne:
    """The copies of one partition, and which of them hold a snapshot."""

    def __init__(self, copies: Sequence[PartitionCopy]) -> None:
        self.index = copies[0].index
        self._listed: dict[Cut, list[PartitionCopy]] = defaultdict(list)
        self._unlisting = [copy for copy in copies if copy.description.unlisted]
        spans: dict[str, list[tuple[Epoch, Epoch]]] = defaultdict(list)
        for copy in copies:
            for cut in cuts_of(copy.description):
                self._listed[cut].append(copy)
        for copy in self._unlisting:
            for part in unlisted_parts(copy.description):
                spans[part.execution.id].append((part.first, part.last))
        # By execution, spans that do not overlap, in order: thousands of copies hold much the same epochs.
        self._spans = {identity: merged_spans(found) for identity, found in spans.items()}

    def __contains__(self, cut: Cut) -> bool:
        if cut in self._listed:
            return True
        spans = self._spans.get(cut[1], ())
        at = bisect_right(spans, cut[0], key=lambda span: span[0]) - 1
        return at >= 0 and cut[0] <= spans[at][1]

    def copies(self, cut: Cut) -> list[PartitionCopy]:
        """Return the copies that hold a snapshot."""
        listed = self._listed.get(cut, [])
        listing = {id(copy) for copy in listed}
        return listed + [c for c in self._unlisting if id(c) not in listing and holds(c.description, cut)]


def _latest(copies: Sequence[PartitionCopy], latest: Sequence[PartitionCopy]) -> PartitionCopy:
    """Return the copy with the newest operational state, which going back to an older epoch does not undo."""
    origins = {copy.origin for copy in latest}
    return max(
        copies, key=lambda c: (c.origin in origins, c.term, c.changed_ms, c.taken_ms, c.description.newest_epoch)
    )


def _closest(copies: Sequence[PartitionCopy]) -> PartitionCopy:
    """Return the copy with the fewest epochs after the chosen one; of several, the one taken last."""
    return min(copies, key=lambda copy: (copy.description.newest_epoch, -copy.taken_ms))


def _choose(shared: set[Cut], history: _History, epoch: int | None, at_ms: int | None) -> tuple[Cut, bool]:
    """Return the cut to restore, and whether it is abandoned."""
    if epoch is not None:
        wanted = [cut for cut in shared if cut[0] == epoch]
        if not wanted:
            raise _not_held(shared, history, f"epoch {epoch} is not held by copies of every partition")
        chosen = max(wanted, key=lambda cut: (not history.abandoned(cut), history.age(cut)))
        return chosen, history.abandoned(chosen)
    if at_ms is not None:
        closed = [cut for cut in shared if cut in history.closed and history.closed_ms(cut) <= at_ms]
        known = [cut for cut in closed if not history.abandoned(cut, at_ms)]
        if not known:
            error = _not_held(shared, history, "no epoch shared by copies of every partition is that old")
            if BEGINNING in shared:
                error.remedy += " --epoch 0 restores the time before the first epoch: no state at all."
            raise error
        chosen = max(known, key=history.age)
        return chosen, history.abandoned(chosen)
    standing = [cut for cut in shared if not history.abandoned(cut)]
    if not standing:
        newest = max(shared, key=history.age)
        raise InconsistentPartitionsError(
            f"copies of every partition share only epoch {newest[0]}, which a later execution abandoned",
            cause="Some partitions were copied before, others after somebody went back to an older epoch.",
            remedy=f"Add copies taken after that, or restore the abandoned one: --epoch {newest[0]}",
        )
    return max(standing, key=history.age_of_standing), False


class _History:
    """The executions and epochs of all copies together. latest: the copies of the latest backup, if that is known."""

    def __init__(self, copies: Sequence[PartitionCopy], latest: Sequence[PartitionCopy]) -> None:
        self.closed: dict[Cut, ClosedEpoch] = {}
        self._executions: dict[str, Execution] = {}
        self._starts: dict[Cut, tuple[Execution, ...]] = {}
        # Executions in one copy continue each other, so their numbers tell which came first.
        self._later: dict[str, set[str]] = defaultdict(set)
        self._related: dict[str, set[str]] = defaultdict(set)
        # The first writer that listed an execution: of two directories of a store, a later one has the higher term.
        self._terms: dict[str, int] = {}
        for copy in copies:
            for execution in copy.description.executions:
                self._terms[execution.id] = min(copy.term, self._terms.get(execution.id, copy.term))
        for description in {id(copy.description): copy.description for copy in copies}.values():
            ids = [execution.id for execution in description.executions]
            for position, execution in enumerate(description.executions):
                self._executions[execution.id] = execution
                self._related[execution.id].update(ids)
                self._later[execution.id].update(ids[position + 1 :])
            for closed in description.epochs:
                known = self.closed.get(closed.cut)
                if known is None or closed.clock_ms > known.clock_ms:
                    self.closed[closed.cut] = closed
                    self._starts[closed.cut] = description.executions

        self._line: tuple[TimelinePart, ...] | None = None
        if latest:
            longest = max((copy.description for copy in latest), key=lambda each: len(each.executions))
            end = min((copy.description for copy in latest), key=lambda each: each.newest_epoch).newest
            self._line = timeline(longest.executions, end)

    @property
    def newest(self) -> ClosedEpoch | None:
        """The newest epoch in any copy that is not abandoned."""
        standing = [closed for cut, closed in self.closed.items() if not self.abandoned(cut)]
        return max(standing, key=lambda closed: self.age_of_standing(closed.cut), default=None)

    def kept(self, cut: Cut) -> tuple[Epoch, int | None]:
        """Return the last epoch that the timelines of the newest epoch and `cut` share, and when they parted.

        The time is None when the timelines part at the beginning.
        """
        newest = self.newest
        if newest is None:
            return cut[0], None
        way = self._timeline(newest.cut)
        epoch = fork(way, self._timeline(cut))
        if epoch == NO_EPOCH:
            return epoch, None
        [holder] = [part.execution for part in way if part.first <= epoch <= part.last]
        found = [c.closed_ms for c in self.closed.values() if (c.epoch, c.execution) == (epoch, holder)]
        left = next((part.execution for part in way if part.first > epoch), holder)
        return epoch, max(found) if found else self._executions[left.id].started_ms

    def _timeline(self, cut: Cut) -> tuple[TimelinePart, ...]:
        return timeline(self._starts.get(cut, ()), self.closed.get(cut))

    def age(self, cut: Cut) -> tuple[int, int, int]:
        """Return a sort key from old to new: the term, and the recovery clock, which also grows across rewinds."""
        closed = self.closed.get(cut)
        if closed is None:
            return (-1, -1, 0)
        return (self._terms.get(closed.execution.id, 0), closed.clock_ms, closed.epoch)

    def age_of_standing(self, cut: Cut) -> tuple[int, ...]:
        """Return a sort key of cuts that are not abandoned: those that lead to the latest backup are one timeline."""
        return self.age(cut) if self._line is None else (cut[0],)

    def closed_ms(self, cut: Cut) -> int:
        """Return the wall time at which the cut was closed; 0 for the beginning."""
        closed = self.closed.get(cut)
        return closed.closed_ms if closed is not None else 0

    def abandoned(self, cut: Cut, as_of_ms: int | None = None) -> bool:
        """Return whether an execution that began later (and by `as_of_ms`) resumed at or before this epoch."""
        epoch, execution_id, _ = cut
        if epoch == NO_EPOCH:
            return False
        if as_of_ms is None and self._line is not None:
            return not any(
                part.execution.id == execution_id and part.first <= epoch <= part.last for part in self._line
            )
        return any(
            other.resume_epoch <= epoch and self._began_later(other, execution_id)
            for other in self._executions.values()
            if as_of_ms is None or other.started_ms <= as_of_ms
        )

    def _began_later(self, other: Execution, than: str) -> bool:
        if other.id == than:
            return False
        if other.id in self._related[than]:
            return other.id in self._later[than]
        known = self._executions.get(than)
        if known is None:
            return False
        return (self._terms[other.id], other.started_ms) > (self._terms[than], known.started_ms)


def _no_common(groups: Sequence[Sequence[PartitionCopy]]) -> InconsistentPartitionsError:
    """Return an error that names partitions whose newest copy is older than all epochs in the copies of another."""
    newest = [max(group, key=lambda copy: (copy.description.newest_epoch, copy.taken_ms)) for group in groups]
    try:
        plan_resume([FoundFile(d.path, d) for d in map(_as_restored, newest)])
    except InconsistentPartitionsError as error:
        return InconsistentPartitionsError(
            error.found,
            cause=error.cause,
            remedy="Add copies that lie closer together, and choose a longer backup interval (-b) from now on.",
        )
    raise AssertionError("the newest copies share an epoch, but all copies do not")


def _not_held(shared: Iterable[Cut], history: _History, found: str) -> EpochNotHeldError:
    held = sorted({cut[0] for cut in shared})
    times = [history.closed_ms(cut) for cut in shared if cut != BEGINNING]
    span = f", closed over {format_interval((max(times) - min(times)) / 1000)}" if len(times) > 1 else ""
    return EpochNotHeldError(
        found,
        cause="The epoch was closed after the copies were taken, or collected before.",
        remedy=f"Choose an epoch between {held[0]} and {held[-1]}{span}; --dry-run shows what would be restored.",
    )


@dataclass(frozen=True, slots=True)
class KeepRule:
    """A reason to keep a backup: it is among the newest `count`, or younger than `age_s`; then one per `every_s`."""

    count: int | None = None
    age_s: float | None = None
    every_s: float | None = None


def parse_keep(text: str) -> KeepRule:
    """Parse "24" (the newest 24), "7d" (younger than a week) or "90d/1d" (one a day for 90 days).

    Raises ConfigurationError.
    """
    age, slash, every = text.partition("/")
    if not slash and age.strip().isdecimal():
        count = int(age) if len(age) < MOST_DIGITS else 10**MOST_DIGITS
        if count < 1:
            raise ConfigurationError(
                "0 backups cannot be kept", cause="The newest backup is always kept.", remedy="Give 1."
            )
        return KeepRule(count=count)
    rule = KeepRule(age_s=parse_interval(age), every_s=parse_interval(every) if slash else None)
    if slash and not rule.every_s:
        raise ConfigurationError(
            f"{text!r} does not say how many to keep", cause="The part after the slash is not a time.", remedy="30d/1d"
        )
    return rule


def backups_to_keep(taken: Sequence[tuple[str, int]], rules: Sequence[KeepRule], now_ms: int) -> set[str]:
    """Return the ids of backups that any rule keeps, always including the latest. taken: id and wall time of each, in
    the order of `recovery.planning.following.age`, the latest last. An age is counted from `now_ms`, or from the time
    of the latest backup if that is earlier: a clock that is ahead, or backups that have stopped, remove none."""
    if not taken:
        return set()
    latest_first = list(reversed(taken))
    since_ms = min(now_ms, latest_first[0][1])
    kept = {latest_first[0][0]}
    for rule in rules:
        if rule.count is not None:
            kept |= {name for name, _ in latest_first[: rule.count]}
        elif rule.age_s is not None:
            young = [(name, at) for name, at in taken if at >= since_ms - rule.age_s * 1000]
            if rule.every_s is not None:
                # The latest of each slot. Slots are fixed in time, so every run chooses the same backup.
                slots = {at // int(max(1, rule.every_s * 1000)): name for name, at in young}
                kept |= set(slots.values())
            else:
                kept |= {name for name, _ in young}
    return kept
