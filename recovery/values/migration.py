"""Convert stored states to another form with a step's `migrate` function, or check that a step can read them
unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from recovery.errors import StateValueError, shortened, shown
from recovery.values.codec import StateCodec, StateType, make_portable
from recovery.values.declaration import PICKLE, Convert, Form

Migrate = Callable[[Any], Any]
CHUNK_STATES = 10_000


def converter(step_id: str, migrate: Migrate, state_type: StateType, old: Form) -> Convert:
    """Return a function that converts texts of states of form `old` to texts of states of `state_type`.

    `migrate` gets the old state as plain data, or the object itself if it was pickled. `migrate` returns the new state,
    or None to discard the key. The returned function raises StateValueError, which names step and key.
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
                remedy="Fix the function and run again: nothing was changed.",
            ) from error

    return convert


def misread(decode: Callable[[Sequence[str]], object], states: Iterable[tuple[str, str]]) -> str | None:
    """Return a sentence with the first state that `decode` cannot read, its key and the reason; None if it reads all.

    `states` are pairs of key and text. `decode` takes any number of texts, and raises if it cannot read a text.
    """
    states = iter(states)
    while chunk := list(islice(states, CHUNK_STATES)):
        try:
            decode([text for _, text in chunk])
            continue
        except Exception as error:
            whole = error
        for key, text in chunk:
            try:
                decode([text])
            except Exception as error:
                return f"the state of key {shown(key)}, {shortened(text)}, cannot be read: {error}"
        return f"its states cannot be read together: {whole}"
    return None


def typed_decoder(state_type: StateType) -> Callable[[Sequence[str]], object]:
    """Return a `decode` function for `misread` that reads values of this type."""
    decode = StateCodec(state_type).decode
    make_portable(state_type)

    def decode_all(texts: Sequence[str]) -> None:
        for text in texts:
            decode(text)

    return decode_all
