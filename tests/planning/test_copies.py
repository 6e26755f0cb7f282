"""Which copy of each partition is used."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.errors import DuplicatePartitionError, ForeignPartitionError, MissingPartitionsError, NoPartitionsError
from recovery.planning.copies import Location, choose_copies
from recovery.planning.values import ClosedEpoch, Execution, PartitionDescription

IDS = {1: "a", 2: "b", 3: "c"}


def part(index=0, executions=0, epoch=0, *, count=1, store="store", ids=IDS) -> PartitionDescription:
    """A partition that knows the executions up to a number, and has closed the epochs up to another."""
    known = tuple(execution(number, ids.get(number, f"x{number}")) for number in range(1, executions + 1))
    epochs = tuple(
        ClosedEpoch(number, known[-1].lease if known else None, number, 0, 0, 0, 0, 0, 0, 0)
        for number in range(1, epoch + 1)
    )
    return PartitionDescription(Path(f"part-{index}.sqlite3"), index, count, store, None, 0, known, epochs, 0)


def execution(number: int, identity: str) -> Execution:
    """An execution; only its number and id matter."""
    return Execution(number, identity, "flow", 1, 0, 1.0, 0.0, "host", 1, "0")


def at(name: str, *partitions: PartitionDescription) -> Location:
    """A location with these partitions."""
    return Location(name, partitions)


@pytest.mark.parametrize("ours", [(e, n) for e in range(3) for n in range(3)])
@pytest.mark.parametrize("theirs", [(e, n) for e in range(3) for n in range(3)])
def test_execution_then_epoch_then_order(ours, theirs):
    """All pairs of ages."""
    chosen = choose_copies([at("db", part(0, *ours)), at("h1", part(0, *theirs))])
    expected = "h1" if theirs > ours else "db"
    other = "db" if expected == "h1" else "h1"
    kind = "equal" if ours == theirs else "older"
    assert [copy.location for copy in chosen.copies] == [expected]
    assert chosen.notes == (f"{other}: {kind} copy of part-0.sqlite3, not used",)


def test_partitions_of_several_locations_in_order_of_their_index():
    """A location may have none."""
    chosen = choose_copies(
        [at("db"), at("h1", part(2, count=3), part(0, count=3)), at("h2", part(1, count=3)), at("h3")]
    )
    assert [(copy.location, copy.partition.index) for copy in chosen.copies] == [("h1", 0), ("h2", 1), ("h1", 2)]
    assert chosen.notes == ()


@pytest.mark.parametrize(("one", "other"), [(1, 1), (1, 3), (3, 2)])
def test_copies_that_went_different_ways(one, other):
    """Also when one of them knows more executions, and when a third copy lies between."""
    ids = {1: "a'", 2: "b'", 3: "c'"}
    locations = [at("db", part(0, one, 1)), at("h1", part(0, 0)), at("h2", part(0, other, 5, ids=ids))]
    with pytest.raises(DuplicatePartitionError, match=r"part-0.sqlite3 at db and at h2 .* 1 is a in one and a'"):
        choose_copies(locations)


@pytest.mark.parametrize("closed", [0, 2])
def test_an_execution_that_closed_nothing_makes_no_fork(closed):
    """A start that lost an owner may have begun in that owner's copies alone; the next start has the same number. The
    copy in which something was closed counts, whatever the other one knows."""
    began = replace(part(0, 3, ids={1: "a", 2: "lost", 3: "lost too"}), epochs=part(0, 1, 4).epochs)
    went_on = replace(part(0, 2), epochs=part(0, 2 if closed else 1, 4 + closed).epochs)
    for locations in ([at("h1", began), at("h2", went_on)], [at("h2", went_on), at("h1", began)]):
        chosen = choose_copies(locations)
        assert [copy.location for copy in chosen.copies] == ["h2" if closed else "h1"]
        assert chosen.notes == (f"{'h1' if closed else 'h2'}: older copy of part-0.sqlite3, not used",)


def test_other_partitions_are_no_copies():
    """A start that was killed halfway leaves executions that only some partitions know."""
    chosen = choose_copies([at("db", part(0, 1, count=2)), at("h1", part(1, 1, count=2, ids={1: "other"}))])
    assert [copy.location for copy in chosen.copies] == ["db", "h1"]


@pytest.mark.parametrize(
    ("locations", "error", "words"),
    [
        ([], NoPartitionsError, "no recovery partition"),
        ([at("db"), at("h1")], NoPartitionsError, "at db, h1"),
        ([at("db", part(1, count=3)), at("h1")], MissingPartitionsError, "part-0.*, part-2.* of 3 .* db, h1"),
        ([at("db", part()), at("h1", part(store="x"))], ForeignPartitionError, "at h1 belongs to store x.* at db to"),
        ([at("db", part()), at("h1", part(count=2))], ForeignPartitionError, "at h1 is one of 2 partitions.* one of 1"),
        ([at("db", part(1))], ForeignPartitionError, "part-1"),
        (
            [at("db", replace(part(), path=Path("h1:7/part-0 (1).sqlite3")))],
            DuplicatePartitionError, "is part-0.sqlite3",
        ),
    ],
)  # fmt: skip
def test_refusals(locations, error, words):
    """Each names what was found, and where."""
    with pytest.raises(error, match=words):
        choose_copies(locations)


@pytest.mark.parametrize("seed", range(300))
def test_copies_left_behind_by_any_history(seed):
    """Runs go on with the chosen copies, some copies are left behind and some locations are away for a while: the
    newest copy of all that were named is used, and a run without it that closes anything ends in a fork that is
    refused later."""
    generator = random.Random(seed)
    count, names = generator.randint(1, 4), ["db", "h1", "h2"]
    held = {(generator.choice(names), index): (0, 0, {}) for index in range(count)}
    for number in range(1, 12):
        named = sorted(generator.sample(names, generator.choice((2, 3, 3))), key=names.index)
        locations = [
            at(name, *(part(index, known, epoch, count=count, ids=ids) for (place, index), (known, epoch, ids)
               in sorted(held.items()) if place == name)) for name in named
        ]  # fmt: skip
        rivals = {index: [name for name in named if (name, index) in held] for index in range(count)}
        if not all(rivals.values()):
            with pytest.raises((MissingPartitionsError, NoPartitionsError)):
                choose_copies(locations)
            continue
        forks = [
            (held[one, i][1] > 0, held[two, i][1] > 0, (one, i)) for i, each in rivals.items()
            for one in each for two in each if forked(held[one, i][2], held[two, i][2])
        ]  # fmt: skip
        if any(one and two for one, two, _ in forks):
            with pytest.raises(DuplicatePartitionError):
                choose_copies(locations)
            return
        chosen = choose_copies(locations)
        stale = {which for one, two, which in forks if two and not one}
        best = [
            max((name for name in rivals[i] if (name, i) not in stale),
                key=lambda name, i=i: (held[name, i][:2], -named.index(name)))
            for i in range(count)
        ]  # fmt: skip
        assert [copy.location for copy in chosen.copies] == best
        assert len(chosen.notes) == sum(map(len, rivals.values())) - count
        newest = 1 + max(held[name, index][0] for index, name in enumerate(best))
        for index, name in enumerate(best):
            known, epoch, ids = held[name, index]
            more = {missed: f"missed {missed}" for missed in range(known + 1, newest)}
            held[name, index] = (newest, epoch + generator.randint(0, 2), {**ids, **more, newest: f"run {number}"})
            if generator.random() < 0.4:
                held[generator.choice(names), index] = held[name, index]


def forked(one: dict[int, str], two: dict[int, str]) -> bool:
    """Whether two copies know different executions of one number."""
    return any(one[number] != two[number] for number in one.keys() & two.keys())
