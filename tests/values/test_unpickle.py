"""Pickles of unknown origin: plain values come back, everything else is named and not called."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import math
import os
import pickle
import struct
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.errors import ConfigurationError
from recovery.values.pickles import NamedClassError
from recovery.values.unpickle import Unpickler


class Point(NamedTuple):
    x: int
    y: float


class Colour(enum.Enum):
    RED = "red"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_come_back(value, protocol):
    """Of every protocol, and as JSON."""
    data = pickle.dumps(value, protocol)
    assert Unpickler().value(data) == value
    text, others = Unpickler().text(data)
    assert (Unpickler().value(pickle.dumps(text)), others) == (text, frozenset())


@pytest.mark.parametrize(
    ("value", "text", "others"),
    [
        ((1, (2.5, "x")), '[1,[2.5,"x"]]', {"tuple"}),
        ({"a": {1}}, '{"a":[1]}', {"set"}),
        (frozenset(), "[]", {"frozenset"}),
        (b"ab", '"YWI="', {"bytes"}),
        ({1: "x"}, '{"1":"x"}', {"dict with keys that are not text"}),
        (Point(1, 2.5), "[1,2.5]", {"Point"}),
        (Colour.RED, '"red"', {"Colour"}),
        (datetime.date(2026, 1, 2), '"2026-01-02"', {"date"}),
        (decimal.Decimal("1.50"), '"1.50"', {"Decimal"}),
        (collections.deque([1]), "[1]", {"deque"}),
        (collections.Counter("aab"), '{"a":2,"b":1}', {"Counter"}),
    ],
)
def test_other_types_are_named(value, text, others):
    """As the JSON that a step with such a state= reads."""
    own = f"{__name__}.Point", f"{__name__}.Colour"
    allowed = ("datetime.date", "decimal.Decimal", "collections.deque", "collections.Counter", *own)
    # Older protocols build bytes, and what is made of them, by a function.
    for protocol in (4,) if {"bytes", "date"} & others else (2, 4):
        found, named = Unpickler(allowed).text(pickle.dumps(value, protocol))
        assert (found, named & others) == (text, others)


@pytest.mark.parametrize("value", [math.nan, [math.inf], {(1, 2): 3}, fractions.Fraction(1, 2), {"a": ({None: 1},)}])
def test_values_without_a_form_in_json(value):
    with pytest.raises(ValueError, match="no form in JSON"):
        Unpickler(["fractions.Fraction"]).text(pickle.dumps(value))


def test_names_are_not_called():
    """A function, a class of the standard library, an extension's number, and a class behind an attribute."""

    class Evil:
        def __reduce__(self):
            return os.mkdir, ("ran",)

    for data, name in (
        (pickle.dumps(Evil()), "posix.mkdir"),
        (pickle.dumps(datetime.date(2026, 1, 1)), "datetime.date"),
        (b"cbuiltins\\neval\\n(S'1'\\ntR.".replace(b"\\n", b"\n"), "builtins.eval"),
        (pickle.dumps(collections.deque()), "collections.deque"),
    ):
        with pytest.raises(NamedClassError) as raised:
            Unpickler(["decimal.Decimal"]).value(data)
        assert raised.value.name == name
    for wrong in ("os.system", "decimal.None", "nowhere.Class", "Class", "decimal.Decimal.quantize"):
        with pytest.raises(ConfigurationError, match="not a class") as raised:
            Unpickler([wrong])
        assert "misspelt" in raised.value.cause


@pytest.mark.parametrize(("line", "why"), [("import nowhere.at_all", "ModuleNotFoundError"), ("1 / 0", "ZeroDivision")])
def test_a_module_that_cannot_be_imported(tmp_path, monkeypatch, line, why):
    """The error says what it lacks: a dataflow's module, for instance, imports Bytewax."""
    (tmp_path / "dataflow.py").write_text(f"{line}\nclass Own: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match="not a class") as raised:
        Unpickler(["dataflow.Own"])
    assert "Its module dataflow cannot be imported" in raised.value.cause
    assert why in raised.value.cause


def growing(levels: int) -> bytes:
    """A list that names itself twice at each level: short as a pickle."""
    value: list[object] = [1]
    for _ in range(levels):
        value = [value, value]
    return pickle.dumps(value)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80", b"\x80\x04", b"\x80\x04.", b"\x80\x09K\x01.", b"(" * 1000, b"\x80\x04K\x01", b"P1\n.",
        b"\x80\x04\x82\x01.", b"\x80\x04h\x05.",
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.", b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
        growing(40), pickle.dumps("x")[:-3],
    ],
)  # fmt: skip
def test_forged_pickles(data):
    """Cut off, endless, large by a few bytes: an error, in little memory and time."""
    with pytest.raises(ValueError):
        Unpickler().text(data)


def test_a_value_that_contains_itself():
    value: list[object] = []
    value.append(value)
    with pytest.raises(ValueError):
        Unpickler().text(pickle.dumps(value))


def test_an_index_allocates_nothing():
    """However large the index is under which a part is remembered."""
    for data in (b"\x80\x04]r\xff\xff\xff\x7f.", b"\x80\x04]p99999999999\n."):
        assert Unpickler().text(data) == ("[]", frozenset())


def test_a_class_is_never_changed():
    """A pickle may set what an instance holds, and nothing of the class."""
    data = b"\x80\x04c" + f"{__name__}\nPoint\n".encode() + b"N}\x8c\x01xK\x01s\x86b."
    with pytest.raises(ValueError, match="a class is not changed"):
        Unpickler([f"{__name__}.Point"]).value(data)


@pytest.mark.parametrize("value", [{1: "x", "1": "y"}, {1: 0, 1.5: 0, "1.5": 0}])
def test_keys_that_are_the_same_as_text(value):
    """JSON would keep one of them."""
    with pytest.raises(ValueError, match="the same as text"):
        Unpickler().text(pickle.dumps(value))


@pytest.mark.parametrize("name", ["os.system; rm", "a b", "x" * 300, "\x1b[2J", "é .x"])
def test_names_that_are_none_are_no_advice(name):
    """The error repeats a name as a word of a command only if it is a name."""
    with pytest.raises(ValueError, match="which is no class") as raised:
        Unpickler().value(pickle.PROTO + b"\x04" + pickle.dumps("m", 4)[2:-1] + pickle.dumps(name, 4)[2:-1] + b"\x93.")
    assert not isinstance(raised.value, NamedClassError)
