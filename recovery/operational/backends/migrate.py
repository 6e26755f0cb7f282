"""Moving operational state from one backend to another, and verifying that all of it arrived."""

from __future__ import annotations

from dataclasses import replace

from recovery.base.wording import counted
from recovery.errors import ConfigurationError, CorruptStateError, StateLockedError
from recovery.operational.backends.backend import Backend, Document
from recovery.operational.closed_marks import above_closed, settled_marks
from recovery.operational.ids import StateId, matches


def migrate(source: Backend, target: Backend, *, force: bool = False, pattern: str | None = None) -> int:
    """Copy every document, tombstones, generations and times included; returns how many were written.

    pattern: a glob; only documents whose ids match are copied, and then the target may hold others.

    Documents that the target already holds must be identical, unless forced. The source stays unchanged. Afterwards
    both are read again and compared. Raises ConfigurationError, StateLockedError if the source changed meanwhile,
    CorruptStateError if the target does not hold what was written.
    """
    found = _documents(source)
    chosen = {each: one for each, one in found.items() if matches(each, pattern)}
    documents = {each: above_closed(target, document) for each, document in chosen.items()}
    there = _documents(target)
    differing = [
        each
        for each, document in there.items()
        if document != documents.get(each) and (pattern is None or each in documents)
    ]
    if differing and not force:
        raise ConfigurationError(
            f"{target.location} already holds other states: {', '.join(map(repr, differing[:3]))}",
            cause="It is already in use.",
            remedy="Use an empty target; or give --force, which overwrites states of the same id and keeps others.",
        )
    wanted = [document for each, document in documents.items() if there.get(each) != document]
    target.place(wanted)
    _verify(target, documents)
    if _documents(source) != found:
        raise StateLockedError(
            f"{source.location} was changed while it was copied",
            cause="Another process still writes there.",
            remedy="Stop it, then run the same command again.",
        )
    return len(wanted)


def _documents(backend: Backend) -> dict[StateId, Document]:
    """Return all documents by id. Marks that epochs moved become ordinary marks, because the target may have no epochs;
    that is a change and gives another generation."""
    found = {document.state_id: document for document in backend.list()}
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
