"""Moving operational state from one backend to another, and verifying that all of it arrived."""

from __future__ import annotations

from dataclasses import replace

from recovery.base.clock import Clock, SystemClock
from recovery.base.wording import counted
from recovery.errors import ConfigurationError, CorruptStateError, StateLockedError
from recovery.operational.backends.backend import Backend, Document
from recovery.operational.closed_marks import above_closed, settled_marks
from recovery.operational.ids import OF_STORE, StateId, matches
from recovery.operational.marks import DOCUMENT, is_empty
from recovery.operational.scopes import has_expired, split


def migrate(
    source: Backend, target: Backend, *, force: bool = False, pattern: str | None = None, clock: Clock | None = None
) -> int:
    """Copy every document, tombstones, generations and times included, but no value whose retention has passed; returns
    how many states were written that exist: tombstones do not count.

    pattern: a glob; only documents whose ids match are copied, and then the target may hold others.

    Documents that the target already holds must be identical, unless forced. The source stays unchanged. Afterwards
    both backends are read again and compared. Raises ConfigurationError, StateLockedError if the source changed
    meanwhile, CorruptStateError if the target does not hold what was written.
    """
    now_ms = (clock or SystemClock()).wall_ms()
    every = _documents(source)
    found = {each: one for each, one in every.items() if not has_expired(one, now_ms)}
    chosen = {each: one for each, one in found.items() if matches(each, pattern)}
    documents = {each: above_closed(target, document) for each, document in chosen.items()}
    there = _documents(target)
    differing = [
        each
        for each, document in there.items()
        if document != documents.get(each)
        and (each in documents or (pattern is None and not has_expired(document, now_ms)))
    ]
    if differing and not force:
        raise ConfigurationError(
            f"{target.location} already holds other states: {', '.join(map(repr, differing[:3]))}",
            cause="The place is already in use.",
            remedy="Use an empty target; or give --force, which overwrites states of the same id and keeps others.",
        )
    wanted = [document for each, document in documents.items() if there.get(each) != document]
    target.place(wanted)
    _verify(target, documents)
    if _documents(source) != every:
        raise StateLockedError(
            f"{source.location} was changed while it was copied",
            cause="Another process still writes there.",
            remedy="Stop it, then run the same command again.",
        )
    return sum(is_there(document) for document in wanted)


def is_there(document: Document) -> bool:
    """Whether a document holds a state: neither a tombstone nor the rest of a document of marks without marks."""
    _, kind, parts = split(document.state_id)
    return document.content is not None and not (kind == DOCUMENT and not parts and is_empty(document.content))


def _documents(backend: Backend) -> dict[StateId, Document]:
    """Return all documents by id. Marks that epochs moved become ordinary marks, because the target may have no epochs;
    that is a change and gives another generation."""
    found = {document.state_id: document for document in backend.list() if document.state_id not in OF_STORE}
    settled = settled_marks(backend, found)
    return found | {each: replace(document, generation=document.generation + 1) for each, document in settled.items()}


def _verify(target: Backend, documents: dict[str, Document]) -> None:
    found = {each: document for each, document in _documents(target).items() if each in documents}
    if found != documents:
        lost = [each for each, document in documents.items() if found.get(each) != document]
        raise CorruptStateError(
            f"{target.location} does not hold {len(lost)} of {counted(len(documents), 'state')} as written: "
            f"{lost[0]!r:.80}",
            cause="Another process writes there, or the store does not return what was written.",
            remedy="Run the same command again; do not use the copy before the command succeeds.",
        )
