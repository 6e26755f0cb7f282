"""What becomes of states when a step's type has changed."""

from __future__ import annotations

import re

import pytest

from recovery.values.migration import CHUNK_STATES, misread, typed_decoder


@pytest.mark.parametrize(
    ("state_type", "texts", "expected"),
    [
        (int, ["1", "2"], None),
        (int, [], None),
        (str, ['"a"', "2", "3"], "the state of key 'k1', 2, cannot be read: Expected `str`, got `int`"),
        (list[int], ["[1]", "[" + "1," * 99 + "1.5]"], r"the state of key 'k1', \[[1,]{116}\.\.\., cannot be read"),
        ("pickle", ["12"], "the state of key 'k0', 12, cannot be read"),
        (None, ["5", "["], "the state of key 'k1', \\[, cannot be read: Input data was truncated"),
    ],
    ids=str,
)  # fmt: skip
def test_the_first_state_that_a_type_does_not_read(state_type, texts, expected):
    """With its key, and why."""
    found = misread(typed_decoder(state_type), ((f"k{place}", text) for place, text in enumerate(texts)))
    if expected is None:
        assert found is None
    else:
        assert re.match(expected, found)


@pytest.mark.parametrize("place", [CHUNK_STATES - 1, CHUNK_STATES, 2 * CHUNK_STATES + 1])
def test_it_is_found_among_many(place):
    """They are read some ten thousand at a time, and the last ones are as many as are left."""
    states = [(str(number), "1") for number in range(2 * CHUNK_STATES + 2)]
    assert misread(typed_decoder(int), states) is None
    states[place] = (str(place), "null")
    assert misread(typed_decoder(int), states).startswith(f"the state of key '{place}', null, cannot be read")


def test_states_that_are_read_one_by_one_only():
    """That is reported, too."""

    def decode(texts):
        if len(texts) > 1:
            raise ValueError("too many")

    assert misread(decode, [("a", "1"), ("b", "2")]) == "its states cannot be read together: too many"
