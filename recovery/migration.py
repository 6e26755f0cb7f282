"""Turning states of one form into another: what a step's `migrate` function does to the stored text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recovery.codec import StateCodec, StateType, make_portable
from recovery.declaration import PICKLE, Form
from recovery.errors import StateValueError
from recovery.planning.values import Convert

Migrate = Callable[[Any], Any]


def converter(step_id: str, migrate: Migrate, state_type: StateType, old: Form) -> Convert:
    """From states of form `old` to states of `state_type`, text to text.

    `migrate` gets the old state as plain data, the object itself if it was pickled, and gives the new state, or None
    to discard the key. The result raises StateValueError naming step and key.
    """
    decode = StateCodec(PICKLE if old == PICKLE else None).decode
    encode = StateCodec(state_type).encode
    make_portable(state_type)

    def convert(key: str, text: str) -> str | None:
        try:
            state = migrate(decode(text))
            return None if state is None else encode(state)
        except Exception as error:
            found = error.found if isinstance(error, StateValueError) else f"{type(error).__name__}: {error}"
            raise StateValueError(
                f"step {step_id!r}, key {key!r}: its state cannot be migrated: {found}",
                cause="The migrate function fails for this state, or gives something else than the declared type.",
                remedy="Mend the function and run again: nothing was changed.",
            ) from error

    return convert
