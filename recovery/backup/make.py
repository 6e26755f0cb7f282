"""Make a backup: a copy of every partition as of one moment, also while a run writes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from recovery.backup.arrow import arrow
from recovery.backup.manifest import OBJECTS, Manifest, StoredCopy, backup_id, fingerprint, object_name
from recovery.backup.note import LastBackup, note_backup
from recovery.backup.progress import Observer, Progressed, ignore
from recovery.backup.repository import begin, check_store, finish, give_up, list_backups
from recovery.backup.scratch import scratch_directory
from recovery.backup.target import CHUNK_BYTES, Target, UnreadableError
from recovery.base.clock import Clock
from recovery.base.ids import PartitionIndex
from recovery.base.threads import each
from recovery.base.wording import counted
from recovery.errors import BackupDamagedError, InconsistentPartitionsError, RecoveryError, StorageError
from recovery.host.durable import create
from recovery.host.open_files import allow_open_files
from recovery.planning.resume import plan_resume
from recovery.planning.values import FoundFile
from recovery.storage.copies import PinnedPartition, pin
from recovery.storage.scan import scan
from recovery.storage.verify import PartitionCheck

AT_ONCE = 4
ATTEMPTS = 3
FILES_PER_COPY = 8
# The best codec of pyarrow for partitions: 2.4 times smaller at 200 MB/s a core (gzip: 2.3 times at 70 MB/s).
CODEC = "zstd"
LEVEL = 1


@dataclass(frozen=True, slots=True)
class Made:
    """A finished backup, and how much of it is new."""

    manifest: Manifest
    stored: int
    stored_bytes: int
    read_bytes: int
    elapsed_s: float

    @property
    def reused(self) -> int:
        """The number of partitions that had not changed since the previous backup."""
        return len(self.manifest.copies) - self.stored


def make_backup(
    directory: Path,
    target: Target,
    *,
    clock: Clock,
    random_id: Callable[[], str],
    check: bool = False,
    observe: Observer = ignore,
    scratch: Path | None = None,
) -> Made:
    """Back up the partitions of `directory`, whether a run is active or not. See `repository` for the steps.

    All copies are of one moment, so the backup holds the newest epoch that was closed in all partitions. Each
    partition, a few in parallel, is copied to `scratch` (a temporary directory), compressed, and written to the target.
    check: read each copy in full and check every digest before it is stored; check copies of earlier backups that this
    one lists again in the same way, and store again those that are not whole. If anything fails, the backup does not
    count. Raises BackupTargetError, ForeignPartitionError, and the errors of `plan` for the directory.
    """
    started = clock.elapsed_s()
    identity = backup_id(clock.wall_ms(), random_id())
    before = list_backups(target)
    planned = plan_resume(scan(directory))
    check_store(before, planned.store_id, target.shown)
    bases = iter([before.newest])
    base = begin(target, identity, lambda: next(bases, None) or list_backups(target).newest, clock.wall_ms())
    try:
        allow_open_files(len(planned.partitions) * FILES_PER_COPY)
        there = {entry.name: entry.size_bytes for entry in target.entries(OBJECTS)}
        usable = [copy for copy in base if there.get(copy.object_name) == copy.stored_bytes]
        paths = [d.path for d in planned.partitions]
        for attempt in range(ATTEMPTS):
            taken_ms = clock.wall_ms()
            store = partial(_store, target, f"{identity}.{attempt}" if attempt else identity, taken_ms, check, observe)
            with scratch_directory("backup", scratch) as room:
                is_whole = partial(_is_whole, target, room, observe) if check else None
                results = _copies(paths, usable, partial(store, room), is_whole)
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
        note_backup(directory, LastBackup(manifest.finished_ms, epoch, target.shown))
    except BaseException:
        with contextlib.suppress(RecoveryError, FileNotFoundError):
            give_up(target, identity)
        raise
    new = [copy for copy in results if identity in copy.object_name]
    return Made(
        manifest=manifest,
        stored=len(new),
        stored_bytes=sum(copy.stored_bytes for copy in new),
        read_bytes=sum(copy.size_bytes for copy in new),
        elapsed_s=clock.elapsed_s() - started,
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
    digest, done_bytes = hashlib.sha256(), 0
    path = scratch / f"stored-{copy.description.index}.sqlite3"
    tell = partial(Progressed, step="check", name=copy.description.path.name, bytes_total=copy.size_bytes)
    try:
        with os.fdopen(create(path), "wb") as file:
            for chunk in target.read(copy.object_name):
                digest.update(chunk)
                file.write(chunk)
                done_bytes += len(chunk)
                observe(tell(bytes_done=done_bytes))
                if done_bytes > copy.size_bytes:
                    return False
        return digest.hexdigest() == copy.sha256 and not PartitionCheck(path).run().problems
    except (FileNotFoundError, UnreadableError, BackupDamagedError):
        return False
    except OSError as error:
        raise StorageError(str(error), path=path) from error
    finally:
        path.unlink(missing_ok=True)


def _each(pinned: list[PinnedPartition], work: Callable[[PinnedPartition], StoredCopy]) -> list[StoredCopy]:
    return each(work, pinned, at_once=AT_ONCE, name="backup")


def _store(
    target: Target,
    identity: str,
    taken_ms: int,
    check: bool,
    observe: Observer,
    scratch: Path,
    pinned: PinnedPartition,
) -> StoredCopy:
    """Copy, compress and write one partition."""
    copy = scratch / pinned.path.name
    total = pinned.description.size_bytes
    tell = partial(Progressed, name=pinned.path.name, bytes_total=total)
    description = pinned.copy_to(copy, lambda done, _: observe(tell(step="copy", bytes_done=done)))
    pinned.release()
    if check:
        observe(tell(step="check", bytes_done=0))
        # The copy is gone when the message is read; its damage is the partition's.
        replace(PartitionCheck(copy).run(), path=pinned.path).raise_if_damaged()
    content = _Compressed(copy, lambda done: observe(tell(step="store", bytes_done=done)))
    name = object_name(identity, description.index)
    stored_bytes = target.write(name, content)
    copy.unlink()
    observe(tell(step="stored", bytes_done=content.size_bytes))
    if stored_bytes != content.stored_bytes:
        raise BackupDamagedError(
            f"{name}: {stored_bytes:,} of {counted(content.stored_bytes, 'byte')} written", path=target.shown
        )
    return StoredCopy(
        description=description,
        object_name=name,
        sha256=content.sha256,
        size_bytes=content.size_bytes,
        stored_bytes=stored_bytes,
        taken_ms=taken_ms,
        fingerprint=fingerprint(description, pinned.operational),
    )


class _Compressed:
    """Yields a file's content as zstd frames, one per chunk; `zstd -d` reads the result."""

    def __init__(self, path: Path, observe: Callable[[int], None]) -> None:
        self._path = path
        self._observe = observe
        self._digest = hashlib.sha256()
        self.size_bytes = 0
        self.stored_bytes = 0

    @property
    def sha256(self) -> str:
        """The digest of the uncompressed file."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        codec = arrow().Codec(CODEC, compression_level=LEVEL)
        try:
            with self._path.open("rb") as file:
                while block := file.read(CHUNK_BYTES):
                    self._digest.update(block)
                    chunk: bytes = codec.compress(block, asbytes=True)
                    self.size_bytes += len(block)
                    self.stored_bytes += len(chunk)
                    yield chunk
                    self._observe(self.size_bytes)
        except OSError as error:
            raise StorageError(str(error), path=self._path) from error
