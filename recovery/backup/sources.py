"""Sources of copies to restore: backups at a target, or a plain directory of copied files."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from recovery.backup.lazy import bring_lazily
from recovery.backup.manifest import MANIFESTS, OBJECTS, Manifest
from recovery.backup.objects import SpoiledObject, bring, links_of
from recovery.backup.progress import FileProgress, Observer
from recovery.backup.repository import READERS, Listing, is_damaged, is_listed, list_backups
from recovery.backup.stored import StoredCopy
from recovery.base.clock import Clock
from recovery.base.threads import each
from recovery.base.wording import counted
from recovery.errors import (
    BackupDamagedError,
    CorruptPartitionError,
    DirectoryLockedError,
    ForeignPartitionError,
    NoBackupError,
    RecoveryError,
)
from recovery.host.durable import files_below
from recovery.host.processes import describe_holder
from recovery.host.storage_errors import storage_errors
from recovery.places.directory import DirectoryPlace
from recovery.places.protocol import Place
from recovery.planning.backups import PartitionCopy
from recovery.planning.chains import described
from recovery.planning.held import unlisted
from recovery.storage.copies import copy_with_log, describe_copy
from recovery.storage.hydration import refuse_hydrating
from recovery.storage.lock import lock_holder
from recovery.storage.no_partitions import is_checkpoint, no_partitions
from recovery.storage.scan import SUFFIX
from recovery.storage.sqlite.file.statements import translated


class RestoreRead(NamedTuple):
    """An object or a file that a restore reads, and its size in bytes. before_bytes: of them, what is read at least
    before the restored directory can be used."""

    name: str
    size_bytes: int
    before_bytes: int


class Source(Protocol):
    """Copies of partitions, and their bytes."""

    shown: str
    copies: list[PartitionCopy]
    """All copies, of all ages."""
    problems: list[str]
    """Unusable copies and backups, a sentence for each."""
    damaged: list[str]
    """The problems that are damage: their copies and backups were good once."""
    latest: list[PartitionCopy]
    """The copies of the latest backup; of files: none."""
    lines: list[Manifest]
    """The last backup of each line of backups that do not continue each other, the latest backup last; of plain files:
    none.
    """
    unread: list[str]
    """Unreadable manifests that are newer than the latest backup."""

    def fetch(
        self, copy: PartitionCopy, path: Path, observe: Observer, *, collects: bool = True, place: str | None = None
    ) -> None:
        """Write a copy's bytes to the new file `path`, and a log beside it if it has one. Nothing is synced.
        collects: without the epochs that the partition had collected by then, but its chain still holds. place: an
        address of this source by which pages may be fetched when they are read, if the copy allows that.

        Raises BackupDamagedError if the bytes are not what was stored, BackupTargetError or StorageError.
        """
        ...

    def reads(self, copy: PartitionCopy, *, lazily: bool = False) -> Sequence[RestoreRead]:
        """Return each object or file that `fetch` reads for a copy. lazily: with a place from which pages are
        fetched."""
        ...

    def describe_chains(self) -> None:
        """Add to `copies` what chains hold besides: the links between the described copies. Reads all changes files of
        the chains. Safe to repeat. Raises BackupTargetError or StorageError."""
        ...

    def missing(self) -> list[str]:
        """Return a sentence for each object that a backup lists and that is missing or was changed. Lists all
        objects. Raises BackupTargetError."""
        ...

    def is_spoiled(self, copy: PartitionCopy) -> bool:
        """Return whether `fetch` has found damage in something that this copy needs, for this copy or another."""
        ...


class BackupSource:
    """The `Source` of the finished backups at a target. A copy that several backups list appears once."""

    def __init__(self, target: Place, clock: Clock, scratch: Path | None = None, *, bundled: bool = True) -> None:
        """scratch: a directory for temporary files. bundled: False: read each manifest itself. Raises NoBackupError or
        BackupTargetError."""
        self.shown = target.shown
        self._target = target
        self._scratch = scratch
        self.listing: Listing = list_backups(target, bundled=bundled)
        if not self.listing.manifests:
            others = f"; {len(self.listing.unreadable)} cannot be read" if self.listing.unreadable else ""
            raise NoBackupError(f"it holds no finished backup{others}", path=target.shown)
        self.damaged: list[str] = []
        self.problems: list[str] = []
        for entry in self.listing.unreadable:
            damaged = is_damaged(target, entry, clock.wall_ms())
            self.problems.append(f"{entry.name} is {'damaged' if damaged else 'not a finished backup'}")
            if damaged:
                self.damaged.append(self.problems[-1])
        self._stored: dict[str, StoredCopy] = {}
        # By name and expected digest: a manifest may be wrong about an object that others list correctly.
        self._spoiled: dict[tuple[str, str], str] = {}
        self._terms: dict[str, int] = {}
        self.copies = []
        self.latest = []
        self.lines = self.listing.lines
        self.unread = self.listing.unread
        for manifest in self.listing.manifests:
            for stored in manifest.copies:
                origin = stored.origin
                known = self._stored.setdefault(origin, stored)
                if known is not stored and known != stored:
                    # One of them is wrong; fetching shows which.
                    origin = f"{origin}, as {manifest.id} has it"
                    known = self._stored.setdefault(origin, stored)
                copy = PartitionCopy(stored.description, origin, stored.taken_ms, term=manifest.term)
                if known is stored:
                    self.copies.append(copy)
                    self._terms[origin] = manifest.term
                if manifest is self.listing.newest:
                    self.latest.append(copy)

    def fetch(
        self, copy: PartitionCopy, path: Path, observe: Observer, *, collects: bool = True, place: str | None = None
    ) -> None:
        stored = self._stored[copy.origin]
        try:
            for name, sha256 in stored.digests.items():
                if (name, sha256) in self._spoiled:
                    raise SpoiledObject(name, self._spoiled[name, sha256])
            if place is not None and stored.index_bytes:
                bring_lazily(self._target, place, stored, path, observe, collects=collects)
            else:
                bring(self._target, stored, path, observe, collects=collects)
        except SpoiledObject as error:
            if error.name is not None:
                self._spoiled[error.name, stored.digests[error.name]] = error.found
            raise BackupDamagedError(error.found, path=self.shown) from error

    def reads(self, copy: PartitionCopy, *, lazily: bool = False) -> Sequence[RestoreRead]:
        stored = self._stored[copy.origin]
        (name, size), *changes = stored.objects
        whole = RestoreRead(name, size, stored.index_bytes if lazily and stored.index_bytes else size)
        return [whole, *(RestoreRead(name, size, size) for name, size in changes)]

    def describe_chains(self) -> None:
        chains: dict[str, StoredCopy] = {}
        there: dict[str, set[int]] = defaultdict(set)
        for stored in self._stored.values():
            there[stored.object_name].add(stored.links)
            longest = chains.setdefault(stored.object_name, stored)
            if stored.links > longest.links:
                chains[stored.object_name] = stored
        known = {closed.cut[:2] for copy in self.copies for closed in copy.description.epochs}
        # A whole copy is link 0. It is described by the manifest of the backup that stored it, or not at all.
        hidden = [
            chain
            for name, chain in chains.items()
            if len(there[name] | {0}) <= chain.links or not known.issuperset(unlisted(chain.description))
        ]
        for stored, found in zip(hidden, each(self._between, hidden, at_once=READERS, name="chains"), strict=True):
            for copy, origin in found:
                if copy.links not in there[stored.object_name] or copy.links == stored.links:
                    self._stored[origin] = copy
                    term = self._terms.get(stored.origin, 0)
                    self.copies.append(PartitionCopy(copy.description, origin, copy.taken_ms, term=term))

    def _between(self, chain: StoredCopy) -> list[tuple[StoredCopy, str]]:
        """Return a chain as of each of its links, with its origin. Returns nothing, and a problem, if the chain cannot
        be read."""
        try:
            with tempfile.TemporaryDirectory(dir=self._scratch) as name:
                found = links_of(self._target, chain, Path(name))
        except SpoiledObject as error:
            self.problems.append(error.found)
            self.damaged.append(error.found)
            return []
        return [(chain.as_of(link, description), f"{chain.name_of(link.number)}, link {link.number}")
                for link, description in zip(found, described(found, chain.description), strict=True)]  # fmt: skip

    def missing(self) -> list[str]:
        there = {entry.name: entry.size_bytes for entry in self._target.entries(OBJECTS)}
        needs: dict[tuple[str, int], list[str]] = defaultdict(list)
        for manifest in self.listing.manifests:
            for stored in manifest.copies:
                for name, size in stored.objects:
                    if there.get(name) != size:
                        needs[name, size].append(manifest.id)
        found = []
        for (name, size), backups in needs.items():
            # A backup that was pruned meanwhile needs nothing any more.
            still = [identity for identity in backups if is_listed(self._target, identity)]
            if still:
                what = "is missing" if name not in there else f"has {there[name]:,} of {counted(size, 'byte')}"
                found.append(f"{name} {what}, and backup {still[-1]} needs it")
        return found

    def is_spoiled(self, copy: PartitionCopy) -> bool:
        return not self._spoiled.keys().isdisjoint(self._stored[copy.origin].digests.items())


class PlainSource:
    """The `Source` of files that `cp`, `sqlite3 .backup` or Litestream left in a directory or below it.

    A file's content, not its name, decides which partition it is a copy of. A file with a log beside it is copied
    before it is read, so nothing in the directory changes.
    """

    def __init__(self, directory: Path, scratch: Path) -> None:
        """Raises NoBackupError, DirectoryLockedError if a run is active there, HydratingError or StorageError."""
        self.shown = str(directory)
        self.copies = []
        self.latest: list[PartitionCopy] = []
        self.lines: list[Manifest] = []
        self.unread: list[str] = []
        self.problems = []
        self.damaged = []
        others: RecoveryError | None = None
        paths = _databases(directory)
        for parent in {directory, *(path.parent for path in paths)}:
            _refuse_live(parent)
            refuse_hydrating(parent, "a restore from it")
        for path in paths:
            try:
                description, changed_ms = describe_copy(path, scratch)
            except RecoveryError as error:
                self.problems.append(f"{path.relative_to(directory)}: {error.found}")
                others = others or (error if isinstance(error, ForeignPartitionError) else None)
                if isinstance(error, CorruptPartitionError):
                    self.damaged.append(self.problems[-1])
            else:
                taken_ms = path.stat().st_mtime_ns // 1_000_000
                self.copies.append(PartitionCopy(description, str(path), taken_ms, changed_ms))
        if not self.copies:
            found = f"no file in it can be used: {'; '.join(self.problems[:3])}" if self.problems else (
                "it holds neither backups nor copies of partitions"
            )  # fmt: skip
            if is_checkpoint(directory):
                others = no_partitions(directory)
            if others is not None:
                raise NoBackupError(found, path=directory, cause=others.cause, remedy=others.remedy)
            raise NoBackupError(found, path=directory)

    def fetch(
        self, copy: PartitionCopy, path: Path, observe: Observer, *, collects: bool = True, place: str | None = None
    ) -> None:
        source = Path(copy.origin)
        size = copy.description.size_bytes
        with translated(path):
            copy_with_log(source, path)
        observe(FileProgress("fetch", path.name, size, size))

    def reads(self, copy: PartitionCopy, *, lazily: bool = False) -> Sequence[RestoreRead]:
        size = copy.description.size_bytes
        return [RestoreRead(copy.origin, size, size)]

    def describe_chains(self) -> None:
        """Do nothing: plain files are no chains."""

    def missing(self) -> list[str]:
        """Return nothing: a directory of plain files lists no objects."""
        return []

    def is_spoiled(self, copy: PartitionCopy) -> bool:
        """Return False: no two copies share a file."""
        return False


def _refuse_live(directory: Path) -> None:
    holder = lock_holder(directory)
    if holder is not None:
        raise DirectoryLockedError(
            f"a run is using it: {describe_holder(holder)}",
            path=directory,
            cause="This is the recovery directory itself, not a directory of copies.",
            remedy="Take a backup of it: python -m recovery backup DIR DEST",
        )


def _databases(directory: Path) -> list[Path]:
    with storage_errors(directory):
        return sorted(path for path in files_below(directory) if path.suffix == SUFFIX and path.is_file())


def open_source(target: Place, scratch: Path, clock: Clock, *, bundled: bool = True) -> Source:
    """Return the backups at a target; for a directory without backups, the copies of partitions in it. bundled: False:
    read each manifest itself, which finds one that was damaged.

    Raises NoBackupError, BackupTargetError, DirectoryLockedError or StorageError.
    """
    try:
        return BackupSource(target, clock, scratch, bundled=bundled)
    except NoBackupError:
        if isinstance(target, DirectoryPlace) and not (target.root / MANIFESTS).exists():
            return PlainSource(target.root, scratch)
        raise
