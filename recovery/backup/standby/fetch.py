"""Fetching what a partition of a standby lacks: the changes files of its chain, or all of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from recovery.backup.manifest import fingerprint_until_2
from recovery.backup.objects import SpoiledObject, bring, fetch_object
from recovery.backup.progress import FileProgress, Observer
from recovery.backup.stored import StoredCopy
from recovery.base.ids import NO_EPOCH, Epoch
from recovery.errors import CorruptPartitionError, RecoveryError, StorageError, UnsupportedVersionError
from recovery.host.durable import Modes, modes_beside, sync
from recovery.places.protocol import Place
from recovery.planning.following import ChainPosition, needed, same_link
from recovery.storage.copies import PinnedPartition, merge, read_links
from recovery.storage.verify import PartitionCheck

NEWEST = Epoch((1 << 63) - 1)
"""Describes a partition from here on: by its newest epoch alone."""


class FetchedPartition(NamedTuple):
    """What was fetched for a partition. whole: why the whole partition was fetched; None: changes, or nothing."""

    position: ChainPosition
    objects: int
    stored_bytes: int
    whole: str | None = None


class Fetcher:
    """Fetches from a place into a staging directory what partitions of `directory` lack. modes: for new files."""

    def __init__(self, target: Place, staging: Path, directory: Path, modes: Modes, observe: Observer) -> None:
        self._target = target
        self._staging = staging
        self._directory = directory
        self._modes = modes
        self._observe = observe

    def fetch(self, copy: StoredCopy, before: ChainPosition | None) -> FetchedPartition:
        """Fetch what leads a partition from `before` to a copy: a changes file, or the whole file; compared with the
        manifest, and synced. Raises SpoiledObject, BackupTargetError, StorageError or OSError."""
        target = ChainPosition(copy.object_name, copy.links, copy.origin, copy.taken_ms, copy.fingerprint)
        need = needed(before, target, [(one.object_name, one.links) for one in copy.changes])
        if need.files is None:
            return self._fetch_whole(copy, target, need.why)
        files = copy.changes[need.files :]
        if not files:
            return FetchedPartition(target, 0, 0)
        assert before is not None
        name = copy.description.path.name
        parts = [self._staging / f"{name}.{number}" for number in range(len(files))]
        for path, one in zip(parts, files, strict=True):
            fetch_object(self._target, one.object_name, one.sha256, one.size_bytes, path, lambda _: None)
        try:
            if not same_link(before, [(link.number, link.taken_ms) for link in read_links(parts[0])]):
                return self._fetch_whole(copy, target, "its chain branched")
            staged = changes_path(self._staging, Path(name))
            if len(parts) == 1:
                parts[0].rename(staged)
            else:
                merge(parts, staged)
        except (CorruptPartitionError, UnsupportedVersionError) as error:
            raise SpoiledObject(None, f"{copy.origin} cannot be used: {error.found}") from error
        finally:
            for path in parts:
                path.unlink(missing_ok=True)
        sync(staged)
        return FetchedPartition(target, len(files), sum(one.stored_bytes for one in files))

    def _fetch_whole(self, copy: StoredCopy, target: ChainPosition, why: str) -> FetchedPartition:
        path = self._staging / copy.description.path.name
        bring(self._target, copy, path, self._observe)
        problems = PartitionCheck(path).run().problems
        if not problems and not is_as(path, copy.fingerprint):
            problems = ("it differs from the copy that the backup describes",)
        if problems:
            raise SpoiledObject(None, f"{copy.origin}: {problems[0]}")
        there = self._directory / path.name
        path.chmod((modes_beside(there) if there.exists() else self._modes).file)
        sync(path)
        self._observe(FileProgress("fetched", path.name, copy.size_bytes, copy.size_bytes))
        return FetchedPartition(target, len(copy.objects), sum(size for _, size in copy.objects), why)


def changes_path(staging: Path, partition: Path) -> Path:
    """Return where the changes of a partition are staged."""
    return staging / f"{partition.name}.changes"


def is_as(path: Path, known: int) -> bool:
    """Return whether a partition has this fingerprint, of a manifest of whatever format. No, if it cannot be read.
    Raises StorageError."""
    try:
        pinned = PinnedPartition(path, NEWEST)
    except StorageError:
        if path.exists():
            raise
        return False
    except RecoveryError:
        return False
    try:
        if pinned.fingerprint == known:
            return True
        pinned.describe_from(NO_EPOCH)
        return fingerprint_until_2(pinned.description, pinned.operational) == known
    finally:
        pinned.release()
