"""The limit of a quarantine: what is one, and what exceeds it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from recovery import Flow, RecoveryConfig
from recovery.errors import ConfigurationError
from recovery.planning.quarantine import QuarantineLimit, parse_quarantine


@pytest.mark.parametrize(
    ("given", "rows", "share"),
    [
        (7, 7, None),
        ("0", 0, None),
        ("1%", 1000, Fraction(1, 100)),
        (" 0.05 % , 20 ", 20, Fraction(5, 10_000)),
        ("1000,100%", 1000, Fraction(1)),
    ],
)
def test_a_limit(given, rows, share):
    """A number, a share, or both. A share alone leaves the usual number."""
    assert parse_quarantine(given) == QuarantineLimit(rows, share)


@pytest.mark.parametrize(
    "given", ["", "x", "-1", -1, "1,2", "1%,2%", "101%", "1e3", "1_000", ",", "%", True, 1.5, "\u0663", "1%%", None]
)
def test_what_is_no_limit(given):
    """The error says how to write one: in a config, in a flow, everywhere the same."""
    with pytest.raises(ConfigurationError, match="is no limit"):
        parse_quarantine(given)
    if given is not None:
        with pytest.raises(ConfigurationError, match="is no limit"):
            RecoveryConfig("db", quarantine=given)
        with pytest.raises(ConfigurationError, match="is no limit"):
            Flow("f", lambda spark: None, quarantine=given)


@pytest.mark.parametrize(
    ("limit", "before", "after", "entered", "seen", "found"),
    [
        ("3", 0, 3, 3, 3, None),
        ("3", 0, 4, 4, 9, "4 rows would wait in quarantine after micro-batch 8, where 3 may"),
        ("3", 5, 5, 1, 9, None),
        ("3", 9, 4, 0, 9, None),
        ("0", 0, 0, 0, 9, None),
        ("1%", 0, 1, 1, 100, None),
        ("1%", 0, 2, 2, 199, "2 of 199 rows of micro-batch 8 would enter quarantine, where 1% may"),
        ("1%", 50, 3, 3, 200, "3 of 200 rows of micro-batch 8 would enter quarantine, where 1% may"),
        ("0%", 9, 9, 0, 0, None),
        ("0%", 9, 10, 1, 0, None),
        ("9,0%", 9, 10, 1, 0, "10 rows would wait in quarantine after micro-batch 8, where 9 may"),
        ("0.5%", 0, 1, 1, 2, "1 of 2 rows of micro-batch 8 would enter quarantine, where 0.5% may"),
        ("10,1%", 0, 11, 11, 5000, "11 rows would wait in quarantine after micro-batch 8, where 10 may"),
    ],
)
def test_what_exceeds_a_limit(limit, before, after, entered, seen, found):
    """A replay that leaves fewer rows never does; its new bad rows are compared with the share all the same. Of a
    micro-batch without rows, in which a timeout fails, only the number is compared."""
    assert parse_quarantine(limit).exceeded(8, before, after, entered, seen) == found
