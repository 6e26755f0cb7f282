"""How counts and moments are written."""

from __future__ import annotations

import re
from datetime import datetime

import recovery
from recovery.base.intervals import AVAILABLE_NOW, parse_trigger
from recovery.base.wording import counted, listed, moment_text, short_moment_text, were


def test_counts():
    """One is one."""
    assert [counted(n, "row") for n in (0, 1, 2, 1234)] == ["0 rows", "1 row", "2 rows", "1,234 rows"]
    assert counted(2, "micro-batch", "micro-batches") == "2 micro-batches"
    assert (were(1, "byte"), were(2, "byte")) == ("1 byte was", "2 bytes were")
    assert listed([3, 1, 2, 7]) == "1 to 3, 7"


def test_moments_carry_their_zone():
    """So that `restore --at` reads them wherever it runs."""
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
