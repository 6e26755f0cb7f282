"""Which partitions of a store come back, and at which owners."""

from __future__ import annotations

import random

import pytest

from recovery.planning.backups import PartitionCopy
from recovery.planning.replacement import Replacement, lacking, spread
from tests.planning.test_copies import part


def copies(*known: tuple[int, int]) -> list[PartitionCopy]:
    """Copies at a place: index, executions that the copy knows."""
    return [PartitionCopy(part(index, executions, 1, count=3), f"{index}", 0) for index, executions in known]


@pytest.mark.parametrize(
    ("held", "place", "expected"),
    [
        ({0: 2, 1: 2, 2: 2}, [(0, 2), (1, 2), (2, 2)], []),
        ({0: 2, 2: 2}, [(0, 2), (1, 2), (2, 2)], [1]),
        ({}, [(0, 2), (1, 2), (2, 2)], [0, 1, 2]),
        # Left behind before its partition moved on.
        ({0: 2, 1: 1, 2: 2}, [(0, 2), (1, 2), (2, 2)], [1]),
        # A start has begun in some partitions only, or nothing was shipped since it began.
        ({0: 3, 1: 2, 2: 3}, [(0, 2), (1, 2), (2, 2)], []),
        # Older backups do not count against the newest.
        ({0: 2, 1: 2, 2: 2}, [(0, 1), (0, 2), (1, 1), (2, 1)], []),
        # The place lacks a partition, too: planning the restore says so.
        ({0: 2, 2: 2}, [(0, 2), (2, 2)], [1]),
    ],
)
def test_missing_or_left_behind(held, place, expected):
    """A partition lacks if no location has it, or has only a copy that knows fewer executions than the place."""
    there = {index: part(index, executions, 1, count=3) for index, executions in held.items()}
    assert lacking(there, copies(*place)) == expected


def test_a_directory_that_was_restored_on_purpose():
    """Its older copies are what the user wants; only missing partitions come back."""
    there = {0: part(0, 1, 1, count=3), 1: part(1, 1, 1, count=3)}
    assert lacking(there, copies((0, 2), (1, 2), (2, 1)), only_missing=True) == [2]


def test_the_owner_with_the_fewest_bytes():
    """One partition after the other, the largest first."""
    assert spread({2: 10, 3: 30, 5: 10}, {"h1": 25, "h3": 0}) == {3: "h3", 2: "h1", 5: "h3"}
    assert spread({0: 1, 1: 1}, {"h1": 0, "h2": 0}) == {0: "h1", 1: "h2"}


@pytest.mark.parametrize("seed", range(50))
def test_no_owner_gets_more_than_it_must(seed):
    """No owner that got something had more before its smallest one than any other owner has in the end."""
    chance = random.Random(seed)
    sizes = {index: chance.randrange(1, 100) for index in range(chance.randrange(1, 9))}
    held = {f"h{number}": chance.randrange(200) for number in range(chance.randrange(1, 5))}
    found = spread(sizes, held)
    assert found.keys() == sizes.keys()
    has = {name: held[name] + sum(sizes[i] for i, at in found.items() if at == name) for name in held}
    for name in set(found.values()):
        smallest = min(sizes[index] for index, at in found.items() if at == name)
        assert all(has[name] - smallest <= other for other in has.values())


def test_what_is_said():
    """One owner or several, one partition or several."""
    one = Replacement(("h2:7337",), {2: "h1:7337", 3: "h1:7337"}, "s3://b/words", 41)
    assert one.text() == "owner h2:7337 is lost; partitions 2, 3 come back at h1:7337 from s3://b/words, epoch 41"
    two = Replacement(("h2:7337", "h3:7337"), {3: "h4:7337", 0: "h1:7337"}, "s3://b/words", 41)
    assert two.text() == (
        "owners h2:7337, h3:7337 are lost; partition 0 comes back at h1:7337; partition 3 comes back at h4:7337 "
        "from s3://b/words, epoch 41"
    )
    none = Replacement((), {1: "h1:7337"}, "copies", 2)
    assert none.text() == "partition 1 comes back at h1:7337 from copies, epoch 2"
    assert none.as_json() == {"lost": [], "owners": {"part-1.sqlite3": "h1:7337"}, "place": "copies", "epoch": 2}
