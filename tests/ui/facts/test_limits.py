"""The bounds of a request."""

from __future__ import annotations

import time

import pytest

from recovery.base.threads import is_stopped, limited, time_left_s
from recovery.errors import ConfigurationError, LookLimitError
from recovery.ui.facts.limits import (
    LEAST_PATIENCE_S,
    MOST_PAGE_BYTES,
    MOST_VALUE_BYTES,
    PATIENCE_S,
    bounded,
    check_time,
    one_request,
    page_of,
    patience_s,
    shown_value,
)


def test_time_is_over_when_it_is_over():
    """A limit within another has its own time, which is not taken from the outer one."""
    assert time_left_s() is None
    check_time()
    with limited(30):
        with limited(0):
            assert is_stopped()
            with pytest.raises(LookLimitError):
                check_time()
            time.sleep(0.05)
        check_time()
        left_s = time_left_s()
        assert left_s is not None
        assert left_s > 29.5
    assert time_left_s() is None


def test_a_request_waits_as_long_as_it_says():
    """For looks, all together, but a little at least for a second look; a request that says nothing waits as programs
    do."""
    with one_request(0):
        assert patience_s() == LEAST_PATIENCE_S
        assert patience_s(0) == 0
    with one_request():
        assert LEAST_PATIENCE_S < patience_s() <= PATIENCE_S


def test_lists_end():
    """The last page has no next; a place behind the end is an empty page; one before the beginning is refused."""
    rows = list(range(5))
    assert [page_of(rows, *each) for each in ((None, 2), (2, 2), (4, 2), (9, 2))] == [
        ([0, 1], 2), ([2, 3], 4), ([4], None), ([], None)
    ]  # fmt: skip
    with pytest.raises(ConfigurationError):
        page_of(rows, -1, 2)


def test_a_list_of_values_is_bounded():
    """In rows and in bytes; one row is there, however long."""
    assert bounded(iter(range(9)), 4) == [0, 1, 2, 3]
    assert bounded(["v" * MOST_PAGE_BYTES] * 3, 3) == ["v" * MOST_PAGE_BYTES]
    assert len(bounded(["v" * 1_000_000] * 30, 30)) == 5


def test_a_long_value_is_cut():
    """With its whole length, and the beginning of its JSON."""
    assert shown_value(["é"]) == {"value": ["é"], "value_bytes": 6, "is_cut": False}
    found = shown_value("\ud800" * MOST_VALUE_BYTES)
    assert (found["is_cut"], found["value_bytes"]) == (True, 3 * MOST_VALUE_BYTES + 2)
    assert len(found["beginning"]) <= MOST_VALUE_BYTES
