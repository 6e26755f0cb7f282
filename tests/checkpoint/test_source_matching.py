"""All small changes of what a flow reads: no step goes back, passes over input, or begins again what it has read."""

from __future__ import annotations

import itertools
import os

import pytest

from recovery.checkpoint.source_matching import match_sources
from recovery.checkpoint.source_places import path_in, places_of, read_for
from recovery.errors import FlowMismatchError
from tests.checkpoint.layouts import with_steps

READS = ["x", "x:o", "y", "x!"]
"""A path, by other options, another path, another format."""
USERS = ["", " one", " two", " one two", " +pre+one"]
"""The steps that it is read for: none, one, the other, both in a place each, and one behind another."""
POSITIONS = {1: [(5,)], 2: [(5, 5), (5, 7), (5, None), (None, 5)]}
"""How far the sources have come; None: nothing was read yet."""


def flows(users):
    each = [read + user for read in READS for user in users]
    return [*itertools.product(each, repeat=1), *itertools.product(each, repeat=2)]


class Source:
    """One of a layout: its path and format, and how often it is read for each step, "" for none."""

    def __init__(self, text: str) -> None:
        self.read, *users = text.split(" ")
        self.path = self.read[0]
        self.kind = "!" in self.read
        above = [step.lstrip("+").split("+") for step in users] or [[""]]
        self.steps = [step for steps in above for step in steps]


def undecided(before, positions, after) -> bool:
    """Separate reads of the same for one step, which have come to different positions, differ by their order."""
    pairs = [sources for sources in (before, after) if len({each.read for each in sources}) < len(sources)]
    return len(set(positions)) > 1 and any(set(one.steps) & set(other.steps) for one, other in pairs)


def wrong(before, positions, after, came) -> str | None:
    """What happens to a step that should not; None: nothing."""
    for step, path in itertools.product(["", "one", "two"], "xy"):
        read = [n for n, each in enumerate(before) if each.path == path and step in each.steps]
        held = {positions[n] for n in read} - {None}
        mine = [n for n, each in enumerate(after) if step in each.steps]
        if not held or not mine:
            continue
        may_be = read + [n for n, each in enumerate(before) if each.path == path and positions[n] in held]
        own = [n for n in mine if came.get(n) in may_be]
        here = [n for n in mine if after[n].path == path]
        begun = [n for n in mine if n not in came]
        if here and not set(here) & set(own):
            return f"step {step!r} goes on in {path} from elsewhere"
        counted = [before[n] for n in read if positions[n] is not None]
        alike = [n for n in begun if after[n].path == path or after[n].kind in {each.kind for each in counted}]
        often = sum(each.steps.count(step) for each in counted)
        if alike and sum(after[n].steps.count(step) for n in own) < often and len(held) == 1:
            return f"step {step!r} begins what it may have read in {path}"
        for n in here:
            if n in came and before[came[n]].path != path:
                return f"step {step!r} goes on in {path} from the position in another path"
    return None


@pytest.mark.long
def test_all_changes_of_up_to_two_sources():
    """A flow that stays the same, in whatever order, is never refused."""
    check(share=int(os.environ.get("RECOVERY_TEST_SOURCE_STRIDE", "1")))


def test_a_share_of_all_changes():
    """The same for some of them."""
    check(share=23)


def check(share: int) -> None:
    seed = int(os.environ.get("RECOVERY_TEST_SEED", "1"))
    later = [(layout, [Source(each) for each in layout], with_steps(layout)) for layout in flows([*USERS, " three"])]
    accepted = total = 0
    for layout in flows(USERS):
        before, places = [Source(each) for each in layout], with_steps(layout)
        for positions in POSITIONS[len(layout)]:
            unread = {n for n, position in enumerate(positions) if position is None}
            for number, (to, after, wanted) in enumerate(later):
                if (number + seed) % share or undecided(before, positions, after):
                    continue
                total += 1
                case = f"{layout} {positions} -> {to}"
                try:
                    came = match_sources(
                        places, wanted, unread, lambda then, at=positions: len({at[n] for n in then}) < 2
                    )
                except FlowMismatchError:
                    assert sorted(to) != sorted(layout), case
                    continue
                accepted += 1
                found = wrong(before, positions, after, came)
                assert found is None, f"{case}: {found}, {came}"
    assert total / 10 < accepted < total


def test_steps_in_a_name():
    """In any order, each once."""
    assert read_for(["two", "one", "two"]) == read_for(["one", "two"])


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"path": "in/", "maxfilespertrigger": "1"}, "in/"),
        ({"subscribe": "b, a", "kafka.bootstrap.servers": "one:9092"}, "a,b"),
        ({"subscribepattern": "a.*", "groupidprefix": "x"}, "a.*"),
        ({"assign": '{"a":[0,1]}'}, '{"a":[0,1]}'),
        ({"table": "lake.orders"}, "lake.orders"),
        ({"rowspersecond": "1"}, ""),
    ],
)
def test_the_option_that_says_what_a_source_reads(options, path):
    """Servers, passwords and sizes say how a source reads, not what."""
    assert path_in(options) == path


def test_a_record_of_an_earlier_version_names_the_path_by_all_options():
    """The options still match, also in another order, and one source at a time may change them."""

    def places(*names):
        return places_of(names, [False] * len(names), names)

    before = places("kafka x1 x1", "kafka y1 y1")
    assert match_sources(before, places("kafka y y1", "kafka x x1"), set(), lambda then: False) == {0: 1, 1: 0}
    assert match_sources(before, places("kafka y y1", "kafka x x2"), set(), lambda then: False) == {0: 1, 1: 0}
