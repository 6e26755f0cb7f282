"""Restore partitions to the owners of a store, on several hosts: to all of them, or to none.

owners.1  Lock every owner's directory, and that of the run. End what a killed restore left at the owners; refuse to go
          on if one of them holds partitions.
owners.2  Restore the copies into a temporary directory of this host, which checks every digest and plans a resume.
owners.3  Send each owner its files, and their digests. The owner stages, compares and syncs them.
owners.4  Have the files put into place: by all other owners first, and then by the home, the owner of part-0. From now
          on the restore counts.
owners.5  Mark the directory of the run as restored. Have the owners forget that they staged the files.

An owner that loses its connection removes what it has staged, but not what is in place. A restore that was killed or
lost an owner before the home answered in owners.4 may have put files into place that do not count. No run can use such
files, since a run needs part-0; the next restore with the same owners removes them in owners.1. One that was killed
between owners.4 and the mark has come to its end: the next one sets the mark before it refuses.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from recovery.backup.progress import FileProgress, Observer, ignore
from recovery.backup.restore import Announce, RestoredDirectory, restore
from recovery.backup.sources import Source
from recovery.base.clock import Clock
from recovery.base.faults import reach
from recovery.base.ids import PartitionIndex
from recovery.base.threads import each, is_stopped
from recovery.errors import (
    AlreadyInitializedError,
    LeaseLostError,
    OwnerUnreachableError,
    RecoveryError,
)
from recovery.host.durable import PRIVATE, UMASK, make_directories
from recovery.host.storage_errors import storage_errors
from recovery.planning.owner_restore import allot, counts
from recovery.storage.initialize import RESTORING, clear_killed_attempt, refuse_existing
from recovery.storage.lock import DirectoryLock
from recovery.storage.restored import mark_restored
from recovery.storage.store import Store
from recovery.wire.calls import OwnerCalls, Piece
from recovery.wire.run_client import Owner

AT_ONCE = 16
"""Owners at the same time."""
PIECE_BYTES = 1 << 20
FIRST = "part-0.sqlite3"
HELD_CAUSE = "Partitions are restored to directories without any: all of a store, or none."
HELD_REMEDY = "Move these files away, with the -wal and -shm files, or name other owners."

T = TypeVar("T")
R = TypeVar("R")


class RestoredToOwners(NamedTuple):
    """A restore to owners. owner_of: the location of the owner that got each partition. elapsed_s: with sending."""

    restored: RestoredDirectory
    owner_of: dict[PartitionIndex, str]
    elapsed_s: float


def restore_to_owners(
    source: Source,
    owners: Sequence[Owner],
    directory: Path | None,
    scratch: Path,
    *,
    clock: Clock,
    random_id: Callable[[], str],
    task_key: bytes,
    epoch: int | None = None,
    at_ms: int | None = None,
    umask: bool = False,
    announce: Announce = lambda _plan, _left_out: None,
    observe: Observer = ignore,
) -> RestoredToOwners:
    """Restore the newest common epoch (that of `epoch`, or of `at_ms`) to these owners, as many partitions each.

    directory: that of the run, which is made if missing, must hold no partitions, and is marked as restored; None: not
    looked at. scratch: has room for all partitions. task_key: random; a restore has no tasks that need the key. umask:
    others may read the files, as far as the umask of each owner allows. Ends the connections. Raises what
    `recovery.backup.restore.restore` raises, and what owners refuse with.
    """
    store = Store(scratch, owners)
    began_s = clock.elapsed_s()

    def mark() -> None:
        if directory is not None:
            mark_restored(directory, UMASK if umask else PRIVATE)

    with contextlib.ExitStack() as held:
        # owners.1
        if directory is not None:
            held.enter_context(_free(directory, clock, umask))
        held.callback(store.release)
        store.hold(f"restore {random_id()}", "a restore", task_key)
        _end_left(owners, mark)
        _refuse_held(owners)
        # owners.2
        done = restore(
            source, scratch / "restored", clock=clock, random_id=random_id, epoch=epoch, at_ms=at_ms,
            announce=announce, observe=observe,
        )  # fmt: skip
        owner_of = allot(len(done.paths), [owner.location for owner in owners])
        newest = max((run.number for copy in source.copies for run in copy.description.executions), default=0)
        parts = [OwnerPart(owner, [i for i, at in owner_of.items() if at == owner.location]) for owner in owners]
        name = f"{RESTORING}{newest}-{random_id()}"
        paths = {PartitionIndex(index): path for index, path in enumerate(done.paths)}
        _put([part for part in parts if part.indexes], paths, name, umask, observe, mark)
        # Those of owners that got partitions are gone. The restore counts whatever happens here.
        with contextlib.suppress(RecoveryError):
            store.forget_departed()
    return RestoredToOwners(done, owner_of, clock.elapsed_s() - began_s)


class OwnerPart(NamedTuple):
    """What an owner gets: the partitions of these indexes."""

    owner: Owner
    indexes: list[PartitionIndex]

    def stage(self, name: str, home: str | None, umask: bool) -> None:
        self.owner.ask(OwnerCalls.stage, name, home, self.indexes, umask)

    def send(self, paths: Mapping[PartitionIndex, Path], observe: Observer) -> None:
        """Send the files among all these, and let the owner check them."""
        digests = {}
        for path in (paths[index] for index in self.indexes):
            tell = partial(FileProgress, name=f"{self.owner.location}/{path.name}", bytes_total=path.stat().st_size)
            digest, done = hashlib.sha256(), 0
            with path.open("rb") as file:
                while data := file.read(PIECE_BYTES):
                    if is_stopped():
                        return
                    digest.update(data)
                    self.owner.ask(OwnerCalls.put, Piece(path.name, data))
                    done += len(data)
                    observe(tell(step="send", bytes_done=done))
            digests[path.name] = digest.hexdigest()
            observe(tell(step="sent", bytes_done=done))
        self.owner.ask(OwnerCalls.check_staged, digests)

    def place(self) -> None:
        self.owner.ask(OwnerCalls.place)

    def end(self, counts: bool) -> None:
        """End the restore. What an owner that does not answer keeps, the next restore removes."""
        with contextlib.suppress(RecoveryError):
            self.owner.ask(OwnerCalls.end_restore, counts)


def _put(
    parts: Sequence[OwnerPart],
    paths: Mapping[PartitionIndex, Path],
    name: str,
    umask: bool,
    observe: Observer,
    mark: Callable[[], None],
) -> None:
    """Steps owners.3 to owners.5."""
    [home] = [part for part in parts if 0 in part.indexes]
    others = [part for part in parts if part is not home]
    try:
        # owners.3
        each_owner(lambda part: part.stage(name, home.owner.location, umask), parts)
        each_owner(lambda part: part.send(paths, observe), parts)
        reach("owners.3")
        # owners.4
        each_owner(lambda part: part.place(), others)
        reach("owners.4.others")
    except BaseException:
        each_owner(lambda part: part.end(counts=False), parts)
        raise
    try:
        home.place()
    except (OwnerUnreachableError, LeaseLostError) as error:
        # It may have placed its files. Then the restore counts.
        error.remedy = (
            "Start the owner, and run the same command again: what is in place is removed if the restore was not "
            "completed, and named if it was."
        )
        raise
    except RecoveryError:
        each_owner(lambda part: part.end(counts=False), others)
        raise
    reach("owners.4")
    # owners.5
    mark()
    each_owner(lambda part: part.end(counts=True), parts)


def _end_left(owners: Sequence[Owner], mark: Callable[[], None]) -> None:
    """End what killed restores left. Nothing is removed before it is known for each restore whether it counts."""
    lefts = each_owner(lambda owner: owner.ask(OwnerCalls.left_restores), owners)
    names = each_owner(_names, owners)
    has_first = {owner.location: FIRST in found for owner, found in zip(owners, names, strict=True)}
    decided = [
        (owner, left.name, counts(owner.location, left, has_first))
        for owner, found in zip(owners, lefts, strict=True)
        for left in found
    ]
    was_used = any(left.was_used for found in lefts for left in found)
    if not was_used and any(its_files_stay for *_, its_files_stay in decided):
        mark()
    for owner, name, its_files_stay in decided:
        owner.ask(OwnerCalls.end_left_restore, name, its_files_stay)


def _refuse_held(owners: Sequence[Owner]) -> None:
    """Raises AlreadyInitializedError if an owner holds partitions."""
    held = [
        f"{owner.location} holds {', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
        for owner, names in zip(owners, each_owner(_names, owners), strict=True)
        if names
    ]
    if held:
        raise AlreadyInitializedError("; ".join(held), cause=HELD_CAUSE, remedy=HELD_REMEDY)


def _names(owner: Owner) -> list[str]:
    """Return the names of the files that look like partitions."""
    return [found.name for found in owner.ask(OwnerCalls.found, {})]


@contextlib.contextmanager
def _free(directory: Path, clock: Clock, umask: bool) -> Iterator[None]:
    """Lock the run's own directory, in which no partitions are, until the block ends. Raises AlreadyInitializedError,
    DirectoryLockedError, StandbyDirectoryError or StorageError."""
    with storage_errors(directory):
        make_directories(directory, UMASK if umask else PRIVATE)
    lock = DirectoryLock(directory, clock, "a restore to owners")
    lock.acquire()
    try:
        clear_killed_attempt(directory)
        try:
            refuse_existing(directory)
        except AlreadyInitializedError as error:
            error.cause, error.remedy = "The partitions are to be at the owners, and at no other place.", HELD_REMEDY
            raise
        yield
    finally:
        lock.release()


def each_owner(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Do `work` for each owner, several at a time; return the results in order."""
    return each(work, items, at_once=AT_ONCE, name="owner")
