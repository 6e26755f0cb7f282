"""State values as JSON: equal to themselves when they come back, or refused."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from recovery.cli.flow_loader import _load_file
from recovery.errors import ConfigurationError, StateValueError
from recovery.values.codec import StateCodec, _same, make_portable

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@dataclasses.dataclass
class Session:
    """A state type as users declare it."""

    start: int
    pages: list[str] = dataclasses.field(default_factory=list)
    score: float = 0.0


@dataclasses.dataclass
class LaterSession:
    """The same after it evolved: a field more, with a default, and one less."""

    start: int
    score: float = 0.0
    user: str = "nobody"


class Pair(NamedTuple):
    """A state type with positions."""

    low: int
    high: float


class Model(msgspec.Struct):
    """A state type of msgspec."""

    weights: dict[str, float]


class Opaque:
    """A class that cannot be stored."""


class Names(list):
    """Subclasses of what JSON has."""


class Word(str):
    __slots__ = ()


class Amount(int):
    pass


class Level(enum.IntEnum):
    LOW = 1


class Colour(enum.StrEnum):
    RED = "red"


SUBCLASSES = [
    collections.defaultdict(int, {"x": 1}), collections.OrderedDict(x=1), collections.Counter("a"), Names([1]),
    Word("x"), Amount(1), type("Share", (float,), {})(1.5), Level.LOW, Colour.RED, {Word("x"): 1}, {Colour.RED: 1},
    collections.UserDict(x=1), collections.deque([1]), range(2), pd.Timestamp("2026-01-01"),
    pd.Timedelta(1), np.array(5), np.datetime64("2026-01-01", "ns"), np.longdouble(1.5),
]  # fmt: skip


@dataclasses.dataclass
class Held:
    """A state with parts that may be of another class."""

    part: Any


@dataclasses.dataclass
class Typed:
    """The same, with types."""

    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    names: list[str] = dataclasses.field(default_factory=list)
    seen: set[int] = dataclasses.field(default_factory=set)
    level: int = 0
    word: str = ""
    share: float = 0.0
    others: list[tuple[dict[str, int], ...]] = dataclasses.field(default_factory=list)
    by: Mapping[str, int] | None = None


LAMBDA = lambda: 1  # noqa: E731 - the kind of function that cannot be stored


class Holder:
    """An object that holds another one."""

    def __init__(self, held):
        self.held = held


class TestPlainValues:
    """JSON-like values, the default."""

    @given(value=JSON)
    def test_what_is_stored_comes_back_equal(self, value):
        """With its type, at every depth: 1, 1.0 and True are three values."""
        codec = StateCodec()
        text = codec.encode(value)
        back = codec.decode(text)
        assert back == value
        assert repr(back) == repr(value)

    @given(value=JSON)
    def test_the_text_is_json_without_control_characters(self, value):
        """SQLite's JSON functions and other programs can read it, and it can be packed between separators."""
        text = StateCodec().encode(value)
        assert json.loads(text) == value
        assert not any(ord(character) < 32 for character in text)

    @pytest.mark.parametrize(
        "value",
        [
            math.nan, math.inf, -math.inf, [math.nan], {"x": math.inf}, (1, 2), [(1, 2)], Pair(1, 2.0), {1: "int key"},
            {None: 1}, {(1, 2): 3}, {1, 2}, frozenset("a"), b"bytes", bytearray(b"x"), "\ud800", {"\ud800": 1},
            decimal.Decimal("1.5"), datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), datetime.date(2020, 1, 1),
            1j, object(), Opaque(), Session(1), Model({}), np.array([1, 2]), np.datetime64("2020-01-01"), len,
        ],
        ids=lambda value: repr(value)[:30].partition(" at 0x")[0],
    )  # fmt: skip
    def test_what_would_come_back_changed_is_refused(self, value):
        """Never silently something else: the error shows the value and says what can be done."""
        with pytest.raises(StateValueError) as raised:
            StateCodec().encode(value)
        assert type(value).__name__ in raised.value.found
        assert "state=" in raised.value.remedy

    @pytest.mark.parametrize("value", SUBCLASSES, ids=lambda value: type(value).__name__)
    @pytest.mark.parametrize("inside", [lambda value: value, lambda value: {"a": [1, {"b": value}]}], ids=["", "deep"])
    def test_an_instance_of_a_subclass_is_refused(self, value, inside):
        """It is equal to what would come back, which does not do what it does."""
        with pytest.raises(StateValueError) as raised:
            StateCodec().encode(inside(value))
        assert type(value).__name__ in raised.value.found

    def test_the_error_says_what_the_next_run_would_get(self):
        """And what to do instead."""
        with pytest.raises(StateValueError, match=r"defaultdict .* would come back as dict") as raised:
            StateCodec().encode(collections.defaultdict(int, {"x": 1}))
        assert "the next run would get a dict" in raised.value.cause
        assert "dict(value)" in raised.value.remedy
        with pytest.raises(StateValueError, match=r"in dict {'a': .*}, at \['a'\], Counter .* would come back as dict"):
            StateCodec().encode({"a": collections.Counter("a")})

    @pytest.mark.parametrize(
        ("state_type", "value", "found"),
        [
            (
                None,
                {"n": 1, "f": [1, LAMBDA]},
                r"in dict .*, at \['f'\]\[1\], function .* cannot be stored: a function",
            ),
            (None, {"a": [1.0, math.nan]}, r"at \['a'\]\[1\], float nan would come back as NoneType None"),
            (None, {"a": {"b": (1, 2)}}, r"at \['a'\]\['b'\], tuple \(1, 2\) would come back as list \[1, 2\]"),
            (None, {"a": {1: 2}}, r"at \['a'\], dict \{1: 2\} would come back as dict \{'1': 2\}"),
            (None, {"k" * 500: {"z": b"x"}}, r"at \['k{100,}\.\.\., bytes b'x' would come back as str"),
            (None, {"text": ["fine", "\ud800"]}, r"at \['text'\]\[1\], str '\\ud800' cannot be stored"),
            ("pickle", {"f": [1, LAMBDA]}, r"at \['f'\]\[1\], function .* cannot be pickled: "),
            ("pickle", [Holder(LAMBDA)], r"at \[0\]\.held, function .* cannot be pickled: "),
            (dict[str, Any], {"f": [LAMBDA]}, r"at \['f'\]\[0\], function .* cannot be stored as a part of dict\["),
            (dict[str, int], {"f": "x"}, r"dict \{'f': 'x'\} cannot be stored as dict\[str, int\]: Expected `int`"),
        ],
    )
    def test_the_error_says_which_part_of_the_value_it_is(self, state_type, value, found):
        """Where in the value, what it is, and why."""
        with pytest.raises(StateValueError, match=found):
            StateCodec(state_type).encode(value)

    def test_a_list_that_contains_itself_is_refused(self):
        """Not a crash of the interpreter."""
        endless: list[Any] = []
        endless.append(endless)
        with pytest.raises(StateValueError):
            StateCodec().encode(endless)

    @pytest.mark.parametrize(
        ("value", "back"),
        [(np.int64(5), 5), (np.float32(0.5), 0.5), (np.bool_(True), True), (np.str_("x"), "x"), ([np.int32(1)], [1])],
        ids=repr,
    )
    def test_numpy_scalars_are_the_numbers_they_stand_for(self, value, back):
        """What sums and means of NumPy and pandas give can be state."""
        codec = StateCodec()
        assert codec.decode(codec.encode(value)) == back
        assert type(codec.decode(codec.encode(value))) is type(back)

    @pytest.mark.parametrize(
        "value", [2**53 + 1, 2**63, -(2**63) - 1, 10**40, 5e-324, 1.7976931348623157e308, 0.1 + 0.2]
    )
    def test_numbers_keep_every_digit(self, value):
        """Integers of any size and floats to the last bit."""
        codec = StateCodec()
        assert codec.decode(codec.encode(value)) == value

    def test_long_values_are_shown_shortened(self):
        """An error message stays readable."""
        with pytest.raises(StateValueError) as raised:
            StateCodec().encode({"x" * 10_000: math.nan})
        assert len(raised.value.found) < 400


class TestTypedValues:
    """Values of a declared type."""

    @pytest.mark.parametrize(
        ("state_type", "value", "text"),
        [
            (Session, Session(1, ["a"], 0.5), '{"start":1,"pages":["a"],"score":0.5}'),
            (Pair, Pair(1, 2.5), "[1,2.5]"),
            (Model, Model({"a": 1.5}), '{"weights":{"a":1.5}}'),
            (tuple[int, float], (1, 2.5), "[1,2.5]"),
            (dict[int, str], {1: "a"}, '{"1":"a"}'),
            (set[int], {1}, "[1]"),
            (bytes, b"ab", '"YWI="'),
            (datetime.date, datetime.date(2020, 1, 2), '"2020-01-02"'),
            (int | None, 3, "3"),
        ],
        ids=lambda each: repr(each)[:25],
    )
    def test_typed_values_come_back_as_themselves(self, state_type, value, text):
        """With their type, and readable in SQLite."""
        codec = StateCodec(state_type)
        assert codec.encode(value) == text
        assert codec.decode(text) == value
        assert type(codec.decode(text)) is type(value)

    def test_a_type_that_evolved_reads_what_was_stored_before(self):
        """New fields take their defaults, fields that are gone are left out."""
        text = StateCodec(Session).encode(Session(7, ["a"], 0.5))
        assert StateCodec(LaterSession).decode(text) == LaterSession(7, 0.5, "nobody")

    @pytest.mark.parametrize(
        ("state_type", "value"),
        [
            (Session, {"start": 1}), (Session, Pair(1, 2.0)), (Session, Session("x")), (Session, Session(math.nan)),
            (Session, Session(1, score=math.nan)), (Pair, (1, 2.0)), (tuple[int, float], [1, 2.0]), (int, "1"),
            (int, 1.5), (int, True), (float, math.inf),
        ],
        ids=lambda each: repr(each)[:25],
    )  # fmt: skip
    def test_values_of_another_type_are_refused(self, state_type, value):
        """What does not fit the declaration would come back changed."""
        with pytest.raises(StateValueError, match="does not fit the declared type"):
            StateCodec(state_type).encode(value)

    @pytest.mark.parametrize(
        "state_type", ["json", "Session", 5, Opaque, Session | LaterSession, list[object()], np.float64]
    )
    def test_types_that_cannot_be_stored_are_refused_immediately(self, state_type):
        """When the step is declared, not at the first value."""
        with pytest.raises(ConfigurationError, match="cannot be stored"):
            StateCodec(state_type)


@pytest.mark.parametrize(
    "value",
    [
        Typed(collections.defaultdict(int, {"x": 1})), Typed(names=Names(["a"])), Typed(seen=frozenset({1})),
        Typed(level=Level.LOW), Typed(word=Colour.RED), Typed(others=[(collections.Counter("a"),)]),
        Typed(by=collections.OrderedDict(x=1)), Held(collections.Counter("a")), Held([Amount(1)]),
        Typed(word=Word("x")), Typed({Word("x"): 1}), Held({"a": Level.LOW}),
    ],
    ids=repr,
)  # fmt: skip
def test_a_typed_state_keeps_the_types_of_its_parts(value):
    """At any depth: what is declared is what comes back, and nothing that is merely equal to it is stored."""
    with pytest.raises(StateValueError, match=r"would come back as|cannot be stored"):
        StateCodec(type(value)).encode(value)


@pytest.mark.parametrize(
    "value",
    [
        Typed({"x": 1}, ["a"], {1, 2}, 3, "w", 1.5, [({"y": 2}, {})], {"z": 1}), Typed(share=3),
        Typed(level=np.int64(2), share=np.float64(0.5)), Held({"a": [None, True, 1.5]}),
    ],
    ids=repr,
)  # fmt: skip
def test_what_a_declared_type_takes(value):
    """A whole number for a float, and NumPy's for Python's, as before."""
    codec = StateCodec(type(value))
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict[str, int], collections.Counter("a")), (list[int], Names([1])), (set[int], frozenset({1})),
        (frozenset[int], {1}), (int, Level.LOW), (str, Colour.RED), (datetime.datetime, pd.Timestamp("2026-01-01")),
    ],
    ids=str,
)  # fmt: skip
def test_a_declared_type_is_not_its_subclass(kind, value):
    """The state itself, too."""
    with pytest.raises(StateValueError):
        StateCodec(kind).encode(value)


@dataclasses.dataclass
class Visit:
    """A state with moments."""

    at: datetime.datetime
    seen: list[datetime.datetime]


@dataclasses.dataclass(frozen=True)
class Stop:
    """One that can be an element of a set."""

    at: datetime.datetime


@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize(
    ("kind", "wrap"),
    [
        (datetime.datetime, lambda at: at), (Visit, lambda at: Visit(at, [at])),
        (list[datetime.datetime], lambda at: [at]), (tuple[int, datetime.datetime], lambda at: (1, at)),
        (dict[str, datetime.datetime], lambda at: {"a": at}), (dict[datetime.datetime, int], lambda at: {at: 1}),
        (set[datetime.datetime], lambda at: {at}), (set[tuple[int, datetime.datetime]], lambda at: {(1, at)}),
        (frozenset[Stop], lambda at: frozenset([Stop(at)])), (datetime.datetime | None, lambda at: at),
    ],
    ids=lambda each: repr(each).partition(" at ")[0],
)  # fmt: skip
def test_moments_of_the_hour_that_comes_twice(kind, wrap, fold):
    """Those of a zone with such an hour, as rows have them, come back as the same moments."""
    codec = StateCodec(kind)
    berlin = datetime.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)
    back = codec.decode(codec.encode(wrap(berlin)))
    assert back == wrap(berlin.astimezone(datetime.UTC))
    assert back != wrap(berlin.replace(fold=1 - fold).astimezone(datetime.UTC))


def test_other_moments_are_other_values():
    """Of the same hour, too, and without a zone."""
    berlin = datetime.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert not _same([berlin], [berlin.replace(fold=1).astimezone(datetime.UTC)])
    assert not _same([berlin], [berlin.replace(tzinfo=None)])
    assert not _same({berlin}, {berlin.replace(fold=1).astimezone(datetime.UTC)})
    assert not _same({berlin: 1}, {berlin.astimezone(datetime.UTC): 2})


class TestPickle:
    """Anything, for those who ask for it by name."""

    @pytest.mark.parametrize(
        "value", [(1, 2), {1, 2}, Session(1), Pair(1, 2.0), math.inf, b"x", {(1, 2): [None]}], ids=repr
    )
    def test_anything_comes_back(self, value):
        """As a JSON text, so that files stay text."""
        codec = StateCodec("pickle")
        text = codec.encode(value)
        assert isinstance(json.loads(text), str)
        assert codec.decode(text) == value

    def test_what_cannot_be_pickled_is_refused(self):
        """With the reason."""
        with pytest.raises(StateValueError, match="cannot be pickled"):
            StateCodec("pickle").encode(lambda: None)

    def test_a_class_of_the_flows_own_file_is_refused(self):
        """Workers have it without its module; the error says where it can be."""
        own = type("Own", (), {"__module__": "recovery_flow_words"})
        with pytest.raises(StateValueError, match="module of their own, beside the flow's file"):
            StateCodec("pickle").encode(own())

    def test_plain_state_never_runs_code(self):
        """A pickle in a file is only read where the step asked for pickles."""
        text = StateCodec("pickle").encode(Session(1))
        assert isinstance(StateCodec().decode(text), str)


@dataclasses.dataclass
class Loose:
    """Fields whose declared types say little, or allow what JSON has not."""

    seen: dict = dataclasses.field(default_factory=dict)
    pairs: list = dataclasses.field(default_factory=list)
    low: float | None = None
    any: Any = None


@dataclasses.dataclass(eq=False)
class Nameless:
    """A type without an equality of its own."""

    inner: list[Any] = dataclasses.field(default_factory=list)


class Unequal(msgspec.Struct, eq=False):
    """The same of msgspec's."""

    n: int
    held: list[Nameless] = []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Loose, Loose(low=math.inf)), (Loose, Loose(low=math.nan)), (Loose, Loose(seen={1: "a"})),
        (Loose, Loose(pairs=[(1, 2)])), (Loose, Loose(any=b"x")), (Loose, Loose(any={1, 2})), (dict, {1: 2}),
        (list[float | None], [math.inf]), (Nameless, Nameless([(1, 2)])), (Nameless, Nameless([math.nan])),
    ],
    ids=str,
)  # fmt: skip
def test_what_json_has_another_form_for_is_refused(kind, value):
    """It would come back as something else, whatever the declared type lets through."""
    with pytest.raises(StateValueError):
        StateCodec(kind).encode(value)


@pytest.mark.parametrize("kind", [None, list, "pickle"])
def test_what_is_nested_too_deep_is_refused(kind):
    """By a typed error, though Python cannot even print it."""
    value: list = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(StateValueError, match="list … cannot be"):
        StateCodec(kind).encode(value)


@pytest.mark.parametrize(
    ("kind", "value"), [(float, np.float64(1.5)), (int, np.int64(3)), (int | None, np.int32(3)), (bool, np.bool_(True))]
)
def test_numbers_of_numpy_as_typed_states(kind, value):
    """They are stored as the Python values they stand for."""
    codec = StateCodec(kind)
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value.item())


@pytest.mark.parametrize(
    "value",
    [Nameless([1, {"a": [None, 2.5]}]), Unequal(1, [Nameless(["x"])]), Nameless([np.int64(3), np.float64(1.5)])],
    ids=str,
)
def test_types_without_equality_are_compared_by_their_fields(value):
    """So they can be stored."""
    codec = StateCodec(type(value))
    back = codec.decode(codec.encode(value))
    assert back is not value
    assert codec.encode(back) == codec.encode(value)


TYPES = """
from __future__ import annotations
from dataclasses import KW_ONLY, dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import ClassVar, Generic, Literal, NamedTuple, Optional, TypedDict, TypeVar

T = TypeVar("T")

class Level(Enum):
    LOW = "low"

class Item(NamedTuple):
    sku: str
    price: Decimal

class Note(TypedDict, total=False):
    first: Optional[Item]

@dataclass
class Box(Generic[T]):
    inside: T
    at: date

@dataclass
class Base:
    level: Level

@dataclass
class Node(Base):
    limit: ClassVar[int] = 3
    items: list[Item] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    notes: dict[str, Note] | None = None
    box: Box[Item] | None = None
    kind: Literal["a", "b"] = "a"
    _: KW_ONLY
    when: datetime | None = None

ITEM = Item("x", Decimal("1.50"))
NODE = Node(
    Level.LOW, [ITEM], [Node(Level.LOW)], {"k": {"first": ITEM}}, Box(ITEM, date(2026, 1, 2)), when=datetime(2026, 1, 2)
)
"""
WORKER = """
import pickle, sys
from recovery.values.codec import StateCodec
kind, value = pickle.loads(sys.stdin.buffer.read())
codec = StateCodec(kind)
assert codec.decode(codec.encode(value)) == value
print(codec.encode(value))
"""


def test_types_of_the_users_own_file_reach_workers(tmp_path):
    """Which do not have its module, in which the names of the fields' types would be looked up."""
    (tmp_path / "flow.py").write_text(TYPES)
    module = _load_file(tmp_path / "flow.py")
    codec = StateCodec(module.Node)
    make_portable(module.Node)
    sent = cloudpickle.dumps((module.Node, module.NODE))
    done = subprocess.run([sys.executable, "-c", WORKER], input=sent, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == codec.encode(module.NODE)


def test_a_type_with_a_name_that_nobody_knows():
    """It is refused when the step is declared, with the name."""

    @dataclasses.dataclass
    class Unknown:
        at: Nowhere  # noqa: F821

    with pytest.raises(ConfigurationError, match="'Nowhere' is not defined"):
        StateCodec(Unknown)


@pytest.mark.parametrize(
    ("value", "declared"),
    [((1, 2), "tuple[int, int]"), (("a", [1.5, None], {"x": True}), "tuple[str, list[float | None], dict[str, bool]]")],
)
def test_a_tuple_says_how_to_declare_it(value, declared):
    """And declared so, it is stored."""
    with pytest.raises(StateValueError) as error:
        StateCodec().encode(value)
    assert f"state={declared}" in error.value.remedy
    codec = StateCodec(eval(declared))
    assert codec.decode(codec.encode(value)) == value
