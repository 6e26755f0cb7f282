"""What a standby has to fetch, as functions of values."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from recovery.base.ids import Lease
from recovery.planning.following import (
    ChainPosition,
    Stage,
    age,
    is_later,
    lacking,
    latest_first,
    lines,
    needed,
    newer_documents,
    same_link,
)
from recovery.planning.values import ClosedEpoch, Execution, PartitionDescription

BASE = "objects/part-0/a.sqlite3.zst"


def stage(executions: str, epoch: int = 1, taken_ms: int = 0, started=lambda name: ord(name)) -> Stage:
    return Stage(tuple((each, started(each)) for each in executions), epoch, taken_ms, f"{taken_ms}")


def test_the_later_of_two_is_what_became_of_the_other():
    """Whatever clocks say: more executions, then more epochs, then the time of the backup."""
    ordered = [stage("a", 5, 900), stage("a", 6, 800), stage("a", 6, 900), stage("ab", 2, 100), stage("abc", 1, 50)]
    for one, other in itertools.combinations(ordered, 2):
        assert is_later(other, one)
        assert not is_later(one, other)
        assert not is_later(one, one)


def test_of_two_timelines_the_one_that_was_begun_last_counts():
    """As in a restore: by the first execution that they do not share, however far the other has come."""
    assert is_later(stage("ac", 1), stage("abdef", 9))
    assert not is_later(stage("abdef", 9), stage("ac", 1))


def test_the_latest_comes_first_in_any_order():
    """The order is total."""
    chance = random.Random(1)
    names = ["".join(chance.sample("abcd", chance.randint(1, 4))) for _ in range(60)]
    stages = [stage(name, chance.randint(1, 3), number) for number, name in enumerate(names)]
    first = latest_first([(each, each) for each in stages])
    chance.shuffle(stages)
    assert latest_first([(each, each) for each in stages]) == first
    assert all(is_later(one, other) for one, other in itertools.combinations(first, 2))


def test_the_term_counts_more_than_clocks_and_executions():
    """A holder whose clock is ahead, or whose last backup came late, is not taken for its successor."""
    late = stage("ab", 9, 10**15)._replace(term=1)
    for later in (stage("ac", 2, 5, started=lambda _: 0), stage("a", 1), stage("ab", 9, 9)):
        assert is_later(later._replace(term=2), late)
        assert not is_later(late, later._replace(term=2))
        assert is_later(late, later)


@pytest.mark.parametrize(
    ("stages", "ends"),
    [
        ([stage("a", 1, 1), stage("a", 2, 2), stage("ab", 2, 3), stage("abc", 1, 4)], ["abc"]),
        # Each went on from "a".
        ([stage("a", 1, 1), stage("ab", 2, 2), stage("ac", 2, 3), stage("acd", 2, 4)], ["ab", "acd"]),
        # A takeover that gave an epoch up, before and after its first execution.
        ([stage("a", 5, 1), stage("a", 3, 2)._replace(term=1)], ["a", "a"]),
        ([stage("a", 3, 1), stage("ab", 5, 2), stage("ac", 2, 3)._replace(term=1)], ["ab", "ac"]),
        ([], []),
    ],
)
def test_backups_that_continue_each_other_are_one_line(stages, ends):
    """The last stage of each line, the latest one last; the clocks do not count."""
    found = lines(sorted(stages, key=age))
    assert ["".join(name for name, _ in each.executions) for each in found] == ends
    if stages:
        assert found[-1] == max(stages, key=age)


def partition(*runs: tuple[str, int, int]) -> PartitionDescription:
    """A partition on which executions began: name, the epoch that each resumed at, and its last one (0: none)."""
    begun, epochs = [], []
    for number, (name, resume_epoch, last) in enumerate(runs, 1):
        begun.append(Execution(number, name, "flow", resume_epoch, number, 10.0, 0.0, f"host of {name}", 1, "test"))
        epochs = [each for each in epochs if each.epoch < resume_epoch]
        lease = Lease(number, name)
        epochs += [ClosedEpoch(n, lease, n, n, n, 1, 1, 0, 0, 0) for n in range(resume_epoch, last + 1)]
    return PartitionDescription(Path("part-0.sqlite3"), 0, 1, "s", "flow", 0, tuple(begun), tuple(epochs), 1)


def test_what_a_directory_lacks():
    """Epochs of executions that it does not know, and later ones of its newest; nothing once it went on, or back."""
    there = partition(("a", 1, 4), ("b", 5, 7))
    cases = {
        (("a", "b"), 7): None,
        (("a", "b"), 9): None,
        (("a", "b"), 6): (7, 7, "b"),
        (("a",), 4): (5, 7, "b"),
        (("a",), 3): (4, 7, "b"),
        (("a", "other"), 8): (5, 7, "b"),
        ((), 0): (1, 7, "b"),
        (("a", "b", "c"), 2): None,
    }
    for (known, epoch), expected in cases.items():
        found = lacking(known, epoch, [there, partition(("a", 1, 4), ("b", 5, 8))])
        assert (found and (found.first, found.last, found.execution.id)) == expected, (known, epoch)
    assert lacking(["a"], 4, [partition(("a", 1, 4), ("b", 5, 0))]) is None
    # It was at epoch 2 of a, and has gone on with b since.
    assert lacking(["a"], 2, [there], ["b"])[:2] == (3, 4)
    assert lacking(["a"], 4, [there], ["b"]) is None
    assert lacking(["a"], 9, [partition(("a", 1, 9), ("b", 3, 5))])[:2] == (3, 5)


def position(links: int, origin: str, fingerprint: int = 1, taken_ms: int = 0, base: str = BASE) -> ChainPosition:
    return ChainPosition(base, links, origin, taken_ms, fingerprint)


@pytest.mark.parametrize(
    ("here", "there", "newer"),
    [
        ((2, "x"), (2, "x"), False),
        ((3, "y"), (2, "x"), False),
        ((2, "x"), (3, "y"), True),
        ((2, "x"), (2, "y"), True),
        ((2, "x"), (3, None), True),
        ((3, None), (2, "x"), False),
        (None, (1, "x"), True),
        (None, (2, None), False),
        ((1, "x"), None, False),
    ],
)
def test_which_documents_are_newer(here, there, newer):
    """By generation; what was removed there and never was here is nothing."""
    found = newer_documents({} if here is None else {"a": here}, {} if there is None else {"a": there})
    assert found == (["a"] if newer else [])


def test_only_files_behind_the_partitions_link_are_fetched():
    """From the one that holds the next link on."""
    files = [("1-3", 3), ("4", 1), ("5", 1)]
    target = position(5, "5", 9)
    found = [needed(position(n, name), target, files).files for n, name in [(0, BASE), (3, "1-3"), (4, "4")]]
    assert found == [0, 1, 2]
    # Its link is inside of a file that was merged since.
    assert needed(position(2, "2"), target, files).files == 0


def test_a_partition_of_equal_content_needs_nothing():
    """Also when another chain leads to it."""
    assert needed(position(5, "5", 9, base="other"), position(1, "1", 9), [("1", 1)]).files == 1


def test_another_chain_is_fetched_whole():
    """As is a branch of the chain: the file that ends with its link is another backup's, or there are fewer links."""
    files = [("1", 1), ("2", 1), ("3", 1)]
    target = position(3, "3", 9)
    assert needed(None, target, files).files is None
    assert "new chain" in needed(position(1, "1", base="other"), target, files).why
    assert "branched" in needed(position(2, "2 of another"), target, files).why
    assert "branched" in needed(position(3, "3 of another"), target, files).why
    assert "branched" in needed(position(7, "7"), target, files).why


def test_a_link_inside_of_a_merged_file_is_known_by_its_time():
    """Two backups may each have made a link of this number."""
    at = position(2, "2", taken_ms=20)
    assert same_link(at, [(1, 10), (2, 20), (3, 30)])
    assert not same_link(at, [(1, 10), (2, 21), (3, 30)])
    assert same_link(at, [(3, 30), (4, 40)])
    assert not same_link(at, [(4, 40)])
