"""Erasing keys and documents from what the bucket of a state backend keeps: older versions of its objects.

Documents of operational state, and the records of runs, are replaced and removed by the erasure of the store itself. A
bucket with versioning keeps what they were before. No backup has any of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

from recovery.backup.erased import ErasedCopy, Locked
from recovery.base.threads import each
from recovery.errors import RecoveryError
from recovery.operational.backends.backend import Backend
from recovery.operational.backends.paths import STATE_FILE, decode_path, encode_path
from recovery.operational.backends.remote import RemoteBackend
from recovery.operational.ids import StateId
from recovery.operational.runs import is_record
from recovery.places.protocol import LARGEST, Lock, ObjectVersions, OlderVersion
from recovery.planning.redaction import is_selected, redacted
from recovery.storage.erasing import SoughtKeys

READERS = 8


class StateVersions:
    """The older versions of objects in the bucket of a state backend, of which each is read once; false for a backend
    that keeps none."""

    def __init__(self, backend: Backend, wanted: SoughtKeys) -> None:
        self._location, self._wanted = backend.location, wanted
        self._versions: ObjectVersions | None = None
        self._unseen = ""
        if isinstance(backend, RemoteBackend):
            self._versions, self._unseen = backend.objects.versions, backend.objects.unseen
        self._known: dict[str, OlderVersion] = {}
        self._holds_key: dict[str, bool] = {}
        self._holding: list[str] = []
        self._unread: list[str] = []
        self._left_names: list[str] = []
        """What stands for the removal of documents of which there is no version any more: an id may name a person."""

    def __bool__(self) -> bool:
        return self._versions is not None or bool(self._unseen)

    def found(self, ids: Iterable[StateId]) -> list[ErasedCopy]:
        """Return what the bucket keeps of the keys and documents, if it may keep some, and until when. ids: of the
        documents that are to go, whose objects become versions. Only reads."""
        if not self:
            return []
        self._search()
        objects = (f"{encode_path(each)}/{STATE_FILE}" for each in ids)
        locked = Locked.of(self._locks, (*self._holding, *objects))
        why = _WHY_UNREAD if self._unread else locked.why
        left, held = tuple(self._unread), (*self._holding, *self._left_names)
        return [ErasedCopy(self._location, held, left=left, why=why, until=locked.until, unseen=self._unseen)]

    def erased(self) -> list[ErasedCopy]:
        """Remove for good what the bucket keeps of the keys and documents, which are erased from its objects; return
        what was done. What fails may still hold them."""
        if not self:
            return []
        self._search()
        holding, refused = tuple(self._holding), ""
        held = (*holding, *self._left_names)
        # What proves the erasure names nobody: the ids of documents may be names.
        shown = tuple(f"{STATE_FILE}?{name.partition('?')[2]}" for name in held)
        for name in holding:
            assert self._versions is not None
            try:
                self._versions.delete(self._known[name])
            except RecoveryError as error:
                refused = refused or error.found
        self._search()
        left = (*self._holding, *self._unread)
        refused = self._forget_names({self._known[name].name for name in holding}) or refused
        locked = Locked.of(self._locks, left)
        why = locked.why or refused or (_WHY_UNREAD if self._unread else "the bucket still has them")
        why = why if left or refused else ""
        left = left or ((self._location,) if refused else ())
        return [ErasedCopy(self._location, shown, left=left, why=why, until=locked.until, unseen=self._unseen)]

    def _search(self) -> None:
        """Look at all older versions; what nobody can list is unseen."""
        self._holding, self._unread, self._left_names = [], [], []
        if self._versions is None or self._unseen:
            return
        try:
            older = self._versions.entries("")
            self._left_names = [marker.shown for marker in self._removed_names(older)]
        except RecoveryError as error:
            # Another permission than that to list objects.
            self._unseen = f"older versions of objects: {error.found}"
            return
        self._known |= {version.shown: version for version in older}
        # Nobody can change a version. An active run adds one with each heartbeat, so there may be many.
        new = [version for version in older if version.shown not in self._holds_key]
        for version, holds in zip(new, each(self._holds, new, at_once=READERS, name="versions"), strict=True):
            if holds is not None:
                self._holds_key[version.shown] = holds
        for version in older:
            holds = self._holds_key.get(version.shown)
            if holds is not False:
                (self._holding if holds else self._unread).append(version.shown)

    def _holds(self, older: OlderVersion) -> bool | None:
        """Return whether a version holds something to erase; None: it cannot be read."""
        assert self._versions is not None
        state_id = _state_id(older.name)
        if not older.name.endswith(f"/{STATE_FILE}"):
            return False
        if state_id is not None and not is_record(state_id):
            return is_selected(state_id, self._wanted.states)
        try:
            found = json.loads(_content(self._versions, older))
            return self._is_to_go(found["state_id"], found["content"])
        except FileNotFoundError:
            return False
        except (RecoveryError, ValueError, TypeError, LookupError, RecursionError):
            return None

    def _is_to_go(self, state_id: StateId, content: object) -> bool:
        names_key = is_record(state_id) and redacted(content, self._wanted.words) != content
        return names_key or is_selected(state_id, self._wanted.states)

    def _forget_names(self, names: Collection[str]) -> str:
        """Remove what stands for the removal of documents, whose ids may be names of persons; return why it failed.
        While there is a version of an object, that would bring the object back."""
        if self._versions is None or self._unseen:
            return ""
        try:
            for marker in self._removed_names(self._versions.entries(""), names):
                self._versions.delete(marker)
        except RecoveryError as error:
            return error.found
        return ""

    def _removed_names(self, older: Iterable[OlderVersion], names: Collection[str] = ()) -> list[OlderVersion]:
        """Return what stands for the removal of documents that are selected, or have one of these names, and have none
        of these older versions. Raises a RecoveryError of the bucket."""
        assert self._versions is not None
        kept = {version.name for version in older}
        return [
            marker
            for marker in self._versions.markers("")
            if marker.name not in kept and (marker.name in names or self._selects(marker.name))
        ]

    def _selects(self, name: str) -> bool:
        state_id = _state_id(name)
        return state_id is not None and is_selected(state_id, self._wanted.states)

    def _locks(self, names: Iterable[str]) -> list[Lock]:
        versions = self._versions
        if versions is None:
            return []
        named = [self._known.get(name, OlderVersion(name, "")) for name in names]
        found = each(
            lambda version: versions.lock(version.name, version.version or None), named, at_once=READERS, name="locks"
        )
        return [lock for lock in found if lock is not None]


_WHY_UNREAD = "what these hold cannot be read"


def _state_id(name: str) -> StateId | None:
    return decode_path(name.removesuffix(f"/{STATE_FILE}"))


def _content(versions: ObjectVersions, older: OlderVersion) -> bytes:
    """Return the bytes of a version. Raises ValueError for more than any document has."""
    content = bytearray()
    for chunk in versions.read(older):
        content += chunk
        if len(content) > LARGEST:
            raise ValueError("it is too large for a document")
    return bytes(content)
