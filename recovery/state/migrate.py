"""Moving operational state from one backend to another, with a proof that all of it arrived."""

from __future__ import annotations

from recovery.errors import ConfigurationError, CorruptStateError, StateLockedError
from recovery.state.backend import Backend, Document
from recovery.state.closed_marks import settled_marks


def migrate(source: Backend, target: Backend, *, force: bool = False) -> int:
    """Copy every document, tombstones, generations and times included; returns how many were written.

    What the target has already must be the same, unless forced. The source stays as it is. Afterwards both are read
    again and compared. Raises ConfigurationError, StateLockedError when the source changed meanwhile, CorruptStateError
    when the target does not hold what was written.
    """
    found = {document.state_id: document for document in source.list()}
    documents = {**found, **settled_marks(source, found)}
    there = {document.state_id: document for document in target.list()}
    differing = [each for each, found in there.items() if found != documents.get(each)]
    if differing and not force:
        raise ConfigurationError(
            f"{target.location} holds other states already: {', '.join(map(repr, differing[:3]))}",
            cause="It was used before.",
            remedy="Take an empty place; or give --force: states of the same id are overwritten, others stay.",
        )
    wanted = [document for each, document in documents.items() if there.get(each) != document]
    target.place(wanted)
    _verify(target, documents)
    if {document.state_id: document for document in source.list()} != found:
        raise StateLockedError(
            f"{source.location} was changed while it was copied",
            cause="Something still writes there.",
            remedy="Stop it, then run the same command again.",
        )
    return len(wanted)


def _verify(target: Backend, documents: dict[str, Document]) -> None:
    found = {document.state_id: document for document in target.list() if document.state_id in documents}
    if found != documents:
        lost = [each for each, document in documents.items() if found.get(each) != document]
        raise CorruptStateError(
            f"{target.location} does not hold {len(lost)} of {len(documents)} states as written: {lost[0]!r:.80}",
            cause="Somebody else writes there, or the store does not keep its promises.",
            remedy="Run the same command again; do not use the copy before it succeeded.",
        )
