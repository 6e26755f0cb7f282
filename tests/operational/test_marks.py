"""High-water marks through StateManager."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from recovery import ConfigurationError, HighWaterMarkError, StateManager, StateValueError
from tests.operational.support import HOUR_MS, SetClock

MOMENT = datetime(2024, 5, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
NAIVE = MOMENT.replace(tzinfo=None)


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
     (MOMENT, datetime(2024, 5, 1, 9, 59, tzinfo=UTC)),
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


@pytest.mark.parametrize("value", [float("nan"), Decimal("NaN"), [1], {"a": 1}])
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
