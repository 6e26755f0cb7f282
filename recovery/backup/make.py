"""Make a backup: a copy of every partition as of one moment, also while a run writes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from recovery.backup.catalog import Backup, Catalog
from recovery.backup.drills import drills_at
from recovery.backup.heads import Head, fits, new_head
from recovery.backup.links import Linking, NoLink, WrittenLink, merge_link, store_link, write_link
from recovery.backup.manifest import OBJECTS, Manifest, backup_id, encode_copy, object_name
from recovery.backup.note import LastBackup, last_drill, note_backup, note_last_drill
from recovery.backup.objects import SpoiledObject, bring, store_file
from recovery.backup.progress import FileProgress, Observer, ignore
from recovery.backup.repository import begin, check_store, finish, give_up, running_name
from recovery.backup.stored import StoredCopy
from recovery.backup.writer import Writer
from recovery.base.clock import LATEST_MS, Clock
from recovery.base.ids import NO_EPOCH
from recovery.base.threads import each
from recovery.base.version import installed_version
from recovery.errors import InconsistentPartitionsError, RecoveryError, StorageError
from recovery.host.open_files import allow_open_files
from recovery.host.processes import as_holder
from recovery.host.scratch import scratch_directory
from recovery.places.protocol import Place
from recovery.planning.held import check_fit
from recovery.planning.resume import check_set
from recovery.planning.values import FoundFile, PartitionDescription
from recovery.storage.copies import PinnedPartition, pin
from recovery.storage.hydration import refuse_hydrating
from recovery.storage.origin import Origin, read_origins
from recovery.storage.scan import scan
from recovery.storage.verify import PartitionCheck

AT_ONCE = 4
ATTEMPTS = 3
FILES_PER_COPY = 8

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Made:
    """A finished backup, and how much of it is new.

    stored, linked: the number of partitions that were stored whole, and of those of which only the changes were.
    whole_because: of the former, if only changes were wanted, the file and why that was not possible.
    """

    manifest: Manifest
    stored: int
    linked: int
    stored_bytes: int
    read_bytes: int
    elapsed_s: float
    whole_because: Mapping[str, str]

    @property
    def reused(self) -> int:
        """The number of partitions that had not changed since the previous backup."""
        return len(self.manifest.copies) - self.stored - self.linked


class Parts(Protocol):
    """The partitions that are backed up."""

    def found(self, *, again: bool = True) -> list[FoundFile]:
        """Return the descriptions of all partitions, to plan with; `store` means these partitions. again: look at them
        now; else the last look may do: while a run has the partitions, they stay where they are."""
        ...

    def origins(self) -> Sequence[Origin]:
        """Return what the store was made from."""
        ...

    def store(self, storing: Storing) -> list[StoredCopy] | None:
        """Store all partitions, as of moments that fit together; None if they do not fit."""
        ...

    def apart(self) -> RecoveryError:
        """Return the error for moments that did not fit together, again and again."""
        ...


class DirectoryParts:
    """The `Parts` of one directory that has all partitions."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._found: list[FoundFile] = []

    def found(self, *, again: bool = True) -> list[FoundFile]:
        if again or not self._found:
            self._found = scan(self._directory)
        return self._found

    def origins(self) -> Sequence[Origin]:
        return read_origins(self._directory)

    def store(self, storing: Storing) -> list[StoredCopy] | None:
        return storing.copies([each.path for each in check_set(self._found)])

    def apart(self) -> RecoveryError:
        return StorageError(
            "no consistent copies could be taken",
            path=self._directory,
            cause="Runs kept starting and ending while the partitions were copied.",
            remedy="Run the backup again; it also works during a run, which can pause all partitions together.",
        )


def make_backup(
    directory: Path,
    target: Place,
    *,
    clock: Clock,
    random_id: Callable[[], str],
    check: bool = False,
    incremental: bool = False,
    observe: Observer = ignore,
    scratch: Path | None = None,
    catalog: Catalog | None = None,
    base: Manifest | None = None,
    staged: bool = False,
    may_count: Callable[[], int] | None = None,
    writer: Writer | None = None,
    home: Path | None = None,
    parts: Parts | None = None,
) -> Made:
    """Back up the partitions of `directory`, whether a run is active or not. See `repository` for the steps.

    All copies are of one moment, so the backup holds the newest epoch that was closed in all partitions. Each
    partition, a few in parallel, is copied to `scratch` (a temporary directory), compressed, and written to the target.
    check: read each copy in full and check every digest before it is stored; check copies of earlier backups that this
    one lists again in the same way, and store again those that are not whole. incremental: store only what changed in a
    partition since the backup before, where it still holds that.
    catalog: what this process knows of the place. base: continue this backup, which this process made of this
    directory, without looking at the others, at its objects or at the notes of drills. staged: write everything to
    `scratch` before the first byte goes to the target: then a slow one does not make the logs beside the partitions
    grow. may_count: called before the manifest is written; returns the term of the run that ships, and raises if the
    backup must not count. Without `may_count`, `writer` gives the term; the default writer claims nothing. home: the
    directory of the run, whose copies `directory` has. parts: the partitions, if not all are in `directory`. If
    anything fails, the backup does not count. Raises TakenOverError or StaleDirectoryError if the place is another
    directory's; BackupTargetError, ForeignPartitionError, and the errors of `plan` for the directory.
    """
    started = clock.elapsed_s()
    refuse_hydrating(directory, "a backup")
    catalog, parts = catalog or Catalog(target), parts or DirectoryParts(directory)
    contents = catalog.look() if base is None else None
    identity = backup_id(_moment_after([base] if contents is None else contents.backups, clock), random_id())
    planned = check_fit(parts.found(again=base is None))
    store_id = planned[0].store_id
    if contents is not None:
        check_store(contents.backups, store_id, target.shown, parts.origins)
    if may_count is None:
        writer = writer or Writer(home or directory, target, clock, random_id)
        writer.begin(planned, base if contents is None else catalog.latest_of(contents))
        may_count = writer.check
    given = iter([base])
    # Owners, on other hosts, write for a backup whose process was killed.
    maker = as_holder("backup") if isinstance(parts, DirectoryParts) else None
    found = begin(target, identity, lambda: next(given, None) or catalog.newest(), clock.wall_ms(), maker)
    before = found.copies if found is not None else ()
    try:
        allow_open_files(len(planned) * FILES_PER_COPY)
        there = None if base is not None else {entry.name: entry.size_bytes for entry in target.entries(OBJECTS)}
        usable = before if there is None else _present(there, before)
        since = found.epoch if found is not None else NO_EPOCH
        head = found.head if found is not None else None
        if head is not None and there is not None and head.object not in there:
            head = None
        spoiled_because: dict[str, str] = {}
        results: list[StoredCopy] | None = None
        attempt = apart = 0
        while results is None:
            taken_ms = _moment_after([found], clock)
            own = f"{identity}.{attempt}" if attempt else identity
            linking = Linking(target, own, taken_ms, check, observe, running_name(identity), since)
            with scratch_directory("backup", scratch) as room:
                storing = Storing(linking, room, usable, incremental=incremental, staged=staged, in_full=base is None)
                try:
                    results = parts.store(storing)
                    apart += results is None
                except SpoiledChainError as spoiled:
                    # Each time there is one chain less.
                    usable = [copy for copy in usable if copy is not spoiled.copy]
                    spoiled_because[spoiled.copy.description.path.name] = str(spoiled)
            attempt += 1
            if apart == ATTEMPTS:
                raise parts.apart()
        head = _written_head(target, identity, results, head)
        manifest = Manifest(
            id=identity,
            store_id=store_id,
            started_ms=taken_ms,
            finished_ms=clock.wall_ms(),
            host=socket.gethostname(),
            version=installed_version(),
            copies=tuple(results),
            term=may_count(),
            head=head,
        )
        finish(target, manifest)
        catalog.add(manifest)
        chain = max(len(copy.objects) for copy in manifest.copies)
        made = LastBackup(manifest.finished_ms, manifest.epoch, target.shown, incremental, chain, manifest.execution)
        note_backup(home or directory, made)
        if base is None:
            catalog.keep_bundle()
            _bring_drill(target, home or directory, clock.wall_ms())
    except BaseException:
        with contextlib.suppress(RecoveryError, FileNotFoundError):
            give_up(target, identity)
        raise
    new = [copy for copy in results if identity in copy.origin]
    linked = [copy for copy in new if copy.changes]
    return Made(
        manifest=manifest,
        stored=len(new) - len(linked),
        linked=len(linked),
        stored_bytes=sum(copy.stored_by(identity) for copy in new),
        read_bytes=sum(copy.changes[-1].size_bytes if copy.changes else copy.size_bytes for copy in new),
        elapsed_s=clock.elapsed_s() - started,
        whole_because=storing.whole_because | spoiled_because,
    )


def _moment_after(backups: Iterable[Backup | Manifest | None], clock: Clock) -> int:
    """Return the present time, or a time after all these backups if one of them is later: times decide which backup is
    the newest, and the clock of another host, or this host's before it was set, may be ahead."""
    latest = max((each.started_ms for each in backups if each is not None), default=0)
    return min(max(clock.wall_ms(), latest + 1), LATEST_MS)


def _present(there: Mapping[str, int], copies: Sequence[StoredCopy]) -> list[StoredCopy]:
    """Return the copies whose objects are all at the target. there: name and size of each object."""
    return [copy for copy in copies if all(there.get(name) == size for name, size in copy.objects)]


def _written_head(target: Place, identity: str, copies: Sequence[StoredCopy], before: Head | None) -> Head | None:
    """Return the head for a manifest of these copies: that of the backup before, none, or a new one, which is written
    then. A manifest of whole copies has none, since older programs read it. Raises BackupTargetError."""
    if not any(copy.changes for copy in copies):
        return None
    encoded = [encode_copy(copy) for copy in copies]
    for head in (before, None):
        if fits(head, encoded):
            return head
    head, content = new_head(identity, encoded)
    target.write(head.object, [content])
    return head


class SpoiledChainError(Exception):
    """An object of a chain is damaged, and the partition, which was to continue it, is no longer pinned."""

    def __init__(self, copy: StoredCopy, why: NoLink) -> None:
        super().__init__(str(why))
        self.copy = copy


Finish = Callable[[], StoredCopy]
"""Writes to the target what lies in the scratch directory."""


class Storing:
    """Stores the partitions of one attempt, as of one moment. `usable`: copies that the backup may list again or
    continue. in_full: check what the partitions say of all epochs that they hold, not only of those since the backup
    before."""

    def __init__(
        self,
        linking: Linking,
        scratch: Path,
        usable: Sequence[StoredCopy],
        *,
        incremental: bool,
        staged: bool,
        in_full: bool = True,
    ) -> None:
        self.linking = self._linking = linking
        self.usable = tuple(usable)
        self.incremental = incremental
        self.in_full = in_full
        self._scratch = scratch
        self._known = {(copy.description.index, copy.fingerprint): copy for copy in usable}
        self._earlier = {copy.description.index: copy for copy in usable}
        self._staged = staged
        self.whole_because: dict[str, str] = {}

    def copies(self, paths: Sequence[Path], *, are_all: bool = True) -> list[StoredCopy] | None:
        """Return a copy of each partition: a stored copy if the partition has not changed, else a new one.

        Returns None if the copies are of different moments: a run that begins while unused files are copied changes
        them. Raises the errors of `plan` if the partitions are inconsistent from the beginning, SpoiledChainError.
        are_all: these are all partitions of the store; if not, the caller checks whether they fit.
        """
        pinned = pin(paths, NO_EPOCH if self.in_full else self._linking.since)
        try:
            # Check what will be stored the way a restore would find it.
            if are_all:
                _check_pinned(pinned)
            work = self._stage if self._staged else self._store
            results = _each(work, pinned)
        finally:
            for each in pinned:
                each.release()
        try:
            if are_all:
                check_fit([FoundFile(each.path, each.description) for each in pinned])
        except InconsistentPartitionsError:
            return None
        return _each(lambda finish: finish(), results)

    def _store(self, pinned: PinnedPartition) -> Finish:
        """Stage and finish while the partition is pinned."""
        return _done(self._stage(pinned)())

    def _stage(self, pinned: PinnedPartition) -> Finish:
        """Write what is to be stored of one partition to the scratch directory."""
        return self._reused(pinned) or (self._changes(pinned) if self.incremental else self._whole(pinned))

    def _reused(self, pinned: PinnedPartition) -> Finish | None:
        linking = self._linking
        found = self._known.get((pinned.description.index, pinned.fingerprint))
        if found is None or (linking.check and not _is_whole(linking.target, self._scratch, linking.observe, found)):
            return None
        return _done(found)

    def _changes(self, pinned: PinnedPartition) -> Finish:
        """Stage what changed in a partition; if that is not possible, stage the whole partition, and note why."""
        before = self._earlier.get(pinned.description.index)
        try:
            link = write_link(self._linking, self._scratch, before, pinned)
        except NoLink as reason:
            return self._whole(pinned, str(reason))
        if self._staged:
            pinned.release()
        return partial(self._finish_link, link, pinned)

    def _finish_link(self, link: WrittenLink, pinned: PinnedPartition) -> StoredCopy:
        try:
            merged = merge_link(self._linking, self._scratch, link)
        except NoLink as reason:
            if self._staged:
                raise SpoiledChainError(link.before, reason) from reason
            return self._whole(pinned, str(reason))()
        pinned.release()
        return store_link(self._linking, merged, pinned)

    def _whole(self, pinned: PinnedPartition, why: str | None = None) -> Finish:
        """Stage all of one partition."""
        if why is not None:
            self.whole_because[pinned.path.name] = why
        check, observe = self._linking.check, self._linking.observe
        copy = self._scratch / pinned.path.name
        pinned.describe_from(NO_EPOCH)
        tell = partial(FileProgress, name=pinned.path.name, bytes_total=pinned.description.size_bytes)
        description = pinned.copy_to(copy, lambda done, _: observe(tell(step="copy", bytes_done=done)))
        pinned.release()
        if check:
            observe(tell(step="check", bytes_done=0))
            # The copy is gone when the message is read; its damage is the partition's.
            replace(PartitionCheck(copy).run(), path=pinned.path).raise_if_damaged()
        return partial(self._finish_whole, copy, description, pinned, tell)

    def _finish_whole(
        self, copy: Path, description: PartitionDescription, pinned: PinnedPartition, tell: Callable[..., FileProgress]
    ) -> StoredCopy:
        """Compress and write one partition."""
        linking = self._linking
        target, identity, taken_ms, observe = linking.target, linking.identity, linking.taken_ms, linking.observe
        name = object_name(identity, description.index)
        stored = store_file(target, name, copy, lambda done: observe(tell(step="store", bytes_done=done)), indexed=True)
        copy.unlink()
        observe(tell(step="stored", bytes_done=stored.size_bytes))
        return StoredCopy(
            description=description,
            object_name=name,
            sha256=stored.sha256,
            size_bytes=stored.size_bytes,
            stored_bytes=stored.stored_bytes,
            taken_ms=taken_ms,
            fingerprint=pinned.fingerprint,
            marks=pinned.marks,
            index_bytes=stored.index_bytes,
            index_sha256=stored.index_sha256,
        )


def _check_pinned(pinned: Sequence[PinnedPartition]) -> None:
    """Raises the errors of `plan` if the partitions do not fit together."""

    def check() -> None:
        check_fit([FoundFile(each.path, each.description) for each in pinned])

    try:
        check()
    except InconsistentPartitionsError:
        # They may share an older epoch than the descriptions list.
        for each in pinned:
            each.describe_from(NO_EPOCH)
        check()


def _done(copy: StoredCopy) -> Finish:
    return lambda: copy


def _is_whole(target: Place, scratch: Path, observe: Observer, copy: StoredCopy) -> bool:
    """Whether a stored copy is still unchanged and was whole when it was stored. Reads the whole copy."""
    path = scratch / f"stored-{copy.description.index}.sqlite3"
    name = copy.description.path.name
    try:
        bring(target, copy, path, lambda event: observe(replace(event, step="check", name=name)))
        return not PartitionCheck(path).run().problems
    except SpoiledObject:
        return False
    finally:
        path.unlink(missing_ok=True)


def _each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    return each(work, items, at_once=AT_ONCE, name="backup")


def _bring_drill(target: Place, directory: Path, now_ms: int) -> None:
    """Note in the directory how the last drill of its place ended, unless the note is of a later drill at another
    place; the place itself knows the order of its drills. The backup counts, whatever becomes of the note."""
    with contextlib.suppress(RecoveryError):
        drills, known = drills_at(target), last_drill(directory)
        drill = next(drills, None)
        if drill is None:
            return
        if known is None or not drill.finished_ms < known.finished_ms <= now_ms or known in drills:
            note_last_drill(directory, drill)
