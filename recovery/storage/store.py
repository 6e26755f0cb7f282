"""Where the partitions of a store are: the directory of a run or look, and the owners that were named."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recovery.base.addresses import owner_place
from recovery.base.clock import Clock
from recovery.base.credentials.certificates import read_certificates
from recovery.base.credentials.task_key import task_key
from recovery.base.credentials.token import TokenFile
from recovery.base.ids import ExecutionNumber, Lease, PartitionIndex
from recovery.base.threads import each
from recovery.config import RecoveryConfig
from recovery.errors import (
    ConfigurationError,
    DirectoryLockedError,
    NoPartitionsError,
    OwnerUnreachableError,
    RecoveryError,
)
from recovery.planning.copies import Departed, Location, choose_copies
from recovery.planning.moves import to_follow
from recovery.planning.owner_facts import SeenOwner
from recovery.planning.resume import too_old
from recovery.planning.values import FoundFile, PartitionDescription
from recovery.storage.connect import connect_driver
from recovery.storage.documents import home
from recovery.storage.glance import Glances
from recovery.storage.lazy.names import is_lazy
from recovery.storage.lock import DirectoryLock, check_unlocked, lock_holder
from recovery.storage.owned import OwnedPartitions, OwnerPartitions
from recovery.storage.owner_reader import OwnerReader, found_at
from recovery.storage.reading import FileReader, PartitionReader
from recovery.storage.scan import LOOKS, scan
from recovery.storage.seam import FencingStore, PartitionStore
from recovery.storage.snapshot import Snapshot, snapshot_of
from recovery.storage.sqlite.store import FilePartitions, PartitionShare
from recovery.storage.standby import refuse_standby
from recovery.storage.verify import FullCheck, PartitionCheck, Verdict
from recovery.wire.address import OwnerAddress
from recovery.wire.calls import FullCheckResult, OwnerCalls
from recovery.wire.move_calls import MoveCalls
from recovery.wire.run_client import Owner

FIRST = "part-0.sqlite3"
AT_ONCE = 16
"""Owners that are asked at the same time."""


class OwnerCheck:
    """A full check of one file at an owner: a `FullCheck`."""

    def __init__(self, owner: Owner, name: str) -> None:
        self.path = Path(owner.location, name)
        self._owner = owner

    def run(self) -> Verdict:
        """Let the owner read everything once, and return the verdict."""
        [found] = self._owner.ask(OwnerCalls.verify, [self.path.name])
        return _verdict(self._owner, found)

    def cancel(self) -> None:
        """Let the owner end the check."""
        # A lost owner has ended the check.
        with contextlib.suppress(RecoveryError):
            self._owner.ask(OwnerCalls.end_checks)


class OwnerAccess(NamedTuple):
    """How the owners of a run or look are reached. owners: as the user named them."""

    owners: tuple[str, ...] = ()
    token_file: Path | None = None
    tls_ca: Path | None = None

    @classmethod
    def of(cls, config: RecoveryConfig) -> OwnerAccess:
        """Return how the owners of a run are reached."""
        return cls(
            config.owners, *(None if each is None else Path(each) for each in (config.token_file, config.tls_ca))
        )

    def connect(self, deadline_s: float) -> list[Owner]:
        """Return the owners, each of which connects on its first call. deadline_s: how long that may take.

        Raises ConfigurationError."""
        if not self.owners:
            return []
        if self.token_file is None:
            raise ConfigurationError(
                "owners were named, and no token",
                cause="Owners answer only those who have the token that the owners were started with.",
                remedy="Give the file of the token: --token-file FILE",
            )
        token = TokenFile(self.token_file)
        tls_ca_pem = None if self.tls_ca is None else read_certificates(self.tls_ca)
        nobody = Lease(ExecutionNumber(0), "")
        return [
            Owner(OwnerAddress(host, port, nobody, 0, deadline_s, tls_ca_pem, name), token)
            for host, port, name in map(owner_place, self.owners)
        ]

    def without_lost(self, wait_s: float) -> tuple[OwnerAccess, tuple[str, ...]]:
        """Return how to reach the owners that answer, and the locations of the others, which do not answer for
        `wait_s`. Raises what `connect` raises, and the error with which an owner refuses."""

        def is_lost(owner: Owner) -> bool:
            try:
                owner.incarnation()
            except OwnerUnreachableError:
                return True
            finally:
                owner.release()
            return False

        owners = self.connect(wait_s)
        lost = each(is_lost, owners, at_once=max(1, len(owners)), name="owner")
        reached = tuple(name for name, is_away in zip(self.owners, lost, strict=True) if not is_away)
        away = tuple(owner.location for owner, is_away in zip(owners, lost, strict=True) if is_away)
        return self._replace(owners=reached), away


class Store:
    """The partitions of one store: those in the directory of a run or look, and those of the owners that it names.

    Without owners, the directory has all. With owners, several locations may have copies of one partition: `found`
    chooses among them, and all later calls mean the chosen copies.
    """

    def __init__(self, directory: Path, owners: Sequence[Owner] = (), glances: Glances | None = None) -> None:
        """glances: what earlier looks have read, for one look after the other."""
        self.directory = directory
        self.owners = tuple(owners)
        self._glances = glances
        self.notes: tuple[str, ...] = ()
        """A note on each copy that is not used, and on each owner that has to be named as well."""
        self.moved: tuple[str, ...] = ()
        """The notes on owners that have to be named as well."""
        self.lost: tuple[str, ...] = ()
        """The locations of owners that were lost. A note of a partition that moved there is not followed."""
        self.asked: tuple[Location, ...] = ()
        """What each location had when `found` chose among copies; empty if there was nothing to choose."""
        self.shown: dict[str, str] = {}
        """How errors name each file that is used: with its owner's location, or with the own directory."""
        self._owner_of: dict[PartitionIndex, Owner | None] = {}
        self._held: tuple[str, str, bytes] | None = None
        self._readers: dict[Path, PartitionReader] = {}

    @property
    def is_spread(self) -> bool:
        """Whether owners were named: then partitions may lie in several directories."""
        return bool(self.owners)

    def hold(self, run: str, purpose: str, task_key: bytes) -> None:
        """Have every owner lock its directory, until `release` or the end of this process. The caller holds the lock of
        the store's own directory. run: a text that nobody else has. Raises DirectoryLockedError.

        Of two runs at the same time, one gets all: both lock the owners in one order, however they name them.
        """
        self._held = run, f"{purpose} on {socket.gethostname()}", task_key
        for owner in sorted(self.owners, key=Owner.incarnation):
            owner.hold(*self._held)

    @contextlib.contextmanager
    def locked(self, clock: Clock, purpose: str) -> Iterator[Store]:
        """Lock the own directory, and have every owner lock its own as `hold` does, until the block ends. Yields the
        store that holds these locks; the present one stays a look, and gets the notes on copies. Raises
        DirectoryLockedError during a run, and StandbyDirectoryError."""
        store = Store(self.directory, [owner.again() for owner in self.owners])
        with contextlib.ExitStack() as held:
            held.enter_context(DirectoryLock(self.directory, clock, purpose))
            held.callback(store.release)
            store.hold(secrets.token_hex(8), purpose, task_key())
            yield store
            self.notes = store.notes or self.notes

    @property
    def unused(self) -> list[PartitionDescription]:
        """The copies that `found` has not chosen. No run reads them or writes to them."""
        there = (each for location in self.asked for each in location.partitions)
        return [each for each in there if self.shown.get(each.path.name) != str(each.path)]

    @property
    def seen(self) -> list[SeenOwner]:
        """The owners as they last answered the run that holds them, without those that have not yet."""
        return [owner.seen for owner in self.owners if owner.seen is not None]

    def check_free(self) -> None:
        """Raise what `locked` raises, without locking: DirectoryLockedError, with the location of the owner, if a
        process has locked a directory; StandbyDirectoryError."""
        refuse_standby(self.directory)
        check_unlocked(self.directory)
        for owner in self.owners:
            holder = owner.ask(OwnerCalls.serving).holder
            if holder:
                raise DirectoryLockedError(f"the owner's directory is in use by {holder}", path=owner.location)

    def found(self) -> list[FoundFile]:
        """Return the files to plan with: of several copies of a partition, the one that counts. Without owners, raises
        as `scan` does, and a file that cannot be read is returned with its error. With owners, raises what
        `choose_copies` raises, and the error of the first file that cannot be read."""
        self._readers.clear()
        if not self.owners:
            return scan(self.directory) if self._glances is None else self._glances.scan(self.directory)
        for _ in range(LOOKS):
            before, self.asked = self.asked, self.locations()
            chosen = choose_copies(self.asked)
            # A run may close epochs between the first answer and the last one.
            if self.asked == before or not too_old(copy.partition for copy in chosen.copies):
                break
        self.notes = (*self.moved, *chosen.notes)
        self.shown = {copy.partition.path.name: str(copy.partition.path) for copy in chosen.copies}
        named = {owner.location: owner for owner in self.owners}
        self._owner_of = {copy.partition.index: named.get(copy.location) for copy in chosen.copies}
        return [FoundFile(copy.partition.path, copy.partition) for copy in chosen.copies]

    def locations(self, *, without_lost: bool = False) -> tuple[Location, ...]:
        """Return what each location has. An owner to which a partition went, as a note says, is asked as well, and
        belongs to the store from then on. without_lost: if that owner is not reached, it is lost; otherwise raises
        OwnerUnreachableError."""
        found = [self._own_location(), *each(self._at_owner, self.owners, at_once=AT_ONCE, name="owner")]
        asked = set(self.lost)
        while notes := [note for to, note in to_follow(found).items() if to not in asked]:
            for note in notes:
                asked.add(note.to)
                try:
                    owner = self._follow(note)
                except OwnerUnreachableError:
                    if not without_lost:
                        raise
                    self.lost += (note.to,)
                    continue
                if owner is not None:
                    self.owners += (owner,)
                    found.append(self._at_owner(owner))
        return tuple(found)

    def _follow(self, note: Departed) -> Owner | None:
        """Return the owner to which a partition went; None if it was named, under another name. Raises
        OwnerUnreachableError with the way out, and DirectoryLockedError."""
        owner = self.owners[0].elsewhere(note.to)
        try:
            if any(map(owner.is_same, self.owners)):
                owner.release()
                return None
            if self._held is not None:
                owner.hold(*self._held)
        except BaseException as error:
            owner.release()
            if isinstance(error, OwnerUnreachableError):
                error.found = f"part-{note.index}.sqlite3 has moved to {note.to}, which was not named: {error.found}"
                error.remedy = (
                    "Start that owner, and run the same command again. If its disk is lost, bring the partition back: "
                    "python -m recovery restore SRC DIR --missing --owner …"
                )
            raise
        self.moved += (
            f"part-{note.index}.sqlite3 has moved to {note.to}, which was not named; name it: --owner {note.to}",
        )
        return owner

    def forget_departed(self, lost: Collection[str] | None = None) -> None:
        """Have the owners, which are held, remove the notes of partitions that went to these lost owners: copies there
        no longer count. None: all notes."""
        for owner in self.owners:
            for note in owner.ask(MoveCalls.departed):
                if lost is None or note.to in lost:
                    owner.ask(MoveCalls.forget_departed, note.index, note.to)

    def let_go_unused(self) -> None:
        """Release the owners that have none of the partitions that `found` chose: their end ends nothing. Without an
        owner that has one, all stay."""
        used = tuple(owner for owner in self.owners if owner in self._owner_of.values())
        for owner in self.owners if used else ():
            if owner not in used:
                owner.release()
        self.owners = used or self.owners

    def _own_location(self) -> Location:
        try:
            files = scan(self.directory)
        except NoPartitionsError:
            # It may hold no partition, but it must exist.
            if not self.directory.is_dir():
                raise
            files = []
        return Location(str(self.directory), tuple(_described(file) for file in files))

    def _at_owner(self, owner: Owner) -> Location:
        described = found_at(owner, {} if self._glances is None else self._glances.at_owner(owner.location))
        return Location(owner.location, described, tuple(owner.ask(MoveCalls.departed)))

    def reader(self, partition: PartitionDescription) -> PartitionReader:
        """Return the reader of a partition that `found` returned, the same one until the next `found`."""
        # Another thread of a run may look for partitions meanwhile.
        found = self._readers.get(partition.path)
        if found is None:
            owner = self.owner_of(partition.index)
            if owner is not None:
                found = OwnerReader(owner, partition.path.name)
            else:
                found = FileReader.of(partition) if self._glances is None else self._glances.reader(partition)
            self._readers[partition.path] = found
        return found

    def connect(self, partitions: Sequence[PartitionDescription], scratch: Path, clock: Clock) -> PartitionStore:
        """Open these partitions, all of a store in the order of their indexes, for writing."""
        if not self.owners:
            return connect_driver(partitions, scratch, clock)
        count = len(partitions)
        indexes = {owner: [i for i, held in self._owner_of.items() if held is owner] for owner in (None, *self.owners)}
        own = FilePartitions(
            [partitions[index].path for index in indexes[None]],
            scratch,
            clock,
            PartitionShare(self.directory, tuple(indexes[None]), count),
        )
        try:
            store_id = partitions[0].store_id
            return OwnedPartitions(own, [OwnerPartitions(o, store_id, indexes[o], count) for o in self.owners])
        except BaseException:
            own.release()
            raise

    def connect_fencing(self, partitions: Sequence[PartitionDescription], scratch: Path, clock: Clock) -> FencingStore:
        """Return what `connect` does, for a caller that fences the run which `to_fence` has found."""
        assert not self.owners, "an owner's directory cannot be fenced"
        return connect_driver(partitions, scratch, clock)

    def to_fence(self) -> Mapping[str, Any] | None:
        """Return the holder of the directory's lock, if an execution may fence it: a run with owners is never fenced,
        since the owners hold their directories for it. None: there is nobody to fence."""
        return None if self.owners else lock_holder(self.directory)

    def checks(self, partitions: Sequence[PartitionDescription], *, lazy: bool = False) -> list[FullCheck]:
        """Return a full check of each of these partitions. lazy: also of partitions whose pages are still being
        fetched; otherwise hydration, which ends with such a check, makes it."""
        return [self._check(each) for each in partitions if lazy or self.owner_of(each.index) or not is_lazy(each.path)]

    def _check(self, partition: PartitionDescription) -> FullCheck:
        owner = self.owner_of(partition.index)
        return PartitionCheck(partition.path) if owner is None else OwnerCheck(owner, partition.path.name)

    def owner_of(self, index: PartitionIndex) -> Owner | None:
        """Return the owner that has a partition; None if the partition is in the run's own directory."""
        return self._owner_of.get(index)

    def newest_steps(self, partitions: Iterable[PartitionDescription]) -> list[str]:
        """Return the steps of the flow that have state in any of these partitions, as of the newest epoch of each,
        sorted."""
        return sorted({step for partition in partitions for step in self.reader(partition).newest_steps()})

    def home(self) -> PartitionReader:
        """Return the reader of partition 0, which has the documents of the store. Raises what `found` raises, and
        without owners what `recovery.storage.documents.home` raises."""
        owner = self.home_owner()
        return FileReader(home(self.directory)) if owner is None else OwnerReader(owner, FIRST)

    def home_owner(self) -> Owner | None:
        """Return the owner of partition 0; None: the partition is in the store's own directory."""
        if self.owners and not self._owner_of:
            self.found()
        return self.owner_of(PartitionIndex(0))

    def at(self, epoch: int | None = None) -> Snapshot:
        """Return the snapshot of an epoch that all partitions hold; None: the newest. Only reads; a run may be active.
        Raises the errors of planning, EpochNotHeldError, and what `found` raises."""
        return snapshot_of(self.found(), self.reader, self.directory, epoch)

    def release(self) -> None:
        """End all connections; owners release their directories. May be called again."""
        for owner in self.owners:
            owner.release()


def _described(file: FoundFile) -> PartitionDescription:
    if file.error is not None:
        raise file.error
    assert file.description is not None
    return file.description


def _verdict(owner: Owner, found: FullCheckResult) -> Verdict:
    return Verdict(Path(owner.location, found.name), found.rows, found.problems)
