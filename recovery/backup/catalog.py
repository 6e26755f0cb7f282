"""What one process knows of the backups at a place. A manifest never changes, so each is read once."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from recovery.backup.bundle import Manifests
from recovery.backup.heads import Heads, MissingHeadError
from recovery.backup.manifest import MANIFESTS, SUFFIX, Manifest, decode, is_ours
from recovery.places.protocol import Place, PlaceEntry, UnreadableError
from recovery.planning.following import Stage, age, stage_of

READERS = 8


@dataclass(frozen=True, slots=True)
class Backup:
    """What making and removing backups need to know of a backup. objects: the names that the backup's manifest
    lists."""

    id: str
    started_ms: int
    store_id: str
    objects: tuple[str, ...]
    stage: Stage


@dataclass(frozen=True, slots=True)
class Contents:
    """The backups at a place, the latest one last, and the unreadable manifests."""

    backups: tuple[Backup, ...]
    unreadable: tuple[PlaceEntry, ...]


class Catalog:
    """The backups at a place. Every look lists the manifests, and reads the new manifests. Of the newest manifest
    alone, the catalog keeps the epochs, which are most of a manifest. For one thread."""

    def __init__(self, target: Place) -> None:
        self.target = target
        self._known: dict[PlaceEntry, Backup] = {}
        self._newest: Manifest | None = None
        self._shared: dict[object, object] = {}
        self._manifests = Manifests(target)
        self._heads = Heads(self._manifests)

    def look(self) -> Contents:
        """Return the backups that are at the place now. Raises BackupTargetError."""
        there = [entry for entry in entries_of(self.target, MANIFESTS) if entry.name.endswith(SUFFIX)]
        known = {entry: self._known[entry] for entry in there if entry in self._known}
        new = [entry for entry in there if entry not in known]
        with self._manifests.expecting(new), ThreadPoolExecutor(READERS) as pool:
            found = list(pool.map(self._read, new))
        known |= {entry: each for entry, each in zip(new, found, strict=True) if isinstance(each, Backup)}
        self._known = known
        self._manifests.forget_but(known)
        backups = sorted(known.values(), key=lambda backup: age(backup.stage))
        return Contents(tuple(backups), tuple(each for each in found if isinstance(each, PlaceEntry)))

    def newest(self) -> Manifest | None:
        """Look, and return the latest backup. Raises BackupTargetError."""
        return self.latest_of(self.look())

    def latest_of(self, contents: Contents) -> Manifest | None:
        """Return the latest of the backups that the last look found, and that are still there. Raises
        BackupTargetError."""
        for backup in reversed(contents.backups):
            if self._newest is not None and self._newest.id == backup.id:
                return self._newest
            entry = next(entry for entry, each in self._known.items() if each is backup)
            found = read_manifest(self._manifests, entry, self._heads)
            if isinstance(found, Manifest):
                self._newest = found
                return found
        return None

    def add(self, manifest: Manifest) -> None:
        """Note the backup that this process has made, so that it need not be read to be continued."""
        self._newest = manifest

    def keep_bundle(self) -> None:
        """Let the next process find what this one had to read, in one object: for processes that write to the place."""
        self._manifests.keep(self._known)

    def _read(self, entry: PlaceEntry) -> Backup | PlaceEntry | None:
        found = read_manifest(self._manifests, entry, self._heads)
        if not isinstance(found, Manifest):
            return found
        # Backups share most objects; one text for each name keeps thousands of them small.
        names = tuple(map(sys.intern, found.objects))
        at = stage(found)
        # They share executions too.
        begun = tuple(cast("tuple[str, int]", self._shared.setdefault(each, each)) for each in at.executions)
        begun = cast("tuple[tuple[str, int], ...]", self._shared.setdefault(begun, begun))
        return Backup(found.id, found.started_ms, found.store_id, names, at._replace(executions=begun))


def stage(manifest: Manifest) -> Stage:
    """Return how far the store had come in a backup."""
    descriptions = [copy.description for copy in manifest.copies]
    return stage_of(descriptions, manifest.started_ms, manifest.id, manifest.term)


def read_manifest(manifests: Manifests, entry: PlaceEntry, heads: Heads) -> Manifest | PlaceEntry | None:
    """Return the manifest; its entry if the manifest is unreadable; None if the manifest was removed meanwhile. heads:
    those at the place."""
    try:
        return decode(manifests.read(entry.name), identity_of(entry.name), heads)
    except FileNotFoundError:
        return None
    except MissingHeadError:
        return entry if exists(manifests.target, entry.name) else None
    except ValueError:
        return entry


def entries_of(target: Place, prefix: str) -> list[PlaceEntry]:
    """Return the entries of backups, without other programs' files."""
    return [entry for entry in target.entries(prefix) if is_ours(entry.name)]


def identity_of(name: str) -> str:
    """Return the id of the backup to which a manifest, or a file under `running/`, belongs."""
    return name.rpartition("/")[2].removesuffix(SUFFIX)


def exists(target: Place, name: str) -> bool:
    """Whether an object is there; asks by the object's name, because a list of all may be long."""
    try:
        for _ in target.read(name):
            break
    except FileNotFoundError:
        return False
    except UnreadableError:
        pass
    return True
