"""The state of one key, as the update function of a step sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic

from recovery.base.intervals import LONGEST_S, duration_ms
from recovery.errors import ConfigurationError, StateValueError, shortened, shown
from recovery.values.codec import StateCodec, StateType, has_fields

if TYPE_CHECKING:
    # In the standard library type variables have defaults only since Python 3.13.
    from typing_extensions import TypeVar

    S = TypeVar("S", default=Any)
else:
    from typing import TypeVar

    S = TypeVar("S")


_ABSENT = {
    "oldTimeoutTimestamp": "a call does not see the timeout before it; keep the time when the key times out, "
    "getCurrentProcessingTimeMs() + durationMs, in the state",
}
"""Members of PySpark's GroupState that are not here, and what takes their place."""


@dataclass(frozen=True, slots=True)
class CallFacts:
    """Facts shared by all keys of a chunk: how a stored state is decoded, the micro-batch's time in milliseconds since
    1970 (0 if the step does not need it), and whether the calls are for timeouts that passed."""

    decode: Callable[[str], Any]
    now_ms: int
    timed_out: bool = False


class GroupState(Generic[S]):
    """State of one key in one micro-batch, with the member names of PySpark's `GroupState`.

    Type checkers accept the type of the value: `state: GroupState[Session]`; only the step's `state=` decides what is
    stored.

    `get` returns the value as it was stored: a change to a list or dict in place is kept only if `update` gets it back.
    A timeout is forgotten whenever the function is called for the key, as in Spark, so a key that should time out sets
    it in each call.
    """

    __slots__ = ("_facts", "_stored", "_value", "changed", "exists", "timeout_at_ms")

    _facts: CallFacts
    _stored: str | None
    _value: Any
    exists: bool
    """Whether the key has state."""
    changed: bool
    """Whether `update` or `remove` was called."""
    timeout_at_ms: int | None
    """When the key times out, in milliseconds since 1970; None: never."""

    NO_TIMESTAMP = -1

    @classmethod
    def of(
        cls, value: S | None = None, *, state: StateType = None, now_ms: int = 0, timed_out: bool = False
    ) -> GroupState[S]:
        """Return a state to test a function with: for a key with this value, or without one (None), in a micro-batch
        that began `now_ms` milliseconds after 1970. In a run, states are made from the stored states.

        state: as in `stateful`; by default a dataclass or similar value stands for its own type. Raises
        StateValueError, as `GroupState.update` does, for a value that a run could not store.
        """
        made = _TestedState(state)
        made._facts = CallFacts(made._decode, now_ms, timed_out)
        made._stored = None if value is None else made._encode(value)
        made._value = None
        made.exists = value is not None
        made.changed = False
        made.timeout_at_ms = None
        return made

    @property
    def get(self) -> S:
        """The value. Raises ValueError if the key has none: check `exists` first."""
        stored = self._stored
        if stored is not None:
            try:
                self._value = self._facts.decode(stored)
            except Exception as error:
                raise StateValueError(
                    f"its state {shortened(stored)} cannot be read: {error}",
                    cause="The state was edited, or written by another kind of step under the same id.",
                    remedy="Correct it with `recovery state`, or start again with --drop-step.",
                ) from error
            self._stored = None
        elif not self.exists:
            raise ValueError("this key has no state: check state.exists first, or use state.getOption")
        value: S = self._value
        return value

    @property
    def getOption(self) -> S | None:
        """The value, or None if the key has none."""
        return self.get if self.exists else None

    @property
    def hasTimedOut(self) -> bool:
        """Whether the function was called because the key's timeout passed; then it gets no rows."""
        return self._facts.timed_out

    def update(self, newValue: S) -> None:
        """Set the key's value. None is not allowed: use `remove`."""
        if newValue is None:
            raise StateValueError(
                "state.update(None): a state cannot be None", cause="", remedy="Call state.remove() instead."
            )
        self._value = newValue
        self._stored = None
        self.exists = True
        self.changed = True

    def remove(self) -> None:
        """Discard the key; nothing of it stays."""
        self._value = None
        self._stored = None
        self.exists = False
        self.changed = True
        self.timeout_at_ms = None

    def setTimeoutDuration(self, durationMs: int | str | timedelta) -> None:
        """Let the key time out once that much processing time has passed without rows for it: milliseconds, an interval
        with a unit such as "5 minutes" or "5min", or a timedelta."""
        given_ms = _milliseconds(durationMs) if isinstance(durationMs, str | timedelta) else durationMs
        if isinstance(given_ms, bool) or not isinstance(given_ms, int):
            raise TypeError(
                f"setTimeoutDuration: durationMs must be a number of milliseconds, text such as '5 minutes', or a "
                f"timedelta, not {shown(durationMs)}"
            )
        if given_ms <= 0:
            raise ValueError(f"setTimeoutDuration: durationMs must be positive, not {shown(durationMs)}")
        if given_ms > LONGEST_S * 1000:
            raise ValueError(f"setTimeoutDuration: {shown(durationMs)} ms are more than a thousand years")
        # Without the time, the step itself refuses the timeout.
        self.timeout_at_ms = self._facts.now_ms + given_ms

    def setTimeoutTimestamp(self, timestampMs: int | datetime) -> None:
        """Raises NotImplementedError: event-time timeouts would need a watermark outside the partitions."""
        raise NotImplementedError(
            "event-time timeouts are not supported: use setTimeoutDuration, or compare timestamps in the rows"
        )

    def getCurrentProcessingTimeMs(self) -> int:
        """Return when the micro-batch began, in milliseconds since 1970; this is one value in every call of a
        micro-batch, also when the micro-batch is run again."""
        if not self._facts.now_ms:
            raise StateValueError(
                "update asks for the processing time, but the call was not found in its code",
                cause="The call is inside a helper of another module.",
                remedy="Declare it: stateful(..., timeout=True).",
            )
        return self._facts.now_ms

    def getCurrentWatermarkMs(self) -> int:
        """Raise NotImplementedError: a stateful step has no event time, as for setTimeoutTimestamp."""
        raise NotImplementedError("there is no event-time watermark in a stateful step")

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):
            raise AttributeError(
                "GroupState() belongs to no key: GroupState.of(value) is the state of one with this value, "
                "GroupState.of() that of a new key",
                name=name,
                obj=self,
            )
        if name in _ABSENT:
            raise AttributeError(f"a GroupState has no {name}: {_ABSENT[name]}", name=name, obj=self)
        meant = get_close_matches(name, [each for each in dir(type(self)) if not each.startswith("_")], 1, 0.7)
        hint = f": did you mean state.{meant[0]}?" if meant else ""
        raise AttributeError(f"a GroupState has no {name}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"GroupState({self.get!r})" if self.exists else "GroupState(<undefined>)"


@lru_cache(64)
def _milliseconds(duration: str | timedelta) -> int:
    """Return the milliseconds in a duration. Cached: a function gives the same text for every key. Raises ValueError,
    like any wrong argument: the error of a setting would hide that the flow's code gave it."""
    try:
        return duration_ms(duration)
    except ConfigurationError as error:
        raise ValueError(f"setTimeoutDuration: {' '.join(filter(None, (error.found + '.', error.remedy)))}") from None


class _TestedState(GroupState[S]):
    """The state that `GroupState.of` makes: it refuses a bad value when it is given; a run does so when storing it."""

    __slots__ = ("_codec", "_state_type")

    def __init__(self, state_type: StateType) -> None:
        self._state_type = state_type
        self._codec = StateCodec(state_type)

    def update(self, newValue: S) -> None:
        """Set the key's value. Raises StateValueError for a value that a run could not store."""
        super().update(newValue)
        self._encode(newValue)

    def _encode(self, value: S) -> str:
        if self._state_type is None and has_fields(value):
            self._codec = StateCodec(type(value))
        return self._codec.encode(value)

    def _decode(self, stored: str) -> Any:
        return self._codec.decode(stored)


def group_states(stored: Iterable[str | None], facts: CallFacts) -> Iterator[GroupState]:
    """Yield a new GroupState for each stored state; None stands for a key without state. A generator is resumed in a
    fraction of the time that a call of `__init__` takes, and this is done for every key."""
    for each in stored:
        state = GroupState()
        state._facts = facts
        state._stored = each
        state.exists = each is not None
        state.changed = False
        state.timeout_at_ms = None
        yield state
