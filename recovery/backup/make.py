"""Make a backup: a copy of every partition as of one moment, also while a run writes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from recovery.backup.links import Linking, NoLink, store_link
from recovery.backup.manifest import OBJECTS, Manifest, StoredCopy, backup_id, fingerprint, object_name
from recovery.backup.note import LastBackup, note_backup
from recovery.backup.objects import SpoiledObject, bring, store_file
from recovery.backup.progress import Observer, Progressed, ignore
from recovery.backup.repository import begin, check_store, finish, give_up, list_backups
from recovery.backup.target import Target
from recovery.base.clock import Clock
from recovery.base.ids import PartitionIndex
from recovery.base.threads import each
from recovery.errors import InconsistentPartitionsError, RecoveryError, StorageError
from recovery.host.open_files import allow_open_files
from recovery.host.scratch import scratch_directory
from recovery.planning.resume import plan_resume
from recovery.planning.values import FoundFile
from recovery.storage.copies import PinnedPartition, pin
from recovery.storage.origin import read_origins
from recovery.storage.scan import scan
from recovery.storage.verify import PartitionCheck

AT_ONCE = 4
ATTEMPTS = 3
FILES_PER_COPY = 8


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


def make_backup(
    directory: Path,
    target: Target,
    *,
    clock: Clock,
    random_id: Callable[[], str],
    check: bool = False,
    incremental: bool = False,
    observe: Observer = ignore,
    scratch: Path | None = None,
    home: Path | None = None,
) -> Made:
    """Back up the partitions of `directory`, whether a run is active or not. See `repository` for the steps.

    All copies are of one moment, so the backup holds the newest epoch that was closed in all partitions. Each
    partition, a few in parallel, is copied to `scratch` (a temporary directory), compressed, and written to the target.
    check: read each copy in full and check every digest before it is stored; check copies of earlier backups that this
    one lists again in the same way, and store again those that are not whole. incremental: store only what changed in a
    partition since the backup before, where it still holds that. home: the directory of the run, whose copies
    `directory` has. If anything fails, the backup does not count. Raises
    BackupTargetError, ForeignPartitionError, and the errors of `plan` for the directory.
    """
    started = clock.elapsed_s()
    identity = backup_id(clock.wall_ms(), random_id())
    before = list_backups(target)
    planned = plan_resume(scan(directory))
    check_store(before, planned.store_id, target.shown, lambda: read_origins(directory))
    bases = iter([before.newest])
    base = begin(target, identity, lambda: next(bases, None) or list_backups(target).newest, clock.wall_ms())
    try:
        allow_open_files(len(planned.partitions) * FILES_PER_COPY)
        there = {entry.name: entry.size_bytes for entry in target.entries(OBJECTS)}
        usable = [copy for copy in base if all(there.get(name) == size for name, size in copy.objects)]
        paths = [d.path for d in planned.partitions]
        for attempt in range(ATTEMPTS):
            taken_ms = clock.wall_ms()
            linking = Linking(target, f"{identity}.{attempt}" if attempt else identity, taken_ms, check, observe)
            whole_because: dict[str, str] = {}
            with scratch_directory("backup", scratch) as room:
                is_whole = partial(_is_whole, target, room, observe) if check else None
                if incremental:
                    earlier = {copy.description.index: copy for copy in usable}
                    store = partial(_store_changes, linking, room, earlier, whole_because)
                else:
                    store = partial(_store, linking, room)
                results = _copies(paths, usable, store, is_whole)
            if results is not None:
                break
        else:
            raise StorageError(
                "no consistent copies could be taken",
                path=directory,
                cause="Runs kept starting and ending while the partitions were copied.",
                remedy="Run the backup again; it also works during a run, which can pause all partitions together.",
            )
        manifest = Manifest(
            id=identity,
            store_id=planned.store_id,
            started_ms=taken_ms,
            finished_ms=clock.wall_ms(),
            host=socket.gethostname(),
            version=version("recovery"),
            copies=tuple(results),
        )
        finish(target, manifest)
        epoch = min(copy.description.newest_epoch for copy in manifest.copies)
        chain = max(len(copy.objects) for copy in manifest.copies)
        note_backup(home or directory, LastBackup(manifest.finished_ms, epoch, target.shown, incremental, chain))
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
        whole_because=whole_because,
    )


def _copies(
    paths: Sequence[Path],
    usable: Sequence[StoredCopy],
    store: Callable[[PinnedPartition], StoredCopy],
    is_whole: Callable[[StoredCopy], bool] | None,
) -> list[StoredCopy] | None:
    """Return a copy of each partition, as of one moment: a stored copy if the partition has not changed, else one made
    by `store`.

    Returns None if the copies are of different moments: a run that begins while unused files are copied changes them.
    Raises the errors of `plan` if the partitions are inconsistent from the beginning.
    """
    known = {(copy.description.index, copy.fingerprint): copy for copy in usable}
    pinned = pin(paths)
    try:
        # Check what will be stored the way a restore would find it.
        plan_resume([FoundFile(each.path, each.description) for each in pinned])
        results = _each(pinned, lambda each: _reused(each, known, is_whole) or store(each))
    finally:
        for each in pinned:
            each.release()
    try:
        plan_resume([FoundFile(each.path, each.description) for each in pinned])
    except InconsistentPartitionsError:
        return None
    return results


def _reused(
    pinned: PinnedPartition,
    known: Mapping[tuple[PartitionIndex, int], StoredCopy],
    is_whole: Callable[[StoredCopy], bool] | None,
) -> StoredCopy | None:
    d = pinned.description
    found = known.get((d.index, fingerprint(d, pinned.operational)))
    return found if found is not None and (is_whole is None or is_whole(found)) else None


def _is_whole(target: Target, scratch: Path, observe: Observer, copy: StoredCopy) -> bool:
    """Whether a stored copy is still unchanged and was whole when it was stored. Reads all of it."""
    path = scratch / f"stored-{copy.description.index}.sqlite3"
    name = copy.description.path.name
    try:
        bring(target, copy, path, lambda event: observe(replace(event, step="check", name=name)))
        return not PartitionCheck(path).run().problems
    except SpoiledObject:
        return False
    finally:
        path.unlink(missing_ok=True)


def _each(pinned: list[PinnedPartition], work: Callable[[PinnedPartition], StoredCopy]) -> list[StoredCopy]:
    return each(work, pinned, at_once=AT_ONCE, name="backup")


def _store_changes(
    linking: Linking,
    scratch: Path,
    earlier: Mapping[PartitionIndex, StoredCopy],
    whole_because: dict[str, str],
    pinned: PinnedPartition,
) -> StoredCopy:
    """Store what changed in one partition; if that is not possible, all of it, and note why."""
    try:
        return store_link(linking, scratch, earlier.get(pinned.description.index), pinned)
    except NoLink as reason:
        whole_because[pinned.path.name] = str(reason)
    return _store(linking, scratch, pinned)


def _store(linking: Linking, scratch: Path, pinned: PinnedPartition) -> StoredCopy:
    """Copy, compress and write one partition."""
    target, identity, taken_ms, check, observe = linking
    copy = scratch / pinned.path.name
    total = pinned.description.size_bytes
    tell = partial(Progressed, name=pinned.path.name, bytes_total=total)
    description = pinned.copy_to(copy, lambda done, _: observe(tell(step="copy", bytes_done=done)))
    pinned.release()
    if check:
        observe(tell(step="check", bytes_done=0))
        # The copy is gone when the message is read; its damage is the partition's.
        replace(PartitionCheck(copy).run(), path=pinned.path).raise_if_damaged()
    name = object_name(identity, description.index)
    stored = store_file(target, name, copy, lambda done: observe(tell(step="store", bytes_done=done)))
    copy.unlink()
    observe(tell(step="stored", bytes_done=stored.size_bytes))
    return StoredCopy(
        description=description,
        object_name=name,
        sha256=stored.sha256,
        size_bytes=stored.size_bytes,
        stored_bytes=stored.stored_bytes,
        taken_ms=taken_ms,
        fingerprint=fingerprint(description, pinned.operational),
        marks=pinned.marks,
    )
