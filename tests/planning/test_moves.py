"""Plans of moves: which partitions go where, what is refused, and which notes are followed."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from recovery.errors import (
    ConfigurationError,
    DuplicatePartitionError,
    ForeignPartitionError,
    MissingPartitionsError,
    StorageError,
)
from recovery.planning.copies import Departed, Location, choose_copies
from recovery.planning.moves import Move, check_arrival, plan_balance, plan_drain, plan_moves, to_follow
from tests.planning.test_copies import at, part


def sized(index: int, size_bytes: int, count: int):
    return replace(part(index, 1, 1, count=count), size_bytes=size_bytes)


def note(index: int, to: str, execution: int = 1, epoch: int = 1, store_id: str = "store") -> Departed:
    return Departed(index, store_id, execution, epoch, to, 0)


def applied(locations: list[Location], moves: tuple[Move, ...]) -> dict[str, list[int]]:
    """The sizes of the partitions at each location after these moves, each of which must be possible."""
    held = {each.name: {p.index: p.size_bytes for p in each.partitions} for each in locations}
    for move in moves:
        size = held[move.source].pop(move.index)
        assert size == move.size_bytes
        held[move.target][move.index] = size
    return {name: list(parts.values()) for name, parts in held.items()}


def random_store(generator: random.Random) -> list[Location]:
    names = ["h1", "h2", "h3", "h4"][: generator.randint(2, 4)]
    count = generator.randint(1, 12)
    parts = [sized(index, generator.randint(1, 1000), count) for index in range(count)]
    where = [generator.choice(names) for _ in parts]
    return [at(name, *(p for p, there in zip(parts, where, strict=True) if there == name)) for name in names]


def test_partitions_go_to_a_target_unless_they_are_there():
    """An older copy at the target does not count as there."""
    old, new = part(1, 1, 1, count=3), part(1, 2, 3, count=3)
    locations = [at("h1", part(0, 2, 3, count=3), new), at("h2", part(2, 2, 3, count=3), old)]
    assert plan_moves(locations, [1, 2], "h2") == (Move(1, "h1", "h2", 0),)
    assert plan_moves(locations, [2], "h2") == ()
    with pytest.raises(MissingPartitionsError, match=r"has part-7.sqlite3; asked: h1, h2"):
        plan_moves(locations, [7], "h2")


@pytest.mark.parametrize("seed", range(100))
def test_a_drained_owner_has_nothing(seed):
    """And all others have what they had and more."""
    generator = random.Random(seed)
    locations = random_store(generator)
    drained = generator.choice(locations).name
    moves = plan_drain(locations, [drained], weights={}, free_bytes={})
    assert applied(locations, moves)[drained] == []
    assert {move.source for move in moves} <= {drained}
    assert all(one.size_bytes >= other.size_bytes for one, other in pairwise(moves))


def test_a_drain_needs_room():
    """A partition goes where it fits; what is going there takes room, too."""
    locations = [at("h1", sized(0, 100, 3), sized(1, 90, 3)), at("h2"), at("h3", sized(2, 500, 3))]
    room = {"h2": 150, "h3": 95}
    assert [(move.index, move.target) for move in plan_drain(locations, ["h1"], weights={}, free_bytes=room)] == [
        (0, "h2"), (1, "h3"),
    ]  # fmt: skip
    with pytest.raises(StorageError, match="no owner has room for part-1") as found:
        plan_drain(locations, ["h1"], weights={}, free_bytes={"h2": 150, "h3": 10})
    assert "h3 has 10 B free" in found.value.cause
    with pytest.raises(ConfigurationError, match="no owner to which the 2 partitions of h1"):
        plan_drain(locations[:1], ["h1"], weights={}, free_bytes={})


@pytest.mark.parametrize("seed", range(200))
def test_a_balance_helps_and_ends(seed):
    """No partition moves twice, the fullest owner has no more for its weight than before, and a second plan has
    nothing to do that helps."""
    generator = random.Random(seed)
    locations = random_store(generator)
    weights = {each.name: generator.choice([0.5, 1, 2]) for each in locations}
    if generator.random() < 0.3:
        weights[locations[0].name] = 0

    def fullest(held: dict[str, list[int]]) -> float:
        return max(sum(sizes) / weights[name] for name, sizes in held.items() if weights[name])

    moves = plan_balance(locations, weights=weights, free_bytes={})
    after = applied(locations, moves)
    assert len({move.index for move in moves}) == len(moves)
    if all(weights.values()):
        assert fullest(after) <= fullest(applied(locations, ()))
    for name, weight in weights.items():
        assert weight or after[name] == []


@pytest.mark.parametrize("seed", range(200))
def test_a_balance_with_several_weights_of_zero_keeps_to_the_room(seed):
    """What one drained owner sends to another takes room and counts for it before the next one is drained."""
    generator = random.Random(seed)
    locations = random_store(generator)
    weights = {each.name: generator.choice([0, 0, 1, 2]) for each in locations}
    weights[generator.choice(locations).name] = 1
    moving = sum(p.size_bytes for each in locations for p in each.partitions if not weights[each.name])
    room = {each.name: generator.choice([None, moving, moving * 2 // 3]) for each in locations}
    try:
        moves = plan_balance(locations, weights=weights, free_bytes=room)
    except StorageError:
        assert None not in [room[name] for name, weight in weights.items() if weight]
        return
    after = applied(locations, moves)
    assert all(weights[name] or sizes == [] for name, sizes in after.items())
    for name, limit in room.items():
        came = sum(move.size_bytes for move in moves if move.target == name)
        assert limit is None or came <= limit


def test_two_drained_owners_share_the_room_of_the_third():
    """It has room for one partition, not for one of each."""
    locations = [at("h1", sized(0, 100, 2)), at("h2", sized(1, 100, 2)), at("h3")]
    with pytest.raises(StorageError, match=r"no owner has room for part-\d"):
        plan_balance(locations, weights={"h1": 0, "h2": 0}, free_bytes={"h3": 150})
    moves = plan_balance(locations, weights={"h1": 0, "h2": 0}, free_bytes={"h3": 200})
    assert [(move.source, move.target) for move in moves] == [("h1", "h3"), ("h2", "h3")]


def test_equal_partitions_are_shared_by_weight():
    """Twelve of one size: twice the weight, twice the partitions."""
    locations = [at("h1", *(sized(index, 10, 12) for index in range(12))), at("h2"), at("h3")]
    even = applied(locations, plan_balance(locations, weights={}, free_bytes={}))
    assert {name: len(sizes) for name, sizes in even.items()} == {"h1": 4, "h2": 4, "h3": 4}
    moves = plan_balance(locations, weights={"h1": 2}, free_bytes={"h3": 0})
    assert {name: len(sizes) for name, sizes in applied(locations, moves).items()} == {"h1": 8, "h2": 4, "h3": 0}


def test_a_note_is_followed_while_no_copy_is_as_new():
    """Nobody has the partition, only an older copy, or only the one that was to leave."""
    left = Location("h1", (), (note(0, "h9", 2, 5),))
    assert set(to_follow([left])) == {"h9"}
    assert set(to_follow([left, at("h2", part(0, 2, 4))])) == {"h9"}
    assert set(to_follow([Location("h1", (part(0, 2, 5),), left.departed)])) == {"h9"}
    for known in (at("h2", part(0, 2, 5)), at("h2", part(0, 3, 1)), at("h9")):
        assert to_follow([left, known]) == {}
    # A note of a store that was there before.
    assert to_follow([left, at("h2", replace(part(1, 2, 5), store_id="another"))]) == {}
    # A file that was put there since.
    for put in (part(0, 2, 4), part(0, 3, 0)):
        assert to_follow([Location("h1", (put,), left.departed)]) == {}


def test_a_copy_that_leaves_does_not_count_among_equals():
    """Whatever the order; alone, or newer by now, it does."""
    leaving = Location("h1", (part(0, 2, 5),), (note(0, "h2", 2, 5),))
    for locations in ([leaving, at("h2", part(0, 2, 5))], [at("h2", part(0, 2, 5)), leaving]):
        assert [copy.location for copy in choose_copies(locations).copies] == ["h2"]
    assert [copy.location for copy in choose_copies([leaving]).copies] == ["h1"]
    used = replace(leaving, partitions=(part(0, 3, 5),))
    assert [copy.location for copy in choose_copies([at("h2", part(0, 2, 5)), used]).copies] == ["h1"]


def test_what_may_come_to_a_directory():
    """Beside partitions of the store, in place of an older or an equal copy."""
    coming = part(1, 2, 5, count=2)
    for there in ([], [part(0, 2, 5, count=2)], [part(1, 2, 5, count=2)], [part(1, 1, 9, count=2)]):
        check_arrival(there, coming, "h2")
    with pytest.raises(DuplicatePartitionError, match="newer copy of part-1"):
        check_arrival([part(1, 3, 1, count=2)], coming, "h2")
    with pytest.raises(ForeignPartitionError):
        check_arrival([replace(part(0, 2, 5, count=2), store_id="another")], coming, "h2")
