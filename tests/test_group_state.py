"""The state of one key, as update functions see it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from recovery import GroupState
from recovery.errors import ConfigurationError, StateValueError
from recovery.group_state import CallFacts, group_states
from recovery.values.codec import StateCodec

NOW_MS = 1_000_000


def state_of(stored: str | None, timed_out: bool = False) -> GroupState:
    """The state of a key with this stored text."""
    [state] = group_states([stored], CallFacts(StateCodec().decode, NOW_MS, timed_out))
    return state


def test_it_has_the_members_of_spark_s_group_state():
    """Code written for applyInPandasWithState finds every public name it knows."""
    members = {name for name in vars(SparkGroupState) if not name.startswith("_")} - {"oldTimeoutTimestamp", "json"}
    assert {"exists", "get", "getOption", "update", "remove", "hasTimedOut", "setTimeoutDuration"} <= members
    assert [name for name in sorted(members) if not hasattr(GroupState, name)] == []


def test_it_can_say_of_what_it_is():
    """For type checkers, also where annotations are evaluated."""
    assert GroupState[list[int]].of([1]).get == [1]


def test_a_new_key_has_no_state():
    """`get` says what to do instead, `getOption` gives None."""
    state = state_of(None)
    assert not state.exists
    assert state.getOption is None
    with pytest.raises(ValueError, match=r"state\.exists"):
        _ = state.get
    assert not state.changed
    assert repr(state) == "GroupState(<undefined>)"


def test_a_stored_state_that_cannot_be_read():
    """The error names the state, not the function that reads it."""
    [state] = group_states(['{"n":1}'], CallFacts(StateCodec(int).decode, NOW_MS))
    for _ in range(2):
        with pytest.raises(StateValueError, match=r'its state {"n":1} cannot be read: Expected `int`, got `object`'):
            _ = state.getOption
    state.update(2)
    assert state.get == 2


def test_a_stored_state_is_decoded_once_when_asked_for():
    """Reading costs nothing for keys whose function does not look; one object is given each time."""
    decoded = []
    [state] = group_states(['{"n":1}'], CallFacts(lambda text: decoded.append(text) or {"n": 1}, NOW_MS))
    assert state.exists
    assert decoded == []
    assert state.get == state.getOption == {"n": 1}
    assert state.get is state.get
    assert decoded == ['{"n":1}']
    assert not state.changed


@pytest.mark.parametrize("stored", ["null", "0", "false", '""', "[]", "{}"])
def test_values_that_are_false_are_states(stored):
    """A key whose value is 0, empty or null exists."""
    state = state_of(stored)
    assert state.exists
    assert not state.get


@pytest.mark.parametrize("stored", [None, "1"])
def test_update_sets_the_value(stored):
    """It exists immediately, and is marked to be written."""
    state = state_of(stored)
    state.update({"n": 2})
    assert (state.exists, state.changed, state.get) == (True, True, {"n": 2})
    assert repr(state) == "GroupState({'n': 2})"


@pytest.mark.parametrize("stored", [None, "1"])
def test_remove_discards_the_key(stored):
    """Value and timeout are gone; a later update brings the key back."""
    state = state_of(stored)
    state.setTimeoutDuration(5)
    state.remove()
    assert (state.exists, state.changed, state.getOption, state.timeout_at_ms) == (False, True, None, None)
    with pytest.raises(ValueError, match="no state"):
        _ = state.get
    state.update(3)
    assert (state.exists, state.get) == (True, 3)


def test_update_to_none_is_refused():
    """None would be a key without state: remove says that."""
    state = state_of("1")
    with pytest.raises(StateValueError, match="cannot be None") as raised:
        state.update(None)
    assert "remove" in raised.value.remedy
    assert (state.get, state.changed) == (1, False)


def test_a_timeout_counts_from_the_time_of_the_micro_batch():
    """Not from the machine's clock: a task that runs again sets the same one."""
    state = state_of("1")
    assert state.timeout_at_ms is None
    state.setTimeoutDuration(250)
    assert state.timeout_at_ms == NOW_MS + 250
    state.setTimeoutDuration(10)
    assert state.timeout_at_ms == NOW_MS + 10
    assert state.getCurrentProcessingTimeMs() == NOW_MS
    assert not state.changed


@pytest.mark.parametrize(
    ("duration", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (10**15, ValueError),
        (10**30, ValueError),
        (1.5, TypeError),
        (True, TypeError),
        (timedelta(0), ValueError),
        (timedelta(-1), ValueError),
        (timedelta.max, ValueError),
        (None, TypeError),
    ],
)
def test_a_duration_is_a_positive_number_of_milliseconds(duration, error):
    """Anything else is refused, and sets nothing; so is a time so far away that a partition could not hold it."""
    state = state_of("1")
    with pytest.raises(error, match=r"^setTimeoutDuration: "):
        state.setTimeoutDuration(duration)
    assert state.timeout_at_ms is None


def test_whether_the_key_timed_out_is_known():
    """Only in the call that is made because of it."""
    assert state_of("1", timed_out=True).hasTimedOut
    assert not state_of("1").hasTimedOut


@pytest.mark.parametrize("at", [1, datetime(2020, 1, 1, tzinfo=UTC)])
def test_event_time_timeouts_are_refused_clearly(at):
    """There is no watermark in a step; the error names what to use."""
    with pytest.raises(NotImplementedError, match="setTimeoutDuration"):
        state_of("1").setTimeoutTimestamp(at)
    with pytest.raises(NotImplementedError, match="watermark"):
        state_of("1").getCurrentWatermarkMs()


def test_a_function_can_be_tested_with_a_state_of_its_own():
    """Of a key with a value, without one, or one that has timed out: it behaves as one that was read."""
    new = GroupState.of()
    assert (new.exists, new.getOption, new.changed, new.timeout_at_ms) == (False, None, False, None)
    with pytest.raises(ValueError, match="no state"):
        _ = new.get
    state = GroupState.of([1], now_ms=NOW_MS, timed_out=True)
    assert (state.exists, state.get, state.changed, state.hasTimedOut) == (True, [1], False, True)
    state.setTimeoutDuration(5)
    assert (state.timeout_at_ms, state.getCurrentProcessingTimeMs()) == (NOW_MS + 5, NOW_MS)
    state.remove()
    assert (state.exists, state.changed) == (False, True)


def test_the_example_of_such_a_test_runs():
    """Exactly as the documentation shows it."""
    page = (Path(__file__).parents[1] / "docs" / "flow-api.md").read_text()
    [code] = re.findall(r"^### Testing a function$.*?^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(compile(code, "flow-api.md", "exec"), {})


@dataclass
class Session:
    clicks: int


def test_a_test_refuses_what_a_run_refuses():
    """The value that a key has, and the one that the function gives."""
    for value in (defaultdict(int, {"x": 1}), (1, 2), {1: 2}, float("nan"), object(), Counter("a"), b"x"):
        with pytest.raises(StateValueError):
            GroupState.of(value)
        with pytest.raises(StateValueError):
            GroupState.of({}).update(value)
    state = GroupState.of((1, 2.5), state=tuple[int, float])
    assert state.get == (1, 2.5)
    with pytest.raises(StateValueError):
        state.update([1, 2.5])
    assert GroupState.of({1, 2}, state="pickle").get == {1, 2}


def test_a_dataclass_is_a_state_of_its_own_type():
    """Without saying so; `get` gives what is stored, as in a run."""
    given = Session(1)
    state = GroupState.of(given)
    assert state.get == given
    assert state.get is not given
    state = GroupState.of()
    state.update(Session(2))
    assert (state.get, state.changed, repr(state)) == (Session(2), True, "GroupState(Session(clicks=2))")
    with pytest.raises(StateValueError):
        state.update(Session("x"))


@pytest.mark.parametrize(
    ("duration", "at_ms"),
    [
        ("5 minutes", 300_000),
        ("1 hour 30 minutes", 5_400_000),
        ("interval 2 days", 172_800_000),
        ("10s", 10_000),
        ("5min", 300_000),
        (timedelta(seconds=1.5), 1500),
    ],
)
def test_a_timeout_in_words(duration, at_ms):
    """As in Spark's own intervals, and as in this package's."""
    state = GroupState.of(1, now_ms=7)
    state.setTimeoutDuration(duration)
    assert state.timeout_at_ms == 7 + at_ms


@pytest.mark.parametrize("duration", ["1 month", "", "soon", "5 minutes 3", "5000"])
def test_an_invalid_timeout_text(duration):
    """An error of the flow's code, like any wrong argument: it names the call, the text and what can be written."""
    with pytest.raises(
        ValueError, match=r"setTimeoutDuration: .*(is not an interval|has no unit).* '5 minutes'"
    ) as raised:
        GroupState.of(1).setTimeoutDuration(duration)
    assert not isinstance(raised.value, ConfigurationError)
    assert repr(duration) in str(raised.value)


def test_a_member_by_a_wrong_name():
    """The error names the right one."""
    with pytest.raises(AttributeError, match=r"did you mean state\.getCurrentProcessingTimeMs\?"):
        _ = GroupState.of(1).getCurrentProcessingTime
    assert not hasattr(GroupState.of(1), "json")
    with pytest.raises(AttributeError, match=r"oldTimeoutTimestamp: .* keep the time .* in the state"):
        _ = GroupState.of(1).oldTimeoutTimestamp


def test_a_state_that_belongs_to_no_key():
    """The error names the way to make one in a test."""
    with pytest.raises(AttributeError, match=r"GroupState\.of\(\) that of a new key"):
        _ = GroupState().getOption
