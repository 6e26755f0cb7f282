"""What is recognized as unchanged does come back unchanged, so it need not be decoded."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import math
from typing import Annotated, Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.errors import StateValueError
from recovery.values.codec import StateCodec, _retyped
from recovery.values.unchanged import check_of, is_plain, is_readable

BERLIN = ZoneInfo("Europe/Berlin")


class Level(enum.IntEnum):
    LOW = 1


class Word(str):
    __slots__ = ()


class Pair(NamedTuple):
    low: int
    high: float | None


class Model(msgspec.Struct, omit_defaults=True, rename="camel"):
    by_word: dict[str, float]
    last_word: str = ""


@dataclasses.dataclass
class Item:
    _code: str
    at: datetime.datetime | None = None


@dataclasses.dataclass
class Cart:
    items: list[Item]
    total: float = 0.0
    note: Any = None
    pairs: dict[int, Pair] = dataclasses.field(default_factory=dict)
    day: datetime.date | None = None
    models: tuple[Model, ...] = ()
    seen: set[int] | None = None


@dataclasses.dataclass
class Single:
    value: int | None


@dataclasses.dataclass
class Rounded:
    value: float

    def __post_init__(self) -> None:
        self.value = round(self.value)


@dataclasses.dataclass
class Later:
    first: int
    second: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Node:
    children: list[Node]


ODD = [
    math.nan, math.inf, (1,), {1}, {1: 2}, b"x", Level.LOW, Word("x"), {Word("x"): 1}, collections.Counter("a"),
    collections.OrderedDict(x=1), np.int64(1), np.float64(1.5), type("Names", (list,), {})([1]),
    datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, tzinfo=BERLIN), True, None, 1, 2**53 + 1, 1.0,
    "null", [], {},
]  # fmt: skip
PARTS = st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=3) | st.datetimes()
ANY = st.recursive(
    PARTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
)
ITEMS = st.builds(Item, PARTS, PARTS)
TYPES = {
    Cart: st.builds(
        Cart, st.lists(ITEMS, max_size=2), PARTS, ANY, st.dictionaries(st.integers(), st.builds(Pair, PARTS, PARTS)),
        PARTS, st.lists(st.builds(Model, st.dictionaries(st.text(max_size=2), PARTS), PARTS), max_size=2).map(tuple),
        st.sets(st.integers()) | PARTS,
    ),
    Pair: st.builds(Pair, PARTS, PARTS),
    Single: st.builds(Single, PARTS),
    tuple[int, float]: st.tuples(PARTS, PARTS) | st.tuples(PARTS),
    list[float]: st.lists(PARTS, max_size=3),
    frozenset[int]: st.frozensets(st.integers()) | PARTS,
    dict[str, int | None]: st.dictionaries(st.text(max_size=2), PARTS, max_size=3) | PARTS,
    dict: ANY,
    Model: st.builds(Model, st.dictionaries(st.text(max_size=2), PARTS, max_size=3), PARTS),
}  # fmt: skip


def assert_unchanged(back: Any, value: Any) -> None:
    """Compare as the codec does when it decodes."""
    assert type(back) is type(value)
    assert back == value
    assert _retyped(back, value) is None


@given(value=ANY)
def test_a_plain_value_comes_back(value):
    """With the same types; what is not plain is left to the full check."""
    if is_plain(value):
        assert_unchanged(msgspec.json.decode(msgspec.json.encode(value)), value)


@pytest.mark.parametrize("value", [1, -1.5, "x", None, True, [], {}, {"a": [1, {"b": None}], "c": 0.5}])
def test_the_usual_values_are_plain(value):
    """So the cheap check is not idle."""
    assert is_plain(value)


@pytest.mark.parametrize("value", ODD[:16], ids=repr)
def test_an_odd_part_is_not_plain(value):
    """At any depth."""
    assert not is_plain(value)
    assert not is_plain({"a": [value]})


@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(data=st.data())
def test_a_value_that_passes_the_check_of_its_type_comes_back(kind, data):
    """And a value that does not pass is decoded."""
    check = check_of(msgspec.inspect.type_info(kind))
    value = data.draw(TYPES[kind])
    assert check is not None
    if check(value):
        assert_unchanged(msgspec.json.decode(msgspec.json.encode(value), type=kind), value)


@pytest.mark.parametrize(
    "value",
    [
        Cart([Item("a"), Item("b", datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC))], 3, {"a": [1.5]},
             {1: Pair(1, None)}, datetime.date(2026, 1, 2), (Model({"a": 1.0}),), {1}),
        Pair(1, 2.5), Single(None), Model({}, "x"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_the_usual_typed_values_pass(value):
    """A whole number stands for a declared float."""
    check = check_of(msgspec.inspect.type_info(type(value)))
    assert check is not None
    assert check(value)
    codec = StateCodec(type(value))
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    "kind",
    [
        Rounded, Later, Node, Level, int, float, datetime.datetime, Annotated[list[int], msgspec.Meta(max_length=2)],
        list[Annotated[int, msgspec.Meta(gt=0)]], dict[float, int], list[bytes], list[Level],
    ],
    ids=str,
)  # fmt: skip
def test_other_types_are_left_to_decoding(kind):
    """Decoding them may refuse or change a value whose types fit."""
    assert check_of(msgspec.inspect.type_info(kind)) is None


def test_what_post_init_changes_is_refused():
    """The type has no cheap check, so the value is compared."""
    value = Rounded(1)
    value.value = 1.5
    with pytest.raises(StateValueError):
        StateCodec(Rounded).encode(value)


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value], lambda value: {"a": value}])
@pytest.mark.parametrize("kind", [None, Any])
def test_a_number_that_could_not_be_read_is_refused(kind, wrap):
    """msgspec writes it, and its reader finds it out of range."""
    value = wrap(-(10**4299))
    assert not is_readable(msgspec.json.encode(value).decode())
    with pytest.raises(StateValueError, match="out of range"):
        StateCodec(kind).encode(value)
    assert StateCodec(kind).decode(StateCodec(kind).encode(wrap(10**4299))) == wrap(10**4299)
