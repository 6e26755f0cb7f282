"""Documents in a place of backups that are written conditionally: only if nobody wrote them since they were read.

Whoever opens documents says what happens where conditional writes are not possible: a run's lease is refused, and
`recovery backup` goes on with documents that are compared before they are written.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable

from recovery.errors import BackupTargetError, ConfigurationError
from recovery.host.durable import Modes, make_directories
from recovery.places.directory import DirectoryDocuments, DirectoryPlace
from recovery.places.documents import BucketDocuments
from recovery.places.mounted import answered
from recovery.places.opening import copies_address, lasting_place, open_place
from recovery.places.protocol import Conflict, DocumentStore, FoundObject, Place, Token, UnreadableError

TIMEOUT_S = 20.0
_UNKNOWN = re.compile(r"NotImplemented|Not Implemented|\b501\b")


class Documents:
    """Small documents at a place. Every call ends. Raises BackupTargetError if the place cannot be reached or refuses,
    and Conflict."""

    def __init__(self, objects: DocumentStore, shown: str, address: str = "") -> None:
        """address: by which a later process finds the bucket again; "" if none can be kept."""
        self.shown = shown
        self.address = address
        self.location = objects.location
        """The place's one name, however its address was written."""
        self._objects = objects
        self._is_checked = False

    def get(self, name: str) -> FoundObject | None:
        """Return a document, None if there is none."""
        return answered(lambda: self._objects.get(name), self.shown)

    def put(self, name: str, content: bytes, expected: Token | None) -> Token:
        """Write a document if the stored one is still `expected`; None: if no document is stored yet. Raises Conflict
        otherwise."""
        return answered(lambda: self._objects.put(name, content, expected), self.shown)

    def check(self, name: str) -> None:
        """Check with a document of this name, which is removed again, that the store keeps the conditions of writes.
        Raises ConfigurationError if the store does not. The store is asked once; a directory keeps the conditions."""
        if self._is_checked or not self.in_bucket:
            return
        found = self.get(name)
        try:
            first = self.put(name, b"1", None if found is None else found.token)
            self.put(name, b"2", first)
            kept = self._refuses(name, first) and self._refuses(name, None)
        except BackupTargetError as error:
            if not _UNKNOWN.search(error.found):
                raise
            raise _not_conditional(self.shown, f"it does not know conditional writes: {error.found}") from error
        except Conflict:
            # Another process checks at this moment, and the store has refused one of the two.
            return
        if not kept:
            raise _not_conditional(self.shown, "it writes although the condition of the write is not met")
        answered(lambda: self._objects.delete(name), self.shown)
        self._is_checked = True

    def _refuses(self, name: str, expected: Token | None) -> bool:
        try:
            self.put(name, b"3", expected)
        except Conflict:
            return True
        return False

    @property
    def in_bucket(self) -> bool:
        """Whether the store of a bucket is to keep the conditions of writes."""
        return not isinstance(self._objects, DirectoryDocuments | ComparedDocuments)


def open_documents(place: str, make: Modes | None = None) -> Documents:
    """Return the documents at a place of backups. make: make a directory that is missing, with these permissions.

    Raises ConfigurationError if that needs a package, or BackupTargetError.
    """
    target = open_place(place)
    if isinstance(target, DirectoryPlace):
        if make is not None:
            try:
                answered(lambda: make_directories(target.root, make), target.shown)
            except OSError as error:
                raise BackupTargetError(str(error), path=target.shown) from error
        return Documents(_of_directory(target), target.shown)
    return _in_bucket(place, target.shown)


def documents_to_back_up(target: Place, place: str | None = None) -> Documents:
    """Return the documents at the place of `target`, also if its store has no conditional writes or the package for
    them is missing, and also if a directory is not there yet. place: the address; None: `target` is a directory, or
    only looked at."""
    if isinstance(target, DirectoryPlace):
        return Documents(_of_directory(target, make=target.make), target.shown)
    if place is not None:
        with contextlib.suppress(ConfigurationError):
            return _in_bucket(place, target.shown)
    return unconditional(target, place)


def unconditional(target: Place, place: str | None = None) -> Documents:
    """Return documents that are compared before they are written: of two writers at the same moment the last counts."""
    address = None if place is None else copies_address(place)
    location = target.shown if address is None else address.location
    return Documents(ComparedDocuments(target, location), target.shown, _lasting(place) if place is not None else "")


def _of_directory(target: DirectoryPlace, make: Callable[[], None] | None = None) -> DirectoryDocuments:
    return DirectoryDocuments(target.root, TIMEOUT_S, as_root=True, failure=BackupTargetError, make=make)


def _in_bucket(place: str, shown: str) -> Documents:
    address = copies_address(place)
    assert address is not None, "a path is a directory"
    return Documents(BucketDocuments(address, TIMEOUT_S, BackupTargetError, shown), shown, _lasting(place))


def _lasting(place: str) -> str:
    """Return the address of a bucket; "" if it holds credentials, which are not written into files."""
    with contextlib.suppress(ConfigurationError):
        return lasting_place(place)
    return ""


class ComparedDocuments:
    """A `DocumentStore` over a `Place`, for stores without conditional writes."""

    def __init__(self, target: Place, location: str) -> None:
        self.location = location
        self.versions, self.unseen = target.versions, target.unseen
        self._target = target

    def get(self, path: str) -> FoundObject | None:
        try:
            content = b"".join(self._target.read(path))
        except FileNotFoundError:
            return None
        except UnreadableError as error:
            raise BackupTargetError(str(error), path=self._target.shown) from error
        return FoundObject(content, hashlib.sha256(content).hexdigest())

    def put(self, path: str, content: bytes, expected: Token | None) -> Token:
        found = self.get(path)
        if (None if found is None else found.token) != expected:
            raise Conflict(path)
        self._target.write(path, [content])
        return hashlib.sha256(content).hexdigest()

    def paths(self, prefix: str) -> list[str]:
        return [entry.name for entry in self._target.entries(prefix)]

    def delete(self, path: str) -> None:
        self._target.delete(path)


def _not_conditional(shown: str, found: str) -> ConfigurationError:
    return ConfigurationError(
        found,
        path=shown,
        cause="The service does not know conditional writes, so nobody can tell which of two writers was first.",
        remedy="Use S3, Google Cloud Storage, Azure or a directory. Here, back up beside the run instead (recovery "
        "backup --every --incremental), and promote a standby with --unfenced when that run has certainly ended.",
    )
