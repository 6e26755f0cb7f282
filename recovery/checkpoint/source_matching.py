"""Which of a flow's sources are those of the previous flow: see `recovery.checkpoint.sources`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from recovery.checkpoint.source_places import (
    SourcePlaces,
    format_and_options,
    format_and_path,
    kind_of,
    named_steps,
    path_of,
    steps_of,
    with_steps,
)
from recovery.errors import FlowMismatchError

InStep = Callable[[Sequence[int]], bool]


def match_sources(before: SourcePlaces, places: SourcePlaces, unread: set[int], in_step: InStep) -> dict[int, int]:
    """Return, for each source of the flow that was read before, which source of the previous flow it was.

    unread: previous sources without a position; they may begin, or be left out. in_step: returns whether separately
    read sources have reached the same position. Raises FlowMismatchError when a source is gone, or the matching is
    ambiguous.
    """
    matching = _Matching(before, places, unread, in_step)
    matching.by_name()
    matching.by_read()
    matching.by_path()
    gone = matching.by_kind()
    matching.check_steps(unread.union(gone))
    if gone:
        old, new = len(before.others()), len(places.others())
        raise FlowMismatchError(
            f"the flow reads {new} sources, and the saved position has {old}, of which {len(gone)} "
            f"{'is' if len(gone) == 1 else 'are'} not found in the flow",
            cause="A source was removed or changed its format; or its path or options changed while another was added.",
            remedy="Read the same sources again, even one without new input. Change paths and options in "
            "one run and add sources in another; or begin again in another recovery directory.",
        )
    return matching.came


def match_starts(before: SourcePlaces, places: SourcePlaces, unread: set[int], in_step: InStep) -> dict[int, int]:
    """Return which source of `before` each source was, before any micro-batch counts, when only the starts of the
    sources matter. A source that is gone is dropped; one with another path starts by itself."""
    matching = _Matching(before, places, unread, in_step)
    matching.by_name()
    matching.by_read()
    matching.by_path()
    return matching.came


class _Matching:
    """The matching so far. came: the previous source of each matched source. _left: the previous sources without a
    match. _spare: previous sources that may be left out, because others are read as they were."""

    def __init__(self, before: SourcePlaces, places: SourcePlaces, unread: set[int], in_step: InStep) -> None:
        self.came: dict[int, int] = {}
        self._before, self._places = before, places
        self._old, self._new = before.others(), places.others()
        self._known = None not in self._old.values() and None not in self._new.values()
        self._steps = {""}.union(*map(steps_of, self._new.values()))
        self._in_step = in_step
        self._unread = unread
        self._left = set(self._old)
        self._spare = set[int]()
        self._merged = set[int]()

    def by_name(self) -> None:
        """Match the same reads for the same steps."""
        for then, now in _alike(self._old, self._new, with_steps):
            if len(then) == len(now):
                self._found(then, now)

    def by_read(self) -> None:
        """Match the same reads, for any steps."""
        same = set(self.came.values())
        for then, now in _alike(self._old, self._new, format_and_options):
            for each in now:
                if each not in self.came:
                    # A read for a step that it had before resumes where that step is. A read for no step is matched
                    # by order.
                    wanted = steps_of(self._new[each]) if named_steps(self._new[each]) else set[str]()
                    its = [one for one in then if wanted & steps_of(self._old[one])]
                    its = [one for one in its if one not in same] or its
                    if its and not self._in_step(its):
                        raise _unclear(wanted & set[str]().union(*(steps_of(self._old[one]) for one in its)))
                    self._found(its[:1], [each])
                    self._merged.update(its[1:])
            rest = [each for each in then if each in self._left]
            more = [each for each in now if each not in self.came]
            if len(rest) == len(more) or not rest or self._in_step(then):
                # If it is read more often, each read resumes where all of them were. If it is read less often, the
                # others were left out, or changed into sources that later rules match.
                self._found(rest + then[:1] * len(more), more)
                self._spare |= set(rest[len(more) :])
            elif not more and len(rest) < len(then):
                # It was read for steps that are gone; if these came back, they would begin where the others are.
                self._spare |= {each for each in rest if self._serves_no_step(each)}
        self._spare |= self._merged
        self._left -= self._unread

    def by_path(self) -> None:
        """Match the same path, read with other options."""
        old = {source: self._old[source] for source in sorted(self._left)}
        for every, now in _alike(old, self._begun(), format_and_path):
            then = [one for one in every if one not in self._merged or self._share_steps(one, now[0])]
            apart = len(then) > 1 and not (self._spare.issuperset(then) and self._in_step(then))
            if len(now) == 1 and then and not apart:
                self._found(then, now)

    def by_kind(self) -> list[int]:
        """Match sources of one kind that have another path; return the sources that are gone. A source counts as left
        out only if no new one can be it."""
        # A source that was read for steps that are gone, or that now share a read, needs no match.
        left = self._left - self._merged - {one for one in self._left & self._spare if self._serves_no_step(one)}
        begun = self._begun()
        gone: list[int] = []
        for kind in dict.fromkeys(self._kind(self._old[source]) for source in sorted(left)):
            then = [source for source in sorted(left) if self._kind(self._old[source]) == kind]
            now = [source for source, name in begun.items() if self._kind(name) == kind]
            if len(then) == len(now):
                pairs = self._by_steps(then, now)
                self.came |= pairs
                gone += [one for each, one in pairs.items() if self._leaves(one, each)]
            elif now or not self._spare.issuperset(then):
                gone += then
        return gone

    def check_steps(self, but: set[int]) -> None:
        """Raise FlowMismatchError unless every step resumes at its own position in the sources not in `but`."""
        for one in sorted(self._old.keys() - but) if self._known else ():
            same = [other for other in self._old if self._is_same(one, other)]
            kept = [source for source in self.came if self.came[source] in same]
            here = [source for source in kept if self._is_of_path(source, one)]
            for source in filter(partial(self._may_be, one), self._new):
                # For a source with the path of `one`, only reads of that path count: other paths do not replace it.
                read_on = here if self._is_of_path(source, one) else kept
                if source in self.came:
                    self._check_position(one, source, same, read_on)
                else:
                    self._check_begun(one, source, same, read_on)

    def _check_begun(self, one: int, source: int, same: Sequence[int], read_on: Sequence[int]) -> None:
        """Raise FlowMismatchError if a step reads `one` less often or no more, and begins a source that may be the same
        one."""
        both = steps_of(self._old[one]) & steps_of(self._new[source])
        lost = {step for step in both if self._places.count(read_on, step) < self._before.count(same, step)}
        if lost:
            raise _would_start_again(lost)

    def _check_position(self, one: int, source: int, same: Sequence[int], read_on: Sequence[int]) -> None:
        """Raise FlowMismatchError if a step no longer reads `one`, but resumes one that may be the same elsewhere."""
        other = self.came[source]
        its_own, moved = self._is_of_path(source, one), not self._is_of_path(source, other)
        if other in same or not (its_own or moved):
            return
        over = steps_of(self._old[one]) & steps_of(self._new[source]) - self._all_steps(read_on)
        if not (its_own and moved):
            # These steps have read `other`, too. But a position in another path is not a position in this one.
            over -= steps_of(self._old[other])
        if over:
            raise _unclear(over)

    def _is_of_path(self, source: int, one: int) -> bool:
        return path_of(self._new[source]) == path_of(self._old[one])

    def _is_same(self, one: int, other: int) -> bool:
        """Return whether a step can resume from either of the two with the same result."""
        same_path = path_of(self._old[one]) == path_of(self._old[other])
        return one == other or (same_path and self._in_step([one, other]))

    def _found(self, then: Iterable[int], now: Iterable[int]) -> None:
        self.came.update(zip(now, then, strict=False))
        self._left.difference_update(self.came.values())

    def _begun(self) -> dict[int, str | None]:
        """Return the sources without a match so far."""
        return {source: name for source, name in self._new.items() if source not in self.came}

    def _share_steps(self, one: int, each: int) -> bool:
        return not named_steps(self._old[one]).isdisjoint(named_steps(self._new[each]))

    def _serves_no_step(self, one: int) -> bool:
        """Return whether the flow has none of the steps that `one` was read for."""
        return steps_of(self._old[one]).isdisjoint(self._steps)

    def _leaves(self, one: int, each: int) -> bool:
        """Return whether `each` does not replace `one`: it is for other steps, and a step that read `one` is in the
        flow; or it reads a path that was read before."""
        there = named_steps(self._old[one]) & self._steps
        if there and named_steps(self._new[each]) and not self._share_steps(one, each):
            return True
        path = path_of(self._new[each])
        return path != path_of(self._old[one]) and path in map(path_of, self._old.values()) and self._known

    def _by_steps(self, then: Sequence[int], now: Sequence[int]) -> dict[int, int]:
        """Return which of `then` each of the equally many `now` was: by their steps if unambiguous, else by order."""
        shared = {each: [one for one in then if self._share_steps(one, each)] for each in now}
        clear = {each: ones[0] for each, ones in shared.items() if len(ones) == 1}
        clear = {each: one for each, one in clear.items() if sum(one in ones for ones in shared.values()) == 1}
        rest = (one for one in then if one not in clear.values())
        return {each: clear[each] if each in clear else next(rest) for each in now}

    def _all_steps(self, sources: Iterable[int]) -> set[str]:
        return set[str]().union(*(steps_of(self._new[source]) for source in sources))

    def _may_be(self, one: int, each: int) -> bool:
        """Return whether the two may have the same rows: they have the same kind or the same path."""
        old, new = self._old[one], self._new[each]
        return kind_of(old) == kind_of(new) or path_of(old) == path_of(new)

    def _kind(self, name: str | None) -> str:
        return kind_of(name) if self._known else ""


def _unclear(steps: Iterable[str]) -> FlowMismatchError:
    return FlowMismatchError(
        f"{_listed(steps)} would continue from the position of another read",
        cause="The flow now reads once what it read separately, or with other options, before. Input arrived in "
        "between, so these reads are at different positions.",
        remedy="Read it separately and with the same options, as before; or begin again in another directory.",
    )


def _would_start_again(steps: Iterable[str]) -> FlowMismatchError:
    return FlowMismatchError(
        f"{_listed(steps)} would read a source from its start instead of continuing",
        cause="Several steps read it, and its path or options changed: such a source cannot be told from a new one.",
        remedy="In one run read it separately there, with its old path and options; change those in the next run. "
        "To replace a source, add the new one in one run and remove the old one in the next.",
    )


def _listed(steps: Iterable[str]) -> str:
    return " and ".join(f"step {each!r}" if each else "output without a step" for each in sorted(steps))


def _alike(
    old: Mapping[int, str | None], new: Mapping[int, str | None], by: Callable[[str], str]
) -> Iterator[tuple[list[int], list[int]]]:
    """Return groups of previous and present sources whose names have the same key `by`."""
    groups: dict[str, tuple[list[int], list[int]]] = {}
    for side, sources in enumerate((old, new)):
        for source, name in sources.items():
            if name is not None:
                groups.setdefault(by(name), ([], []))[side].append(source)
    return ((then, now) for then, now in groups.values() if then and now)
