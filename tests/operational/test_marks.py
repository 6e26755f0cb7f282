"""High-water marks through StateManager."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy
import pandas
import pytest
from click.testing import CliRunner

from recovery import ConfigurationError, HighWaterMarkError, StateManager, StateValueError
from recovery.cli import main
from tests.operational.support import HOUR_MS, SetClock

MOMENT = datetime(2024, 5, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
NAIVE = MOMENT.replace(tzinfo=None)
END_OF_TIME = datetime.max.replace(tzinfo=ZoneInfo("America/New_York"))
START_OF_TIME = datetime.min.replace(tzinfo=ZoneInfo("Asia/Tokyo"))
"""Moments that have no date in UTC."""


@pytest.fixture
def state(store_dir):
    return StateManager(store_dir)


def test_an_unknown_mark_is_returned_as_none(state):
    """There is nothing to tell it from but None, which cannot be set."""
    assert state.get_hwm("orders") is None
    with pytest.raises(StateValueError):
        state.set_hwm("orders", None)


@pytest.mark.parametrize(
    "value", [5, -5, 0.25, "abc", True, date(2024, 5, 1), MOMENT, NAIVE, Decimal("1.10"), b"\0\xff"]
)
def test_a_mark_keeps_its_type(state, store_dir, value):
    """Also for the next process."""
    state.set_hwm("k", value)
    back = StateManager(store_dir).get_hwm("k")
    assert (back, type(back), str(back)) == (value, type(value), str(value))


@pytest.mark.parametrize(
    ("before", "after"),
    [(5, 4), (5, 4.5), (Decimal(5), 4), ("b", "a"), (True, False), (date(2024, 1, 2), date(2024, 1, 1)), (b"b", b"a"),
     (MOMENT, datetime(2024, 5, 1, 9, 59, tzinfo=UTC)), (END_OF_TIME, END_OF_TIME - timedelta(seconds=1)),
     (END_OF_TIME, MOMENT), (MOMENT, START_OF_TIME),
     (5, "6"), (1, True), (date(2024, 1, 1), NAIVE), (MOMENT, NAIVE)],
    ids=str,
)  # fmt: skip
def test_a_mark_moves_forward_only(state, before, after):
    """Neither back nor to something it cannot be compared with, unless forced."""
    state.set_hwm("k", before)
    with pytest.raises(HighWaterMarkError, match="'k'"):
        state.set_hwm("k", after)
    assert state.get_hwm("k") == before
    state.set_hwm("k", after, force=True)
    assert state.get_hwm("k") == after


@pytest.mark.parametrize(
    ("before", "after", "forward"),
    [("2026-11-01T01:50:00-05:00", "2026-11-01T01:55:00-04:00", False),
     ("2026-11-01T01:55:00-04:00", "2026-11-01T01:50:00-05:00", True),
     ("2026-11-01T01:55:00-04:00", "2026-11-01T01:55:00-05:00", True),
     ("2026-11-01T01:55:00-05:00", "2026-11-01T01:55:00-04:00", False),
     ("2026-11-01T01:55:00-05:00", "2026-11-01T06:54:00+00:00", False),
     ("2026-11-01T01:55:00-04:00", "2026-11-01T05:56:00+00:00", True),
     ("2026-11-01T05:56:00+00:00", "2026-11-01T01:50:00-05:00", True)],
)  # fmt: skip
def test_moments_in_the_hour_that_comes_twice(state, before, after, forward):
    """They are compared as instants, whatever the clocks of their zone show; also beside another zone, by the command,
    as values of pandas, and below a lag."""

    def moment(text: str) -> datetime:
        found = datetime.fromisoformat(text)
        return found if text.endswith("+00:00") else found.astimezone(ZoneInfo("America/New_York"))

    def mark(text: str) -> str:
        zone = {} if text.endswith("+00:00") else {"zone": "America/New_York"}
        return json.dumps({"$datetime": text, **zone})

    code = 0 if forward else HighWaterMarkError.exit_code
    for key, value in (
        ("k", moment(after)),
        ("p", pandas.Timestamp(moment(after).astimezone(UTC)).tz_convert("America/New_York")),
    ):
        state.set_hwm(key, moment(before))
        with contextlib.nullcontext() if forward else pytest.raises(HighWaterMarkError, match="would move back"):
            state.set_hwm(key, value)
        assert state.get_hwm(key).astimezone(UTC) == datetime.fromisoformat(after if forward else before)
    for text, expected in ((before, 0), (after, code), (before, HighWaterMarkError.exit_code if forward else 0)):
        result = CliRunner().invoke(main, ["hwm", "set", str(state.backend.directory), "c", mark(text)])
        assert result.exit_code == expected, result.output


@pytest.mark.parametrize(
    ("value", "stored"),
    [(numpy.int64(5), 5), (numpy.float32(0.5), 0.5), (numpy.str_("b"), "b"), (numpy.bool_(True), True),
     (numpy.datetime64("2026-01-31"), date(2026, 1, 31)),
     (numpy.datetime64("2026-01-31T05:17", "ns"), datetime(2026, 1, 31, 5, 17)),  # noqa: DTZ001 - it has no zone
     (pandas.Timestamp("2026-01-31T05:17"), datetime(2026, 1, 31, 5, 17)),  # noqa: DTZ001
     (pandas.Timestamp("2026-01-31T05:17", tz="Europe/Berlin"),
      datetime(2026, 1, 31, 5, 17, tzinfo=ZoneInfo("Europe/Berlin")))],
    ids=repr,
)  # fmt: skip
def test_scalars_of_numpy_and_pandas_as_marks(state, value, stored):
    """They are stored as Python's values, and compared with them, in both directions."""
    state.set_hwm("k", stored)
    state.set_hwm("k", value)
    assert state.find_mark("k").version == 1
    state.set_hwm("new", value)
    found = state.get_hwm("new")
    assert (found, type(found)) == (stored, type(stored))
    state.set_hwm("new", stored)


@pytest.mark.parametrize("value", [pandas.NaT, numpy.datetime64("NaT"), pandas.Timestamp(1), numpy.datetime64(1, "ns")])
def test_times_that_python_does_not_have(state, value):
    """Nothing is rounded silently, and a count of nanoseconds is no mark."""
    with pytest.raises(StateValueError):
        state.set_hwm("k", value)
    assert state.list_hwms() == []


@pytest.mark.parametrize("value", [float("nan"), Decimal("NaN"), Decimal("Infinity"), float("-inf"), [1], {"a": 1}])
def test_a_mark_has_an_order(state, value):
    """What cannot be compared could never be moved forward."""
    with pytest.raises(StateValueError, match="high-water mark"):
        state.set_hwm("k", value)


def test_a_batch_is_all_or_nothing(state):
    """One mark that would move back keeps the others where they are; a key twice is a mistake."""
    state.set_hwm_batch([{"key": "a", "value": 5}, {"key": "b", "value": 5}])
    with pytest.raises(HighWaterMarkError):
        state.set_hwm_batch([{"key": "a", "value": 6}, {"key": "b", "value": 4}])
    with pytest.raises(ConfigurationError, match="twice"):
        state.set_hwm_batch([{"key": "a", "value": 6}, {"key": "a", "value": 7}])
    with pytest.raises(ConfigurationError, match="not an entry"):
        state.set_hwm_batch([{"key": "a"}])
    assert [(mark.key, mark.value) for mark in state.list_hwms()] == [("a", 5), ("b", 5)]


@pytest.mark.parametrize("key", ["a/b", "..", "*", "'\"", "🙂", "k" * 10_000, " ", "%2F", "@dev/k"])
def test_keys_are_texts_of_any_kind(state, key):
    """They come back as they were, and mean nothing to the file system or to SQL."""
    state.set_hwm(key, 1)
    assert [mark.key for mark in state.list_hwms()] == [key]
    assert state.get_hwm(key) == 1
    assert state.remove_hwm(key, "other") == 1
    assert state.get_hwm(key) is None


def test_dev_and_prod_of_one_key_never_meet(store_dir):
    """Environments are apart, also one that is named like the id of another's mark."""
    plain, dev, prod = (StateManager(store_dir, environment=name) for name in ("", "dev", "prod"))
    dev.set_hwm("k", 1)
    prod.set_hwm("k", 2)
    assert [each.get_hwm("k") for each in (plain, dev, prod)] == [None, 1, 2]
    assert prod.remove_hwm("k") == 1
    assert [mark.value for mark in dev.list_hwms()] == [1]
    assert StateManager(store_dir, environment="dev/hwm").list_hwms() == []


def test_the_time_of_a_change_never_goes_back(store_dir):
    """A clock that is an hour behind changes marks like any other."""
    ahead, behind = SetClock(), SetClock()
    behind.now_ms = ahead.now_ms - HOUR_MS
    StateManager(store_dir, clock=ahead).set_hwm("k", 1)
    late = StateManager(store_dir, clock=behind)
    late.set_hwm("k", 2)
    [mark] = late.list_hwms()
    assert (mark.value, mark.version) == (2, 2)
    [document] = late.backend.list("hwm")
    assert document.changed_ms == ahead.now_ms


def test_a_glob_selects_marks(state):
    """The same one everywhere."""
    state.set_hwm_batch([{"key": key, "value": 1} for key in ("a/1", "a/2", "b/1")])
    assert [mark.key for mark in state.list_hwms("a/*")] == ["a/1", "a/2"]
    assert state.list_hwms("A*") == []
