"""What a step's quarantine stores: an entry for each call of `update` that failed or waits, and a note for each key.

An entry has the rows of one key in one micro-batch, as an Arrow stream with their types, and the error. The note of a
key counts its entries' rows and has the number of the next entry; so tasks find the keys that wait without reading
rows. Both are JSON under the id of the step's quarantine, with keys made from that of the step:

    KEY U+001E               the note
    KEY U+001E 000000000007  entry number 7

The timeout of a note says whether the key waits (WAITS_MS) or is to be replayed (REPLAY_MS).
"""

from __future__ import annotations

import re

import msgspec

from recovery.base.tracebacks import own_places
from recovery.base.untrusted_json import LAST_MOMENT_MS, Count, Moment, Refusal, decode_json
from recovery.errors import RecoveryError, shortened
from recovery.values.keys import WAITING_SEPARATOR

WAITS_MS = LAST_MOMENT_MS
REPLAY_MS = 0
MOST_MESSAGE = 2000
"""The most characters that are kept of an error's message, type, or place."""
WITHOUT_KEY = ""
"""The key of all rows that a condition puts aside: the step has no key."""
_PLACE = re.compile(r"\([^()]*\)\Z")
_DIGITS = 12
_MOST_DIGITS = 19
MOST_ENTRIES = 10_000_000
"""The most entries of one key, each of one micro-batch: a note that says more would keep readers busy for hours."""


class KeptFailure(msgspec.Struct, frozen=True):
    """An error of the user's code: its type and message, and the places in the user's own files, the last one last."""

    type: str
    message: str
    places: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The error in one line."""
        place = f" ({self.places[-1]})" if self.places else ""
        return f"{self.type}: {shortened(self.message)}{place}"


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows of one key in one micro-batch. failure: the error of the newest attempt; None: the rows have only waited.
    timed_out: the call was for a timeout, and has no rows. data: the rows, as `quarantined_rows` packs them."""

    batch: int
    at_ms: Moment
    rows: Count
    data: str
    attempts: Count = 0
    failure: KeptFailure | None = None
    timed_out: bool = False


class KeyNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a key that waits. rows: of its entries, where a call without rows counts as one. first, end: its
    entries have numbers from `first` up to before `end`. since_ms: when the first of them came. error: the newest
    error, in one line. overdue_ms: a timeout of the key that passed while the key waited; None: none did."""

    rows: Count
    first: Count
    end: Count
    since_ms: Moment
    error: str
    overdue_ms: Moment | None = None

    def __post_init__(self) -> None:
        if not self.first <= self.end <= self.first + MOST_ENTRIES:
            raise ValueError(f"its entries have numbers from {self.first} up to before {self.end}")


def note_key(key: str) -> str:
    """Return the key of the note about a key that waits."""
    return key + WAITING_SEPARATOR


def note_of(name: str) -> str:
    """Return the key of the note that belongs to an entry or is the note."""
    key, separator, _ = name.rpartition(WAITING_SEPARATOR)
    return key + separator


def entry_key(key: str, number: int) -> str:
    """Return the key of an entry. Entries of one key sort by their numbers."""
    return f"{key}{WAITING_SEPARATOR}{number:0{_DIGITS}}"


def parse_waiting_key(text: str) -> tuple[str, int | None]:
    """Return the step's key and the entry's number; None for the key's note."""
    key, _, number = text.rpartition(WAITING_SEPARATOR)
    is_entry = number.isascii() and number.isdecimal() and _DIGITS <= len(number) <= _MOST_DIGITS
    return key, int(number) if is_entry else None


def to_text(document: Entry | KeyNote) -> str:
    """Return the JSON of an entry or a note."""
    return msgspec.json.encode(document).decode()


def note_from(text: str, refuse: Refusal) -> KeyNote:
    """Return the note in a text; raises the error that `refuse` makes."""
    return decode_json(text, refuse, KeyNote)


def entry_from(text: str, refuse: Refusal) -> Entry:
    """Return the entry in a text; raises the error that `refuse` makes."""
    return decode_json(text, refuse, Entry)


def again(entry: Entry, failure: KeptFailure) -> Entry:
    """Return an entry after another attempt that failed."""
    return msgspec.structs.replace(entry, attempts=entry.attempts + 1, failure=failure)


def held_by(condition: str) -> KeptFailure:
    """Return what is kept for rows for which a condition holds."""
    return KeptFailure("when", condition[:MOST_MESSAGE])


def failure_of(error: BaseException) -> KeptFailure:
    """Return what is kept of an error."""
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        message = error.found if isinstance(error, RecoveryError) else str(error)
    except Exception as failure:
        message = f"(its message cannot be shown: {type(failure).__name__})"
    return KeptFailure(_clean(name), _clean(message), tuple(map(_clean, own_places(error))))


def kind_of(error: str) -> tuple[str, str]:
    """Return the type of an error in one line, and the place that the line ends with: messages have values of rows."""
    place = _PLACE.search(error)
    return error.partition(":")[0], "" if place is None else place[0]


def _clean(text: str) -> str:
    """Return the beginning of a text, without what JSON lacks: any text in Python, such as the name of a file, may have
    lone surrogates."""
    return text[:MOST_MESSAGE].encode(errors="backslashreplace").decode()
