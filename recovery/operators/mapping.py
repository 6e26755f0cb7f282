"""The state of a key of Spark's own operator as the state of a key of a step: kept, or made by the user's function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import msgspec.inspect

from recovery.base.wording import counted
from recovery.errors import ConfigurationError, RecoveryError, StateValueError, shown
from recovery.storage.seam import Edited
from recovery.values.codec import StateCodec, StateType, has_fields
from recovery.values.columns import arranging
from recovery.values.declaration import PICKLE, Form, form_of
from recovery.values.functions import check_runs, not_run

MapFunction = Callable[..., Any]
"""The user's function: `(key, state) -> new state`, or `(key, state, times) -> (new state, timeout in ms or None)`. A
new state of None leaves the key out."""

WITH_TIMES = 3
LISTED = 20
"""The most keys that an error names."""
MOST_MS = 1 << 53


class SparkKey(NamedTuple):
    """One key of an operator. text: its state key in a step. key: its value, as `update` of a step gets it. state: the
    operator's state of it; None: it has none, or only what has expired. times: when its timeouts, timers and lifetimes
    end, in milliseconds since 1970, sorted."""

    text: str
    key: Any
    state: Any
    times: tuple[int, ...]


@dataclass(slots=True)
class MappedKeys:
    """The states that a step takes over, by state key. form: that of its states; None: there are none. seen: the number
    of the operator's keys; left_out: of those for which the function returned None; expired: of those whose values have
    all outlived their lifetime; timeouts: of those that have a timeout in the step."""

    states: dict[str, Edited] = field(default_factory=dict)
    form: Form | None = None
    seen: int = 0
    left_out: int = 0
    expired: int = 0
    timeouts: int = 0


@dataclass(slots=True)
class _Failed:
    """The keys that failed: their number, and the first few with the reasons."""

    count: int = 0
    first: list[str] = field(default_factory=list)
    error: BaseException | None = None

    def add(self, key: Any, error: BaseException) -> None:
        self.count += 1
        self.error = self.error or error
        if len(self.first) < LISTED:
            found = error.found if isinstance(error, RecoveryError) else f"{type(error).__name__}: {error}"
            self.first.append(f"key {shown(key)}: {found:.300}")


def map_keys(keys: Iterable[SparkKey], mapping: StepMapping) -> MappedKeys:
    """Return the states of a step made from an operator's keys. Tries every key.

    Raises StateValueError, which names the first keys that fail, with the reasons.
    """
    found, failed = MappedKeys(), _Failed()
    encode: Callable[[Any], str] | None = None
    for each in keys:
        found.seen += 1
        if each.state is None and not each.times:
            found.expired += 1
            continue
        try:
            made = mapping.state_of(each)
            if made is None:
                found.left_out += 1
                continue
            state, timeout_ms = made
            if encode is None:
                kind = mapping.type_of(state)
                encode, found.form = StateCodec(kind).encode, form_of(kind)
            if each.text in found.states:
                raise _unfit("another key has the same text")
            found.states[each.text] = (encode(state), timeout_ms)
            found.timeouts += timeout_ms is not None
        except (Exception, SystemExit) as error:
            # The function is the user's: whatever it raises is a finding about this key. Nor may it end the command as
            # if all were imported.
            failed.add(each.key, error)
    if failed.count:
        raise _refused(failed, found.seen) from failed.error
    return found


class StepMapping:
    """How the keys of an operator become keys of a step."""

    def __init__(self, function: MapFunction | None, given: StateType, kept: StateType) -> None:
        """function: the user's; None: states are kept. given: the type of the step's states, as the user names it;
        None: the user names none. kept: the type of the operator's states. Raises ConfigurationError."""
        if function is not None:
            check_runs("the function of --map", function)
        self._function, self._given, self._kept = function, given, kept
        self._arrange = arranging(msgspec.inspect.type_info(given)) if given not in (None, PICKLE) else None
        self.with_times = function is not None and _decides_about_timeouts(function)

    def type_of(self, first: Any) -> StateType:
        """Return the type of the step's states, given the first: without a type from the user, an object with declared
        fields stands for its class."""
        if self._given is not None:
            return self._given
        if self._function is None:
            return self._kept
        return type(first) if has_fields(first) else None

    def state_of(self, each: SparkKey) -> tuple[Any, int | None] | None:
        """Return the new state of a key and its timeout; None: the key is left out. Raises StateValueError, and what
        the function raises."""
        if self.with_times:
            made = _pair(self._call(each.key, each.state, each.times))
            return None if made is None else (self._in_columns(made[0]), made[1])
        if self._function is None:
            if each.state is None:
                raise _unfit("it has a timer and no state, which a step cannot have")
            state = each.state
        else:
            state = self._call(each.key, each.state)
            if state is None:
                return None
        state = self._in_columns(state)
        if len(each.times) > 1:
            raise _unfit(f"it has {len(each.times)} timers or lifetimes, and a key of a step has one timeout")
        return state, each.times[0] if each.times else None

    def _in_columns(self, state: Any) -> Any:
        """Return a state as a step takes it. Rows of Spark, at any depth, go into columns that the user names by their
        own names: the user may name them in another order. Without such columns a function's own row stays, and is
        refused. Raises StateValueError for a row with another name."""
        if self._given not in (None, PICKLE):
            return unnamed(state if self._arrange is None else self._arrange(state))
        return unnamed(state) if self._function is None else state

    def _call(self, *arguments: Any) -> Any:
        assert self._function is not None
        made = self._function(*arguments)
        unfinished = not_run(made)
        if unfinished is not None:
            raise _unfit(f"the function returned {unfinished}")
        return made


def unnamed(value: Any) -> Any:
    """Return a value with plain tuples in place of Spark's rows."""
    if isinstance(value, tuple):
        return tuple(map(unnamed, value))
    if isinstance(value, list):
        return list(map(unnamed, value))
    if isinstance(value, dict):
        return {unnamed(key): unnamed(each) for key, each in value.items()}
    return value


def _pair(made: Any) -> tuple[Any, int | None] | None:
    """Check what a function of three arguments returned."""
    if made is None:
        return None
    if type(made) is not tuple or len(made) != WITH_TIMES - 1:
        raise _unfit(
            f"a function of three arguments returns (state, timeout in ms or None), or None, not {shown(made)}"
        )
    state, timeout_ms = made
    if state is None:
        return None
    if timeout_ms is not None and (type(timeout_ms) is not int or not 0 < timeout_ms < MOST_MS):
        raise _unfit(f"the timeout {shown(timeout_ms)} is no time in ms since 1970")
    return state, timeout_ms


def _decides_about_timeouts(function: MapFunction) -> bool:
    """Return whether the function gets the times of a key. Raises ConfigurationError unless the number of its arguments
    says so: what it returns has another meaning then."""
    without, with_times = (_takes(function, count) for count in (WITH_TIMES - 1, WITH_TIMES))
    if without != with_times:
        return with_times
    raise ConfigurationError(
        f"the function of --map, {getattr(function, '__name__', shown(function))}, takes "
        + ("two arguments, and three, too" if without else "neither two nor three arguments"),
        remedy="Write it as map(key, state), or as map(key, state, times), without a default, if it decides about "
        "timeouts.",
    )


def _takes(function: MapFunction, count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        # A built-in function without a signature takes what the two arguments of the usual form are.
        return count < WITH_TIMES
    return True


def _unfit(why: str) -> StateValueError:
    return StateValueError(why, cause="", remedy="")


def _refused(failed: _Failed, total: int) -> StateValueError:
    more = failed.count - len(failed.first)
    lines = [*failed.first, *([f"and {counted(more, 'other key')}"] if more else [])]
    return StateValueError(
        "\n  ".join([f"{failed.count} of {counted(total, 'key')} cannot be taken over; nothing was written", *lines]),
        cause="The function of --map fails for these keys, or their state has no form in the step.",
        remedy="Change the function; it may return None to leave a key out. With a third argument, map(key, state, "
        "times), it gets all times of the key, and returns (state, timeout in ms or None).",
    )
