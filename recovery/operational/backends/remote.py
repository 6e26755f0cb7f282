"""Operational state outside the recovery directory: one object per document, written conditionally.

An object is JSON with the document, a nonce that differs in every content, and a digest of all of it. A write succeeds
only if the object is still the one that was read, so each of several writers sees the result of the one before it.
Under a lease (`recovery.operational.backends.leases`) a write also carries the lease's fencing number: the object keeps
the highest it has seen and refuses a lower one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from recovery.base.clock import LATEST_MS, Clock
from recovery.base.intervals import format_interval
from recovery.base.untrusted_json import MOST, is_moment
from recovery.errors import CorruptStateError, LeaseLostError, StateLockedError, UnsupportedVersionError, shown
from recovery.operational.backends.backend import Change, Document, to_text
from recovery.operational.backends.leases import HeldLease, LeaseTerms
from recovery.operational.backends.paths import STATE_FILE, decode_path, directory_with, encode_path
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.ids import StateId
from recovery.places.protocol import Conflict, DocumentStore, Token, nonce
from recovery.storage.store import Store

FORMAT, VERSION = "recovery-state", 1
READERS = 8
REMEMBERED = 20
"""How many earlier writes an object lists, so that a writer recognises its own write if the answer is late."""
SHORTEST_PAUSE_S = 0.02

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document as its object holds it. fences: per lock, the highest fencing number that wrote it. recent: the nonces
    of the earlier writes, newest last."""

    document: Document
    fences: Mapping[str, int]
    writer: str
    nonce: str
    recent: tuple[str, ...] = ()
    token: Token = None


class RemoteBackend:
    """A `Backend` of objects in a `DocumentStore`. terms: of the leases that are its locks."""

    def __init__(self, objects: DocumentStore, clock: Clock, retry: RetryPolicy, terms: LeaseTerms) -> None:
        self.location = objects.location
        self.store: Store | None = None
        self.objects = objects
        self._clock = clock
        self._retry = retry
        self._terms = terms
        self._held = threading.local()

    def read(self, ids: Sequence[StateId]) -> dict[StateId, Document]:
        found = self._map(self._get, ids)
        return {each: stored.document for each, stored in zip(ids, found, strict=True) if stored is not None}

    def list(self, prefix: str = "") -> list[Document]:
        """Return the documents whose id begins with `prefix`, each as of the moment it is read."""
        paths = [path for path in self.objects.paths(directory_with(prefix)) if path.endswith(f"/{STATE_FILE}")]
        wanted = []
        for path in paths:
            state_id = decode_path(path.removesuffix(f"/{STATE_FILE}"))
            if state_id is None or state_id.startswith(prefix):
                wanted.append(path)
        found = [stored.document for stored in self._map(self._get_path, wanted) if stored is not None]
        return sorted((d for d in found if d.state_id.startswith(prefix)), key=lambda d: d.state_id)

    def update(self, changes: Mapping[StateId, Change]) -> dict[StateId, Document]:
        """Change documents one by one, in the order given; return their new values."""
        found = {state_id: self._update(state_id, change) for state_id, change in changes.items()}
        return {state_id: document for state_id, document in found.items() if document is not None}

    def forget(self, ids: Sequence[StateId]) -> int:
        existing = [each for each, stored in zip(ids, self._map(self._get, ids), strict=True) if stored is not None]
        self._map(lambda each: self.objects.delete(f"{encode_path(each)}/{STATE_FILE}"), existing)
        return len(existing)

    def place(self, documents: Sequence[Document]) -> None:
        for document in documents:

            def attempt(document: Document = document) -> None:
                before = self._get(document.state_id)
                self._put(document, before)

            self._persist(document.state_id, attempt)

    @contextmanager
    def lock(self, name: str, purpose: str) -> Iterator[None]:
        """Hold the lock of this name: a lease, renewed while it is held. Writes of the holding thread carry its fencing
        number."""
        held: list[HeldLease] = self._held.__dict__.setdefault("leases", [])
        with HeldLease(self.objects, name, purpose, self._clock, self._terms, self._retry.longest_s) as lease:
            held.append(lease)
            try:
                yield
            finally:
                held.remove(lease)

    # ---- one document

    def _update(self, state_id: StateId, change: Change) -> Document | None:
        def attempt() -> Document | None:
            before = self._get(state_id)
            known = None if before is None else before.document
            content = change(known)
            if to_text(None if known is None else known.content) == to_text(content):
                return known
            now_ms = self._clock.wall_ms()
            # A clock that is behind must not make a change look older than the one before.
            document = (
                Document(state_id, 1, content, now_ms)
                if known is None
                else Document(state_id, known.generation + 1, content, max(now_ms, known.changed_ms))
            )
            self._put(document, before)
            return document

        return self._persist(state_id, attempt)

    def _persist(self, state_id: StateId, attempt: Callable[[], T]) -> T:
        """Retry while other writers are faster, for at most the retry policy's total wait."""
        began_s, pause_s = self._clock.elapsed_s(), SHORTEST_PAUSE_S
        while True:
            try:
                return attempt()
            except Conflict:
                waited_s = self._clock.elapsed_s() - began_s
                if waited_s >= self._retry.longest_s:
                    stored = self._get(state_id)
                    writer = stored.writer if stored else "another process"
                    raise StateLockedError(
                        f"{writer} and others kept changing {state_id!r:.120} for {format_interval(waited_s)}",
                        path=self.location,
                    ) from None
            time.sleep(pause_s * random.random())
            pause_s = min(1.0, pause_s * 1.5)

    def _put(self, document: Document, before: StoredDocument | None) -> None:
        fences = dict(before.fences) if before else {}
        for lease in getattr(self._held, "leases", ()):
            lease.check()
            if fences.get(lease.name, 0) > lease.fence:
                raise LeaseLostError(
                    f"a later holder with fencing number {fences[lease.name]} wrote {document.state_id!r:.80}",
                    path=self.location,
                )
            fences[lease.name] = lease.fence
        recent = (*before.recent, before.nonce)[-REMEMBERED:] if before else ()
        stored = StoredDocument(document, fences, f"process {os.getpid()} on {socket.gethostname()}", nonce(), recent)
        path = f"{encode_path(document.state_id)}/{STATE_FILE}"
        try:
            self.objects.put(path, serialize(stored), before.token if before else None)
        except Conflict:
            # It may be this write, whose answer never arrived; others may have followed it.
            found = self._get(document.state_id)
            if found is None or stored.nonce not in (found.nonce, *found.recent):
                raise

    def _get(self, state_id: StateId) -> StoredDocument | None:
        stored = self._get_path(f"{encode_path(state_id)}/{STATE_FILE}")
        if stored is not None and stored.document.state_id != state_id:
            raise CorruptStateError(
                f"the object of state {state_id!r:.80} holds {stored.document.state_id!r:.80}", path=self.location
            )
        return stored

    def _get_path(self, path: str) -> StoredDocument | None:
        found = self.objects.get(path)
        if found is None:
            return None
        return replace(deserialize(found.content, f"{self.location}/{path}"), token=found.token)

    def _map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Sequence[Any]:
        if len(items) <= 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(READERS, thread_name_prefix="state") as pool:
            return list(pool.map(work, items))


def serialize(stored: StoredDocument) -> bytes:
    """Return the content of an object; the nonce makes it different every time."""
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "state_id": stored.document.state_id,
        "generation": stored.document.generation,
        "changed_ms": stored.document.changed_ms,
        "content": stored.document.content,
        "fences": dict(stored.fences),
        "writer": stored.writer,
        "nonce": stored.nonce,
        "recent": list(stored.recent),
    }
    return json.dumps({**fields, "digest": digest(fields)}, ensure_ascii=False, indent=1).encode() + b"\n"


def deserialize(content: bytes, path: str) -> StoredDocument:
    """Return the document that `serialize` encoded. Raises CorruptStateError for a torn or altered document,
    UnsupportedVersionError."""
    try:
        fields = json.loads(content)
        found = fields.pop("digest")
        if fields["format"] != FORMAT or found != digest(fields):
            raise ValueError("it does not match its digest")
        if number_of(fields["version"]) > VERSION:
            raise UnsupportedVersionError(
                f"version {fields['version']}; this version of recovery reads {VERSION}", path=path
            )
        # A valid digest does not prove that a program of this package wrote the fields.
        document = Document(
            text_of(fields["state_id"]), number_of(fields["generation"]), fields["content"],
            number_of(fields["changed_ms"], LATEST_MS),
        )  # fmt: skip
        fences = {text_of(name): number_of(fence) for name, fence in fields["fences"].items()}
        if not is_moment(document.changed_ms) or not 0 <= document.generation <= MOST:
            raise ValueError("its generation or time is one that recovery never writes")
        # Objects of earlier versions lack it.
        recent = tuple(text_of(each) for each in fields.get("recent", ()))
        return StoredDocument(document, fences, text_of(fields["writer"]), text_of(fields["nonce"]), recent)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = "it is empty" if not content else f"it cannot be read: {error}"
        raise CorruptStateError(what, path=path) from error


def text_of(value: Any) -> str:
    """Return the value of a text field. Raises ValueError for another type."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text")
    return value


def number_of(value: Any, most: int = (1 << 63) - 1) -> int:
    """Return the value of a number field, from 0 to `most`. Raises ValueError otherwise."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{shown(value)} is not a number from 0 to {most}")
    return value


def digest(fields: Mapping[str, Any]) -> str:
    """Return a digest by which an altered field is noticed."""
    text = json.dumps(fields, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
