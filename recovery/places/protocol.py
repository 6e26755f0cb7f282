"""What a place can do: two protocols, because no client of object stores can do both.

Objects are written once, of any size, and listed: `Place`. Documents are small and written conditionally, only if
nobody wrote them since they were read: `DocumentStore`. A directory and a bucket have both kinds. docs/dependencies.md
says why a bucket needs a client for each.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from recovery.base.outside import Answers, Checked, Moment, Question

CHUNK_BYTES = 4 << 20
NO_ANSWER_S = 60.0
"""How long a service may take for one call."""
LARGEST = 256 << 20
"""The largest document that is read, in bytes. Documents stay far below this size; a larger document came from another
program."""
DRAFT = ".draft"
"""Ends the name of an unfinished object; a killed writer leaves such an object behind."""
SUFFIXES = (".gz", ".zst")
"""Suffixes of objects: a directory with such a suffix takes the place of an object."""
NO_FILE = -1
"""The size of an entry that is a directory, a pipe or a device, which no backup made."""

Token = Any
"""Identifies one content of a document."""

OF_EVERY_PLACE: Answers = {
    Question.SAME: Checked("the store's id in the manifests and in `lease.json`", (Moment.COPYING, Moment.RESTORING)),
    Question.THERE: Checked(
        "names and sizes of the objects that a backup lists again or a drill finds listed; the SHA-256 of each object "
        "that is read",
        (Moment.COPYING, Moment.RESTORING),
    ),
    Question.CHANGED: Checked(
        "the term in `lease.json`; executions and epochs of the latest backup; newer manifests that cannot be read",
        (Moment.START, Moment.PUBLISHING, Moment.COPYING, Moment.RESTORING),
    ),
    Question.OWNER: Checked(
        "the random number of the term: in `lease.json` of the place and of the directory",
        (Moment.START, Moment.PUBLISHING, Moment.COPYING),
    ),
}


class UnreadableError(ValueError):
    """An entry is not an object, or this user may not read it."""


class Conflict(Exception):  # noqa: N818 - another writer was faster: the write is tried again on the current content
    """The document has changed since it was read."""


@dataclass(frozen=True, slots=True)
class PlaceEntry:
    """One object: its name below the place, its size (`NO_FILE` if it is not a file), and when it was written, by the
    clock of its store."""

    name: str
    size_bytes: int
    written_ms: int


class FoundObject(NamedTuple):
    """A document's content, and the token that identifies it."""

    content: bytes
    token: Token


class OlderVersion(NamedTuple):
    """A version of an object that is not the current one. name: of the object, below the place."""

    name: str
    version: str

    @property
    def shown(self) -> str:
        """What names the version beside names of objects, none of which has a question mark."""
        return f"{self.name}?versionId={self.version}"


@dataclass(frozen=True, slots=True)
class Lock:
    """What keeps a version of an object from being removed. until: when the lock ends, in UTC, as its bucket writes it;
    None: a legal hold, which ends when somebody removes the hold. mode: the bucket's word for the kind of lock."""

    until: str | None
    mode: str


class ObjectVersions(Protocol):
    """What a bucket with versioning keeps of objects that were removed or replaced. Raises BackupTargetError."""

    def entries(self, prefix: str) -> list[OlderVersion]:
        """Return all older versions of objects whose name begins with `prefix`, sorted; none if the bucket keeps
        none."""
        ...

    def read(self, older: OlderVersion) -> Iterator[bytes]:
        """Yield the version's bytes, as `Place.read` those of an object. Raises FileNotFoundError."""
        ...

    def markers(self, prefix: str) -> list[OlderVersion]:
        """Return what stands for the removal of objects whose name begins with `prefix`, sorted. To delete it brings
        the object back, if there is a version of it."""
        ...

    def delete(self, older: OlderVersion) -> None:
        """Remove the version for good; a missing one is not an error."""
        ...

    def lock(self, name: str, version: str | None = None) -> Lock | None:
        """Return what keeps a version from being removed, None if nothing does. version: None: the current one."""
        ...


class Place(Protocol):
    """A place for objects that are written once. A name holds what was once written under it, or only a part if the
    write failed: every object store publishes an interrupted upload as far as it went. So readers compare with the
    digest and size in the manifest, and nothing counts without a manifest.

    Raises BackupTargetError; FileNotFoundError for a missing object, UnreadableError for an entry that is not one.

    versions: what the place keeps of removed objects; None: nothing, or nothing that can be looked at. unseen: what the
    place may keep of them that nobody can look at from here; empty: nothing.
    """

    shown: str
    versions: ObjectVersions | None
    unseen: str

    def write(self, name: str, chunks: Iterable[bytes]) -> int:
        """Write a new object; returns its size. When `write` returns, the object is durable."""
        ...

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the object's bytes, in chunks; an object whose name ends in .zst is decompressed."""
        ...

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """Return `size` bytes of the object from `offset` on as stored, less if it ends before, in one request."""
        ...

    def entries(self, prefix: str) -> list[PlaceEntry]:
        """Return all objects whose name begins with `prefix`, which ends in a slash; sorted by name."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; a missing object is not an error."""
        ...


class DocumentStore(Protocol):
    """A place for documents by path. Raises an error of the caller's class if the place cannot be reached or
    refuses. versions, unseen: as of a `Place`."""

    location: str
    """The place's one name, however its address was written."""
    versions: ObjectVersions | None
    unseen: str

    def get(self, path: str) -> FoundObject | None:
        """Return the document, None if there is none."""
        ...

    def put(self, path: str, content: bytes, expected: Token | None) -> Token:
        """Write the whole document durably if the stored one is still `expected`; None: if no document is stored yet.

        Raises Conflict otherwise; then nothing was written.
        """
        ...

    def paths(self, prefix: str) -> list[str]:
        """Return the paths of all documents below a directory, "" for all."""
        ...

    def delete(self, path: str) -> None:
        """Remove the document; a missing document is not an error."""
        ...


def nonce() -> str:
    """Return a random text that makes every content different, so that a token never stands for two contents."""
    return secrets.token_hex(8)
