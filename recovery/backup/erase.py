"""Erasing keys from copies: from a place of backups, and from a standby that follows it.

Every copy is searched before the first byte of anything changes, so a copy that is misspelt, out of reach or of another
store is refused then. Of a place:

place.1 Search: each object of a partition that can have a key is read once, whether a backup lists it or not; and so
        is each note of a drill, which says what was damaged.
place.2 If some hold a key: make a backup of whole partitions, from the store in which the keys are erased. No backup
        continues an older one across an erasure (see `recovery.planning.chains`), so nothing made from now on has them.
place.3 Refuse to go on while another backup is being made: it may hold the keys, also if nothing at the place does yet.
        The note of a backup whose process has certainly ended does not count.
place.4 Remove the manifests that list an object which holds a key, then prune what no backup needs any more, then the
        objects and notes that hold a key and are still there.
place.5 Search again, until there is no object that was not searched: a bucket with versioning keeps an older version of
        each object that was removed, which is searched and removed as an object.

What a backup that goes had besides is in the new one, for the epochs that the store still holds; older epochs are no
longer restored from this place. Killed at any step, the same call on the same host completes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from recovery.backup.bundle import NAME as BUNDLE
from recovery.backup.catalog import Catalog, entries_of
from recovery.backup.drills import DRILLS, drill_names
from recovery.backup.erased import ErasedCopy, Locked
from recovery.backup.make import Made
from recovery.backup.manifest import MANIFESTS, OBJECTS, Manifest, manifest_name
from recovery.backup.repository import (
    BackupUnderWay,
    check_store,
    list_backups,
    prune,
    refuse_other_versions,
    under_way,
)
from recovery.backup.standby.document import read_standby
from recovery.backup.standby.follow import Follower
from recovery.base import faults
from recovery.base.clock import Clock
from recovery.errors import (
    BackupDamagedError,
    BackupTargetError,
    ForeignPartitionError,
    NoBackupError,
    RecoveryError,
    StandbyDirectoryError,
)
from recovery.host.durable import create
from recovery.host.scratch import scratch_directory
from recovery.host.storage_errors import storage_errors
from recovery.places.mounted import limited
from recovery.places.opening import open_place
from recovery.places.protocol import DRAFT, Lock, OlderVersion, Place, UnreadableError
from recovery.planning.backups import MOST_DIGITS, KeepRule
from recovery.storage.erasing import SoughtKeys, changes_hold, partition_holds, rewrite, text_holds
from recovery.storage.lock import check_unlocked
from recovery.storage.standby import is_standby

ALL = KeepRule(count=10**MOST_DIGITS)
CHANGES = ".changes.zst"
ACCESS = "erase-check.json"
"""An object that is written and removed to learn whether that is allowed: no backup gives this name."""
KILLED_REMEDY = (
    "Repeat the command when it has ended; if nothing of it runs any more on that host, with --killed-backups"
)


class PlaceSearch:
    """The objects of a place and their older versions, of which each is read once. searched: the names that were;
    holding: those of them that hold a key; unread: those that cannot be read as what they should be; unseen: what
    nobody can look at."""

    def __init__(self, place: Place, wanted: SoughtKeys) -> None:
        """Search what is there now; only reads. Raises NoBackupError, ForeignPartitionError, UnsupportedVersionError
        for backups of a newer version, whose objects are unknown, or BackupTargetError."""
        self.place, self._wanted = place, wanted
        self._older: dict[str, OlderVersion] = {}
        self.searched: set[str] = set()
        self.holding: list[str] = []
        self.unread: list[str] = []
        self._refusal = ""
        self.unseen = place.unseen
        catalog = Catalog(place)
        contents = catalog.look()
        if not (contents.backups or contents.unreadable or self.names()):
            raise NoBackupError("it holds no backup", path=place.shown, cause="The address may be misspelt.")
        check_store(contents.backups, wanted.store_id, place.shown)
        refuse_other_versions(place, contents.unreadable)
        self.go_on()
        self.latest = catalog.latest_of(contents)
        """The latest backup."""

    def found(self, running: Sequence[BackupUnderWay] = ()) -> ErasedCopy:
        """Return what the place holds of the keys, and which backups would go. running: the backups that would keep
        these from going. Raises BackupTargetError."""
        removed = tuple(manifest.id for manifest in _listing(self.place, self.holding))
        held, locked = tuple(self.holding), Locked.of(self.locks, self.holding)
        left = (*self.unread, *(each.name for each in running))
        why = _running(running) or self.why_unread(self.unread) or locked.why
        return ErasedCopy(self.place.shown, held, removed, left=left, why=why, until=locked.until, unseen=self.unseen)

    def names(self) -> list[str]:
        """Return the names of what a place has, of any partition. Raises BackupTargetError."""
        names = [*(entry.name for entry in entries_of(self.place, OBJECTS)), *drill_names(self.place)]
        if self.place.versions is not None and not self.unseen:
            try:
                found = [each for prefix in (OBJECTS, DRILLS) for each in self.place.versions.entries(prefix)]
            except BackupTargetError as error:
                # Another permission than that to list objects.
                self.unseen = f"older versions of objects: {error.found}"
                return names
            self._older = {each.shown: each for each in found if not each.name.endswith("/")}
        return [*names, *self._older]

    def why_unread(self, left: Sequence[str]) -> str:
        """Return why some of the objects that are left may hold a key; empty: none of them was unread."""
        if not any(name in self.unread for name in left):
            return ""
        return "what these hold cannot be read" + (f": {self._refusal}" if self._refusal else "")

    def has_rows(self) -> bool:
        """Return whether a backup may have a key, and not only the notes of drills and what was removed before."""
        current = [name for name in (*self.holding, *self.unread) if name not in self._older]
        return any(name.startswith(OBJECTS) for name in current)

    def go_on(self) -> bool:
        """Search the objects that were not searched yet; return whether there were any. Raises BackupTargetError."""
        folders = tuple(f"{OBJECTS}part-{index}/" for index in self._wanted.partitions)
        there = [name for name in self.names() if name.startswith((*folders, DRILLS))]
        new = [name for name in there if name not in self.searched]
        with scratch_directory("erase") as room:
            for name in new:
                self._look(name, room / "object")
        return bool(new)

    def delete(self, name: str) -> None:
        """Remove an object, or an older version of one. Raises what `Place.delete` raises."""
        older = self._older.get(name)
        if older is None:
            self.place.delete(name)
        elif self.place.versions is not None:
            self.place.versions.delete(older)

    def locks(self, names: Iterable[str]) -> list[Lock]:
        """Return what keeps these from being removed. Raises BackupTargetError."""
        versions = self.place.versions
        if versions is None:
            return []
        named = (self._older.get(name, OlderVersion(name, "")) for name in names)
        return [lock for each in named if (lock := versions.lock(each.name, each.version or None)) is not None]

    def _look(self, name: str, path: Path) -> None:
        self.searched.add(name)
        older = self._older.get(name)
        object_name = name if older is None else older.name
        if object_name.endswith(DRAFT) or (older is not None and self._refusal):
            # A draft is of a writer that was killed, or that writes now.
            self.unread.append(name)
            return
        is_note, is_changes = object_name.startswith(DRILLS), object_name.endswith(CHANGES)
        holds = changes_hold if is_changes else text_holds if is_note else partition_holds
        try:
            self._fetch(name, path)
            if holds(path, self._wanted):
                self.holding.append(name)
        except FileNotFoundError:
            return
        except (UnreadableError, BackupDamagedError, RecoveryError) as error:
            if isinstance(error, BackupTargetError):
                # Another permission than that to read objects; the objects are erased without it.
                if older is None:
                    raise
                self._refusal = error.found
            self.unread.append(name)
        finally:
            path.unlink(missing_ok=True)

    def _fetch(self, name: str, path: Path) -> None:
        # A missing object is not an error of the scratch directory.
        older, versions = self._older.get(name), self.place.versions
        chunks = self.place.read(name) if older is None or versions is None else versions.read(older)
        first = next(chunks, b"")
        with storage_errors(path), os.fdopen(create(path), "wb") as file:
            file.write(first)
            for chunk in chunks:
                file.write(chunk)


def check_access(place: Place) -> None:
    """Write a small object to a place and remove it: erasing there does both. Raises BackupTargetError."""
    place.write(ACCESS, [b"{}"])
    try:
        place.delete(ACCESS)
    except BackupTargetError as error:
        raise BackupTargetError(
            f"this user may write there, but not remove objects: {error.found}; {ACCESS}, written to learn that, stays",
            path=place.shown,
            cause="Erasing removes the objects that hold a key.",
            remedy="Give this user the right to remove objects there; or leave this place out, and erase there later.",
        ) from error


def erase_place(search: PlaceSearch, make: Callable[[], Made], clock: Clock, *, killed: bool = False) -> ErasedCopy:
    """Erase keys from a place of backups that was searched. make: makes a backup there of the store, in which they are
    erased, of whole partitions. killed: no backup that is announced there goes on, also one of another host. Raises
    what `make` raises: then nothing was removed; BackupTargetError: then the call has to be repeated."""
    place = search.place
    # What such a backup stores while the place is searched, the search may miss.
    running = under_way(place, clock.wall_ms())
    # place.1
    search.go_on()
    if not (search.holding or search.unread or running):
        return ErasedCopy(place.shown, unseen=search.unseen)
    # place.2
    made = make().manifest if search.has_rows() else None
    faults.reach("place.2")
    # place.3
    if made is not None:
        running = under_way(place, clock.wall_ms())
    if running and not killed:
        left = (*search.holding, *search.unread, *(each.name for each in running))
        backup = None if made is None else made.id
        return ErasedCopy(
            place.shown, tuple(search.holding), (), backup, left, _running(running), unseen=search.unseen
        )  # fmt: skip
    refused: dict[str, str] = {}
    for each in running:
        _delete(place.delete, each.name, refused)
    removed: list[str] = []
    while True:
        # place.4
        if made is not None:
            removed += _retire(place, search, made, clock, refused)
        there = set(search.names())
        for name in (name for name in search.holding if name in there):
            _delete(search.delete, name, refused)
        faults.reach("place.4")
        # place.5
        if not search.go_on():
            break
    there = set(search.names())
    going_on = [each.name for each in running if each.name in refused]
    left = (*(name for name in (*search.holding, *search.unread) if name in there), *going_on)
    locked = Locked.of(search.locks, left)
    why = locked.why or next(iter(refused.values()), "") or search.why_unread(left)
    why = why or "the place still has them, although it has refused nothing"
    return ErasedCopy(
        place.shown,
        tuple(search.holding),
        tuple(each for each in removed if manifest_name(each) not in refused),
        None if made is None else made.id,
        left,
        why if left else "",
        locked.until,
        search.unseen,
    )


def _retire(place: Place, search: PlaceSearch, made: Manifest, clock: Clock, refused: dict[str, str]) -> list[str]:
    """Remove the backups that list an object with a key, and what no backup needs; return the ids of the former."""
    going = [manifest.id for manifest in _listing(place, search.holding)]
    for name in (*map(manifest_name, going), BUNDLE):
        _delete(place.delete, name, refused)
    faults.reach("place.4.manifests")
    try:
        prune(place, [ALL], clock.wall_ms(), made=made)
    except BackupTargetError as error:
        # Of other objects perhaps; those with a key are tried one by one.
        refused[""] = error.found
    return going


def _listing(place: Place, holding: Sequence[str]) -> Iterator[Manifest]:
    names = frozenset(holding)
    if names:
        yield from (each for each in list_backups(place).manifests if not names.isdisjoint(each.objects))


def _delete(delete: Callable[[str], None], name: str, refused: dict[str, str]) -> None:
    try:
        delete(name)
    except RecoveryError as error:
        refused[name] = error.found


def _running(running: Sequence[BackupUnderWay]) -> str:
    return f"a backup is being made there, or was killed: {running[0].shown}. {KILLED_REMEDY}" if running else ""


def check_standby(directory: Path, wanted: SoughtKeys) -> ErasedCopy:
    """Return which files of a standby hold keys; only reads. Raises what `search_standby` raises; DirectoryLockedError
    while another process uses the standby; and NoBackupError, ConfigurationError or BackupTargetError for the place
    that the standby follows, which erasing reads."""
    found = search_standby(directory, wanted)
    check_unlocked(directory)
    mark = read_standby(directory)
    if mark is not None:
        followed = limited(open_place(mark.place))
        if not entries_of(followed, MANIFESTS):
            raise NoBackupError("it holds no backup", path=followed.shown, cause=f"The standby {directory} follows it.")
    return found


def search_standby(directory: Path, wanted: SoughtKeys) -> ErasedCopy:
    """Return which files of a standby hold keys. Only reads. Raises StandbyDirectoryError for another directory,
    ForeignPartitionError, CorruptPartitionError or StorageError."""
    if not is_standby(directory):
        raise StandbyDirectoryError("it is not a standby", path=directory, cause="", remedy="Name a standby.")
    mark = read_standby(directory)
    if mark is not None and mark.store_id not in (None, wanted.store_id):
        raise ForeignPartitionError(
            f"it is a standby of store {mark.store_id}, not of {wanted.store_id}", path=directory
        )
    holding = tuple(path.name for path in _paths_in(directory, wanted) if partition_holds(path, wanted))
    return ErasedCopy(str(directory), holding)


def _paths_in(directory: Path, wanted: SoughtKeys) -> list[Path]:
    paths = (directory / f"part-{index}.sqlite3" for index in wanted.partitions)
    return [path for path in paths if path.exists()]


def erase_standby(directory: Path, wanted: SoughtKeys, clock: Clock) -> ErasedCopy:
    """Erase keys from a standby, by following its place, from which they are erased already: what it lacks is a whole
    copy, which takes the place of each file. Then rewrite the files: changes that were applied have left deleted rows
    in free pages."""
    before = search_standby(directory, wanted)
    why = "the place that it follows has no backup without the key: name that with --place"
    kept: dict[str, str] = {}
    try:
        with Follower(directory, None, clock) as follower:
            look = follower.look()
            for path in _paths_in(directory, wanted):
                try:
                    rewrite(path)
                except RecoveryError as error:
                    kept[path.name] = error.found
        if look.missed:
            why = look.missed[0].why
    except RecoveryError as error:
        why = error.found
    after = search_standby(directory, wanted)
    left = tuple(dict.fromkeys((*after.held, *kept)))
    return ErasedCopy(before.location, before.held, left=left, why=why if after.held else next(iter(kept.values()), ""))
