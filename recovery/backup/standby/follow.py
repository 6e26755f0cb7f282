"""Follow a place of backups: keep a directory as of its latest backup, at a cost in proportion to what changed.

follow.1  Lock the directory, and mark it if it is new. Complete what a killed call left (follow.5 and follow.6). A
          partition that is not as the mark says has to be fetched whole.
follow.2  List the backups of the place. Choose the latest one, if it is later than what the directory is as of.
follow.3  Fetch into a directory inside it what each partition lacks: the changes files of its chain since then, merged
          into one; or, if its chain began again or branched, all of it. Compare each file with the manifest; sync the
file. follow.4  Note in the mark what the partitions will be. follow.5  Apply what was fetched, one partition after the
other, in one transaction or one rename each. What a partition holds shows whether this was done before. follow.6  Note
in the mark that the partitions are that. Remove what was fetched.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from recovery.backup.catalog import stage
from recovery.backup.lease import Term, read_term
from recovery.backup.manifest import Manifest, manifest_name
from recovery.backup.objects import SpoiledObject
from recovery.backup.progress import FileProgress, Observer, ignore
from recovery.backup.repository import (
    Listing,
    check_store,
    is_damaged,
    is_listed,
    list_backups,
    refuse_other_versions,
)
from recovery.backup.standby.document import STAGING, At, Standby, read_standby, write_standby
from recovery.backup.standby.fetch import Fetcher, changes_path, is_as
from recovery.base import faults
from recovery.base.clock import Clock
from recovery.base.threads import each
from recovery.errors import (
    AlreadyInitializedError,
    ConfigurationError,
    CorruptPartitionError,
    NoBackupError,
    StandbyDirectoryError,
    StorageError,
)
from recovery.host.durable import PRIVATE, Modes, make_directories, sync
from recovery.host.storage_errors import storage_errors
from recovery.places.mounted import limited
from recovery.places.opening import lasting_place, open_place, refuse_itself
from recovery.places.protocol import Place
from recovery.planning.following import ChainPosition, Stage, is_later, latest_first, stage_of
from recovery.storage.copies import put_in_place, replay
from recovery.storage.lock import DirectoryLock, check_unlocked
from recovery.storage.scan import describe_file
from recovery.storage.standby import NAME, is_standby

AT_ONCE = 4
ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Followed:
    """A backup that a standby has come to be as of.

    linked: the number of partitions whose changes were applied. whole_because: the files that were fetched whole, and
    why. objects, stored_bytes: what was fetched.
    """

    backup: str
    epoch: int
    closed_ms: int | None
    linked: int
    whole_because: Mapping[str, str]
    objects: int
    stored_bytes: int
    elapsed_s: float


class Missed(NamedTuple):
    """A backup later than the one that was reached, and why it cannot be used. epoch: None if that is not known."""

    backup: str
    epoch: int | None
    why: str


@dataclass(frozen=True, slots=True)
class FollowResult:
    """What a look at the place led to. followed: None if there was nothing later. problems: what was found to be wrong
    with the partitions, and is repaired, a sentence each."""

    followed: Followed | None
    missed: tuple[Missed, ...]
    problems: tuple[str, ...]


class Follower:
    """A standby that this process keeps current, from entering to leaving. See the module for the steps."""

    def __init__(
        self,
        directory: Path,
        place: str | None,
        clock: Clock,
        *,
        modes: Modes = PRIVATE,
        observe: Observer = ignore,
        preview: Path | None = None,
    ) -> None:
        """place: the place of backups; None: the one that the directory follows already. preview: a scratch directory,
        to which is fetched what a look would apply; the directory stays as it is.

        Entering the context raises DirectoryLockedError, AlreadyInitializedError for a directory with partitions that
        is no standby, ConfigurationError, CorruptPartitionError or StorageError.
        """
        if place is not None:
            refuse_itself(place, directory, "standby")
        self.directory = directory
        self._place = None if place is None else lasting_place(place)
        self._clock = clock
        self._modes = modes
        self._observe = observe
        self._lock = DirectoryLock(directory, clock, "follow", follows=True)
        self._preview = preview
        self._staging = (directory if preview is None else preview) / STAGING
        self._passed: set[str] = set()
        self._stage: Stage | None = None
        self._problems: list[str] = []
        self._document = Standby("", "")
        self.writer: Term | None = None
        """The writer of the place, at the last look."""
        self.reached: Manifest | None = None
        """The backup that the last look led to."""

    @property
    def at(self) -> At | None:
        """What the directory is as of."""
        return self._document.at

    @property
    def document(self) -> Standby:
        """What the directory says of itself."""
        return self._document

    def __enter__(self) -> Follower:
        # follow.1
        if self._place is not None:
            with storage_errors(self.directory):
                make_directories(self.directory, self._modes)
        elif not is_standby(self.directory):
            raise _no_standby(self.directory)
        if self._preview is None:
            self._lock.acquire()
        else:
            check_unlocked(self.directory)
        try:
            self._document = self._marked()
            self._target: Place = limited(open_place(self._document.place))
            faults.reach("follow.1")
            if self._document.coming is not None:
                if self._preview is not None:
                    raise _cut_off(self.directory, self._document.coming)
                self._apply(self._document.coming)
            self._clear()
            self._compare()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def look(self) -> FollowResult:
        """Bring the directory to the latest backup at the place that can be used.

        Raises NoBackupError, ForeignPartitionError for backups of another store, UnsupportedVersionError,
        BackupTargetError, BackupDamagedError if the lease is damaged, CorruptPartitionError or StorageError.
        """
        began_s = self._clock.elapsed_s()
        for _ in range(ATTEMPTS):
            self._lock.check()
            # Before the backups: whoever writes from then on is a later writer.
            self._note_writer()
            # follow.2
            if self._stage is None:
                self._passed.clear()
            listing = self._list()
            missed: list[Missed] = []
            followed: Followed | None = None
            for manifest in self._later(listing):
                try:
                    followed = self._advance(manifest, began_s)
                    break
                except SpoiledObject as error:
                    if not is_listed(self._target, manifest.id):
                        # It was pruned meanwhile, so there is a later one.
                        break
                    missed.append(Missed(manifest.id, manifest.epoch, error.found))
            else:
                return self._looked(listing, None, missed)
            if followed is not None and self.at is not None and self.at.is_whole:
                return self._looked(listing, followed, missed)
        raise StorageError(
            "it could not be brought to any backup",
            path=self.directory,
            cause="Backups are pruned faster than they can be fetched, or the files change while they are written.",
            remedy="Keep more backups at the place (--keep), and run the command again.",
        )

    def _marked(self) -> Standby:
        found = read_standby(self.directory)
        if found is not None and self._place in (None, found.place):
            return found
        if self._place is None:
            raise _no_standby(self.directory)
        shown = open_place(self._place).shown
        if found is None:
            there = sorted(path.name for path in self.directory.glob("part-*.sqlite3*"))
            if there:
                raise AlreadyInitializedError(
                    f"it holds {', '.join(there[:4])}, and is not a standby",
                    path=self.directory,
                    cause="The directory is a recovery directory in use, or was one.",
                    remedy="Follow into another directory, or move this directory away.",
                )
            found = Standby(self._place, shown)
        found = replace(found, place=self._place, shown=shown)
        write_standby(self.directory, found)
        return found

    def _compare(self) -> None:
        """Find partitions that are not as the mark says."""
        at = self.at
        if at is None:
            return
        kept = tuple(p if p is not None and is_as(path, p.fingerprint) else None
                     for p, path in zip(at.positions, self._paths(len(at.positions)), strict=True))  # fmt: skip
        self._problems += [
            f"{path.name} is not as this standby left it, so it is fetched again"
            for path, before, now in zip(self._paths(len(kept)), at.positions, kept, strict=True)
            if before is not None and now is None
        ]
        self._document = replace(self._document, at=replace(at, positions=kept))
        if self._document.at is not None and self._document.at.is_whole:
            described = [describe_file(path) for path in self._paths(len(kept))]
            self._stage = stage_of(described, at.taken_ms, at.manifest, at.term)

    def _note_writer(self) -> None:
        self.writer = read_term(self._target)
        nonce = self.writer.nonce if self.writer is not None else ""
        if nonce != self._document.writer:
            self._document = replace(self._document, writer=nonce)
            self._write()

    def _list(self) -> Listing:
        listing = list_backups(self._target, self._passed)
        refuse_other_versions(self._target, listing.unreadable)
        if not listing.manifests and not self._passed:
            raise NoBackupError("it holds no finished backup", path=self._target.shown)
        store_id = self._document.store_id or (listing.manifests[-1].store_id if listing.manifests else None)
        if store_id is not None:
            check_store(listing.manifests, store_id, self._target.shown)
        return listing

    def _later(self, listing: Listing) -> list[Manifest]:
        """Return the backups that the directory is not as of yet, the latest first."""
        found = [(stage(manifest), manifest) for manifest in listing.manifests]
        return latest_first([each for each in found if self._stage is None or is_later(each[0], self._stage)])

    def _looked(self, listing: Listing, followed: Followed | None, missed: Sequence[Missed]) -> FollowResult:
        reached, at = self._stage, self.at
        if reached is not None:
            done = [manifest for manifest in listing.manifests if not is_later(stage(manifest), reached)]
            self._passed |= {manifest_name(manifest.id) for manifest in done}
        newest = manifest_name(at.manifest) if at is not None else ""
        damaged = [
            Missed(entry.name, None, f"{entry.name} is damaged")
            for entry in listing.unreadable
            if entry.name > newest and is_damaged(self._target, entry, self._clock.wall_ms())
        ]
        problems, self._problems = tuple(self._problems), []
        return FollowResult(followed, (*missed, *damaged), problems)

    def _advance(self, manifest: Manifest, began_s: float) -> Followed:
        """Steps follow.3 to follow.6. Raises SpoiledObject."""
        self._clear()
        with storage_errors(self._staging):
            # Whatever else has this name is refused.
            self._staging.mkdir(PRIVATE.directory)
            # follow.3
            fetcher = Fetcher(self._target, self._staging, self.directory, self._modes, self._observe)
            staged = each(
                lambda copy: fetcher.fetch(copy, self._position(copy.description.index)), manifest.copies,
                at_once=AT_ONCE, name="follow",
            )  # fmt: skip
            sync(self._staging)
        faults.reach("follow.3")
        # follow.4
        epoch = manifest.epoch
        closed = next((e for e in manifest.copies[0].description.epochs if e.epoch == epoch), None)
        coming = At(
            manifest=manifest.id,
            taken_ms=manifest.started_ms,
            epoch=epoch,
            closed_ms=None if closed is None else closed.closed_ms,
            positions=tuple(one.position for one in staged),
            whole=tuple(index for index, one in enumerate(staged) if one.whole is not None),
            term=manifest.term,
        )
        self._document = replace(self._document, store_id=manifest.store_id, coming=coming)
        self._write()
        faults.reach("follow.4")
        self._apply(coming)
        self.reached = manifest
        self._stage = stage(manifest) if self.at is not None and self.at.is_whole else None
        names = [copy.description.path.name for copy in manifest.copies]
        return Followed(
            backup=manifest.id,
            epoch=epoch,
            closed_ms=coming.closed_ms,
            linked=sum(one.whole is None and one.objects > 0 for one in staged),
            whole_because={name: one.whole for name, one in zip(names, staged, strict=True) if one.whole is not None},
            objects=sum(one.objects for one in staged),
            stored_bytes=sum(one.stored_bytes for one in staged),
            elapsed_s=self._clock.elapsed_s() - began_s,
        )

    def _write(self) -> None:
        if self._preview is None:
            write_standby(self.directory, self._document)

    def _apply(self, coming: At) -> None:
        if self._preview is not None:
            self._document = replace(self._document, at=replace(coming, whole=()), coming=None)
            return
        # follow.5
        paths = self._paths(len(coming.positions))
        with storage_errors(self.directory):
            positions = each(
                lambda index: self._applied(coming, index, paths[index]), range(len(paths)), at_once=AT_ONCE,
                name="follow",
            )  # fmt: skip
            sync(self.directory)
        faults.reach("follow.5")
        # follow.6
        at = replace(coming, positions=tuple(positions), whole=())
        self._document = replace(self._document, at=at, coming=None)
        write_standby(self.directory, self._document)
        faults.reach("follow.6")
        self._clear()

    def _applied(self, coming: At, index: int, path: Path) -> ChainPosition | None:
        """Bring a partition to the state that the mark announces; None if the fetched files do not lead there."""
        target, before = coming.positions[index], self._position(index)
        staged = self._staging / path.name
        if index in coming.whole and staged.exists():
            put_in_place(staged, path)
            return target
        if target is None:
            return None
        is_staged = before is not None and changes_path(self._staging, path).exists()
        if before is None or not is_staged or not is_as(path, before.fingerprint):
            if is_as(path, target.fingerprint):
                # A killed call had applied it, or nothing was to be applied.
                return target
            self._again(path, "it is not as this standby left it")
            return None
        try:
            replay(path, [changes_path(self._staging, path)], target.links, done=before.links, follows=True)
        except CorruptPartitionError as error:
            self._again(path, error.found)
            return None
        faults.reach("follow.5.partition")
        if not is_as(path, target.fingerprint):
            self._again(path, "its changes lead elsewhere")
            return None
        size = changes_path(self._staging, path).stat().st_size
        self._observe(FileProgress("applied", path.name, size, size))
        return target

    def _again(self, path: Path, why: str) -> None:
        self._problems.append(f"{path.name} is fetched again: {why}")

    def _position(self, index: int) -> ChainPosition | None:
        at = self.at
        return at.positions[index] if at is not None and index < len(at.positions) else None

    def _paths(self, count: int) -> list[Path]:
        return [self.directory / f"part-{index}.sqlite3" for index in range(count)]

    def _clear(self) -> None:
        """Remove what was fetched and is not needed any more, and drafts that a killed call left."""
        with storage_errors(self._staging):
            if self._staging.is_symlink():
                self._staging.unlink()
            elif self._staging.exists():
                shutil.rmtree(self._staging)
            for draft in self.directory.glob(f".{NAME}.*") if self._preview is None else ():
                draft.unlink()


def _cut_off(directory: Path, coming: At) -> StandbyDirectoryError:
    return StandbyDirectoryError(
        f"a part of its partitions is as of backup {coming.manifest}, to which it was being brought",
        path=directory,
        cause="A recovery follow was killed. The next `follow`, or a promotion, completes the change; a dry run does "
        "not.",
        remedy="Follow the place once more: python -m recovery follow SRC DIR --once",
    )


def _no_standby(directory: Path) -> ConfigurationError:
    return ConfigurationError(
        "it is not a standby",
        path=directory,
        cause="No recovery follow made it, or it was promoted.",
        remedy="Make a standby: python -m recovery follow SRC DIR",
    )
