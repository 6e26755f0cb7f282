"""Moving operational state from one backend to another, with a proof that all of it arrived."""

from __future__ import annotations

from collections.abc import Mapping

from recovery.errors import ConfigurationError, CorruptStateError, StateLockedError
from recovery.state import marks
from recovery.state.backend import Backend, DirectoryBackend, Document
from recovery.state.closed_marks import rows_by_environment
from recovery.state.ids import unescape


def migrate(source: Backend, target: Backend, *, force: bool = False) -> int:
    """Copy every document, tombstones, generations and times included; returns how many were written.

    What the target has already must be the same, unless forced. The source stays as it is. Afterwards both are read
    again and compared. Raises ConfigurationError, StateLockedError when the source changed meanwhile, CorruptStateError
    when the target does not hold what was written.
    """
    found = {document.state_id: document for document in source.list()}
    documents = {**found, **_marks_of_epochs(source, found)}
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


def _marks_of_epochs(source: Backend, found: Mapping[str, Document]) -> dict[str, Document]:
    """The documents of marks with those in them that epochs of a recovery directory moved. Elsewhere there are no
    epochs, so they become marks like others."""
    if not isinstance(source, DirectoryBackend):
        return {}
    merged = {}
    for environment, rows in rows_by_environment(source.directory).items():
        state_id = f"@{environment}/{marks.DOCUMENT}" if unescape(environment) else marks.DOCUMENT
        before = found.get(state_id) or Document(state_id, 0, None, 0)
        changed_ms = max(before.changed_ms, *(row["changed_ms"] for row in rows.values()))
        merged[state_id] = Document(state_id, before.generation + 1, marks.settled(before.content, rows), changed_ms)
    return merged


def _verify(target: Backend, documents: dict[str, Document]) -> None:
    found = {document.state_id: document for document in target.list() if document.state_id in documents}
    if found != documents:
        lost = [each for each, document in documents.items() if found.get(each) != document]
        raise CorruptStateError(
            f"{target.location} does not hold {len(lost)} of {len(documents)} states as written: {lost[0]!r:.80}",
            cause="Somebody else writes there, or the store does not keep its promises.",
            remedy="Run the same command again; do not use the copy before it succeeded.",
        )
