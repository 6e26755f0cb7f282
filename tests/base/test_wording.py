"""How counts and moments are written."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

import recovery
from recovery.base.intervals import AVAILABLE_NOW, parse_trigger
from recovery.base.wording import (
    AHEAD_MS,
    age_s,
    ago,
    ahead_s,
    counted,
    listed,
    moment_text,
    short_moment_text,
    were,
)


def test_counts():
    """One is one."""
    assert [counted(n, "row") for n in (0, 1, 2, 1234)] == ["0 rows", "1 row", "2 rows", "1,234 rows"]
    assert counted(2, "micro-batch", "micro-batches") == "2 micro-batches"
    assert (were(1, "byte"), were(2, "byte")) == ("1 byte was", "2 bytes were")
    assert listed([3, 1, 2, 7]) == "1 to 3, 7"


def test_moments_carry_their_zone():
    """So that `restore --timestamp` reads them wherever it runs."""
    assert datetime.fromisoformat(moment_text(1_800_000_000_000)).timestamp() == 1_800_000_000
    assert re.fullmatch(r"\w{3} \d\d, \d\d:\d\d [+-]\d\d:\d\d", short_moment_text(1_800_000_000_000))


def test_triggers():
    """Spark's names, in any case, mean a run to the end of the input."""
    for name in ("available-now", "availableNow", "AVAILABLE_NOW", "once", "Once"):
        assert parse_trigger(name) == AVAILABLE_NOW
    assert (parse_trigger("10s"), parse_trigger(0), parse_trigger(None)) == (10.0, 0.0, None)


def test_public_names_are_listed():
    """Those that are imported later, too: an interpreter completes them."""
    assert set(recovery.__all__) <= set(dir(recovery))


@pytest.mark.parametrize(
    ("ahead_ms", "age", "ahead", "text"),
    [
        (-7_200_000, 7200.0, 0.0, "2 h ago"),
        (-1_500, 1.5, 0.0, "2 s ago"),
        (0, 0.0, 0.0, "0 s ago"),
        (AHEAD_MS, 0.0, 0.0, "0 s ago"),
        (AHEAD_MS + 1, -60.001, 60.001, "1 min ahead of this host's clock"),
        (3_600_000, -3600.0, 3600.0, "1 h ahead of this host's clock"),
    ],
)
def test_a_moment_that_is_far_ahead_is_no_age(ahead_ms, age, ahead, text):
    """Two clocks differ by seconds; a minute means that one of them is wrong."""
    now_ms = 1_800_000_000_000
    assert age_s(now_ms + ahead_ms, now_ms) == age
    assert ahead_s(now_ms + ahead_ms, now_ms) == ahead
    assert ago(age) == text
