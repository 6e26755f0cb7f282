"""How two JSON values differ."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.errors import ConfigurationError
from recovery.planning.comparing import ABSENT, Comparison, Difference

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner))


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (1, 1, []),
        (1, 2, [Difference("", 1, 2)]),
        ({"n": 1, "total": 2.5}, {"n": 1, "total": 3.5}, [Difference("total", 2.5, 3.5)]),
        ({"n": 1}, {"n": 1, "last": None}, [Difference("last", ABSENT, None)]),
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 3}]}}, [Difference("a.b[1].c", 2, 3)]),
        ([1, 2], [1, 2, 3], [Difference("", [1, 2], [1, 2, 3])]),
        (1, 1.0, []),
        (1, True, [Difference("", 1, True)]),
        ("1", 1, [Difference("", "1", 1)]),
        (math.nan, math.nan, []),
        (2**53 + 1, float(2**53), [Difference("", 2**53 + 1, float(2**53))]),
        (10**400, 1.5, [Difference("", 10**400, 1.5)]),
    ],
)
def test_differences(before, after, found):
    """Members by their path; another length, type or member is a difference."""
    assert Comparison().differences(before, after) == found


def test_tolerance_and_ignored_fields():
    """Floats that are close are equal; whole numbers are exact; a field is ignored at any depth."""
    close = Comparison(1e-9, ["seen"])
    assert close.differences({"mean": 0.1 + 0.2, "seen": 1}, {"mean": 0.3, "seen": 2}) == []
    assert close.differences({"mean": 0.3}, {"mean": 0.3001}) != []
    assert close.differences(10**18, 10**18 + 1) != []
    assert close.differences(10**400, 1.5) != []
    assert close.differences([{"seen": 1}], [{"seen": 2}]) == []


@pytest.mark.parametrize("wrong", [-1, -0.1, math.nan, math.inf])
def test_a_tolerance_that_is_none(wrong):
    """With it, nothing or all would be equal."""
    with pytest.raises(ConfigurationError, match="is not a tolerance"):
        Comparison(wrong)


def test_values_that_are_nested_deeply():
    """One difference, and no error."""
    before, after = 1, 2
    for _ in range(5000):
        before, after = [before], [after]
    [found] = Comparison().differences(before, after)
    assert (found.path, found.before is before, found.after is after) == ("", True, True)


@given(VALUES, VALUES)
def test_no_difference_means_equal(before, after):
    """As JSON; and a difference is the same seen from the other side."""
    there, back = Comparison().differences(before, after), Comparison().differences(after, before)
    assert {(each.path, repr(each.before), repr(each.after)) for each in there} == {
        (each.path, repr(each.after), repr(each.before)) for each in back
    }
    assert Comparison().differences(before, before) == []
    if not there and not any(isinstance(each, float) for each in (before, after)):
        assert json.dumps(before, sort_keys=True).replace(".0", "") == json.dumps(after, sort_keys=True).replace(
            ".0", ""
        )
