"""What a step declares of its state: which changes are read without loss, and which are reported."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import time
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest

from recovery.errors import StateValueError
from recovery.values.codec import StateCodec
from recovery.values.declaration import Declaration, form_of, misfits, shown
from recovery.values.migration import converter


def shape(name: str, *fields: Any, **defaults: Any) -> type:
    """A dataclass of these fields: (name, type), then name=(type, default)."""
    optional = [(field, kind, dataclasses.field(default=value)) for field, (kind, value) in defaults.items()]
    return dataclasses.make_dataclass(name, [*fields, *optional])


class Low(enum.Enum):
    """An enum."""

    A = 1


class High(enum.Enum):
    """The same with a value more."""

    A = 1
    B = 2


class Pair(NamedTuple):
    """Values by position."""

    low: int
    high: float


class Triple(NamedTuple):
    """One more, with a default."""

    low: int
    high: float
    mid: float = 0.0


class Swapped(NamedTuple):
    """The same types under other names."""

    high: int
    low: float


class Named(TypedDict):
    """A typed dict."""

    n: int


class Tree(msgspec.Struct):
    """A type inside itself."""

    value: int
    below: list[Tree] = []


class Tagged(msgspec.Struct, tag="t"):
    """A tagged struct."""

    n: int


ONE = shape("One", ("n", int))
KINDS = [
    None, "pickle", int, str, bytes, datetime.datetime, Low, Pair, Triple, Named, Tree, Tagged, ONE, Any, list[int],
    set[str], frozenset[str], tuple[int, ...], tuple[int, str], dict[str, Pair], int | None, Literal["a", 1],
    Annotated[int, msgspec.Meta(ge=0)], list[ONE | None],
]  # fmt: skip

FITS = [
    (ONE, shape("One", ("n", int), m=(int, 0))),
    (ONE, shape("Other", ("n", int))),
    (ONE, shape("One", n=(int, 5))),
    (list[ONE], list[shape("One", ("n", int), m=(str, ""))]),
    (Pair, Triple),
    (int, int | None),
    (int | None, str | int | None),
    (Low, High),
    (Literal["a"], Literal["a", "b"]),
    (Annotated[int, msgspec.Meta(ge=0)], int),
    (Annotated[int, msgspec.Meta(ge=0, le=9)], Annotated[int, msgspec.Meta(le=9)]),
    (dict[str, Pair], dict[str, Triple]),
    (ONE, Named),
    (
        msgspec.defstruct(
            "Short", [("n", int, 0), ("at", float, msgspec.field(default_factory=time.time))], omit_defaults=True
        ),
        msgspec.defstruct("Short", [("n", int, 0), ("at", float, msgspec.field(default_factory=time.time))]),
    ),
]

MISFITS = [
    (None, ONE, "the state was a plain JSON value and is One(n)"),
    (ONE, None, "the state was One(n) and is a plain JSON value"),
    (None, "pickle", "the state was a plain JSON value and is pickle"),
    ("pickle", int, "the state was pickle and is int"),
    (int, float, "the state was int and is float"),
    (int | None, int, "the state was int | none and is int"),
    (ONE, shape("One", ("n", int), ("m", int)), "'m' of the state is new and has no default"),
    (ONE, shape("One", ("m", int)), "the state has no 'n' any more; 'm' of the state is new and has no default"),
    (ONE, shape("One", m=(int, 0)), "the state has no 'n' any more"),
    (ONE, shape("One", ("n", str)), "'n' of the state was int and is str"),
    (shape("One", n=(int, 0)), ONE, "'n' of the state has no default any more, which older states need"),
    (list[ONE], list[shape("One", ("n", str))], "'n' of an element of the state was int and is str"),
    (ONE, Pair, "the state was One(n) and is Pair(low, high)"),
    (Triple, Pair, "the state has no 'mid' any more"),
    (
        Pair,
        Swapped,
        "position 0 of the state was 'low' and is 'high'; position 1 of the state was 'high' and is 'low'",
    ),
    (High, Low, "the state may no longer be 2"),
    (Literal["a", "b"], Literal["a"], "the state may no longer be 'b'"),
    (int, Annotated[int, msgspec.Meta(ge=0)], "the state has new limits: ge"),
    (list[int], set[int], "the state was list[int] and is set[int]"),
    (tuple[int, str], tuple[int, str, str], "the state was tuple[int, str] and is tuple[int, str, str]"),
    (tuple[int, str], tuple[str, str], "element 0 of the state was int and is str"),
    (dict[str, int], dict[int, int], "a key of the state was str and is int"),
    (dict[str, int], dict[str, str], "a value of the state was int and is str"),
    (Tagged, msgspec.defstruct("Tagged", [("n", int)], tag="other"), "the state is tagged in another way"),
    (
        msgspec.defstruct("Short", [("n", int, 0), ("m", int, 1)], omit_defaults=True),
        msgspec.defstruct("Short", [("n", int, 5), ("m", int, 1)], omit_defaults=True),
        "'n' of the state was 0 where it is left out, and now it would be 5",
    ),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_declaration_comes_back_from_its_text(kind):
    """It is recorded as JSON, and equal types give the same text."""
    declared = Declaration((("word", "string"), ("day", "date")), form_of(kind))
    assert Declaration.from_text(declared.to_text()) == declared
    assert form_of(kind) == declared.state
    assert shown(declared.state)


def test_a_class_that_was_looked_at_can_still_be_sent():
    """Nothing is left on the class, which Spark pickles."""
    kinds = (shape("Two", ("n", int)), NamedTuple("Couple", [("n", int)]), TypedDict("Called", {"n": int}))
    for each in kinds:
        assert form_of(each)
        assert "__msgspec_cache__" not in vars(each)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_type_fits_itself(kind):
    """Nothing changed: nothing to tell, also when one side came back from JSON."""
    form = form_of(kind)
    assert list(misfits(msgspec.json.decode(msgspec.json.encode(form)), form)) == []


@pytest.mark.parametrize(("old", "new"), FITS, ids=str)
def test_changes_that_lose_nothing_pass(old, new):
    """Fields with defaults, wider types, another name of the class."""
    assert list(misfits(form_of(old), form_of(new))) == []


@pytest.mark.parametrize(("old", "new", "expected"), MISFITS, ids=str)
def test_changes_that_lose_something_are_reported(old, new, expected):
    """A removed or renamed field, another type, fewer values."""
    assert "; ".join(misfits(form_of(old), form_of(new))) == expected


def test_what_passes_is_what_the_codec_reads():
    """The rules are about real texts: what passes decodes, with defaults where a field was added."""
    stored = StateCodec(ONE).encode(ONE(3))
    later = shape("One", ("n", int), m=(int, 7))
    assert StateCodec(later).decode(stored) == later(3, 7)
    assert StateCodec(Triple).decode(StateCodec(Pair).encode(Pair(1, 2.0))) == Triple(1, 2.0, 0.0)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key":1,"state":0}', '{"state":"plain"}', b"\xff"])
def test_a_text_that_is_no_declaration(text):
    """It is a ValueError, whatever is wrong with it."""
    with pytest.raises(ValueError, match="not a declaration of a step"):
        Declaration.from_text(text)


class TestMigration:
    """Converting stored texts."""

    def test_it_gets_plain_data_and_gives_the_new_type(self):
        """A NamedTuple comes as a list; the result is stored as the new type; None discards."""
        convert = converter("s", lambda old: ONE(old[0]) if old[1] else None, ONE, form_of(Pair))
        assert convert("k", "[5,1.0]") == '{"n":5}'
        assert convert("k", "[5,0.0]") is None

    def test_pickled_objects_come_as_they_are(self):
        """Reading them is what the step did before."""
        convert = converter("s", lambda old: [old.imag, old.real], None, "pickle")
        assert convert("k", StateCodec("pickle").encode(3 + 4j)) == "[4.0,3.0]"

    @pytest.mark.parametrize(
        ("migrate", "expected"),
        [
            (lambda old: old / 0, "ZeroDivisionError: division by zero"),
            (lambda old: old, "int 5"),
            (lambda old: 1j, "1j"),
        ],
    )
    def test_a_failure_names_step_and_key(self, migrate, expected):
        """Also when the function gives something else than the declared type."""
        with pytest.raises(StateValueError, match=f"step 's', key 'k': its state cannot be migrated.*{expected}"):
            converter("s", migrate, ONE, "plain")("k", "5")
