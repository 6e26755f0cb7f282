"""Where the partitions of a store are: the driver's own directory, and the owners that were named."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from recovery.base.addresses import host_and_port
from recovery.base.clock import Clock
from recovery.base.credentials.certificates import read_certificates
from recovery.base.credentials.token import TokenFile
from recovery.base.ids import ExecutionNumber, Lease, PartitionIndex, StepId
from recovery.base.threads import each
from recovery.errors import ConfigurationError, DirectoryLockedError, NoPartitionsError, RecoveryError
from recovery.planning.copies import Location, choose_copies
from recovery.planning.measures import Measure, StepSize
from recovery.planning.owner_facts import SeenOwner
from recovery.planning.resume import common_cuts, plan_resume
from recovery.planning.values import FoundFile, PartitionDescription
from recovery.storage.connect import connect_driver
from recovery.storage.history import sizes_at, values_at
from recovery.storage.lazy.names import is_lazy
from recovery.storage.lock import DirectoryLock
from recovery.storage.owned import OwnedPartitions, OwnerPartitions, at_owner
from recovery.storage.scan import log_bytes, read_measures, scan, sizes_in
from recovery.storage.seam import PartitionStore
from recovery.storage.snapshot import Snapshot
from recovery.storage.sqlite.store import FilePartitions, PartitionShare
from recovery.storage.verify import FullCheck, PartitionCheck, Verdict
from recovery.wire.address import OwnerAddress
from recovery.wire.calls import FileFacts, FullCheckResult, OwnerCalls
from recovery.wire.messages import as_error
from recovery.wire.run_client import Owner

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
        places = [host_and_port(owner) for owner in self.owners]
        return [
            Owner(OwnerAddress(host.strip("[]"), port, Lease(ExecutionNumber(0), ""), 0, deadline_s, tls_ca_pem), token)
            for host, port in places
        ]


class Locations:
    """The locations of one run or look: its directory and its owners. Without owners, the directory alone.

    Several locations may have copies of one partition. `found` chooses among them, and all later calls mean the chosen
    copies.
    """

    def __init__(self, directory: Path, owners: Sequence[Owner] = ()) -> None:
        self.directory = directory
        self.owners = tuple(owners)
        self.notes: tuple[str, ...] = ()
        """A note on each copy that is not used."""
        self.shown: dict[str, str] = {}
        """How errors name each file that is used: with its owner's location, or with the own directory."""
        self._owner_of: dict[PartitionIndex, Owner | None] = {}
        self._known: dict[PartitionIndex, FileFacts] = {}

    def hold(self, run: str, purpose: str, task_key: bytes) -> None:
        """Have every owner lock its directory, until `release` or the end of this process. The caller holds the lock of
        the run's own directory. run: a text that nobody else has. Raises DirectoryLockedError.

        Of two runs at the same time, one gets all: both lock the owners in one order, however they name them.
        """
        for owner in sorted(self.owners, key=Owner.incarnation):
            owner.hold(run, f"{purpose} on {socket.gethostname()}", task_key)

    @contextlib.contextmanager
    def locked(self, clock: Clock, run: str, purpose: str, task_key: bytes) -> Iterator[None]:
        """Lock the own directory, and have every owner lock its own as `hold` does, until the block ends; then
        `release`. Raises DirectoryLockedError during a run."""
        with contextlib.ExitStack() as held:
            held.callback(self.release)
            held.enter_context(DirectoryLock(self.directory, clock, purpose))
            self.hold(run, purpose, task_key)
            yield

    @property
    def seen(self) -> list[SeenOwner]:
        """The owners as they last answered the run that holds them, without those that have not yet."""
        return [owner.seen for owner in self.owners if owner.seen is not None]

    def check_free(self) -> None:
        """Raise DirectoryLockedError, with the location of the owner, if a process has locked the directory of one."""
        for owner in self.owners:
            holder = owner.ask(OwnerCalls.serving).holder
            if holder:
                raise DirectoryLockedError(f"the owner's directory is in use by {holder}", path=owner.location)

    def found(self) -> list[FoundFile]:
        """Return the files to plan with: of several copies of a partition, the one that counts. Raises what
        `choose_copies` raises, and the error of the first file that cannot be read; without owners, as `scan` does."""
        return self.chosen(self.asked()) if self.owners else scan(self.directory)

    def chosen(self, asked: Sequence[Location]) -> list[FoundFile]:
        """Return what `found` returns, chosen from the answers of `asked`."""
        chosen = choose_copies(asked)
        self.notes = chosen.notes
        self.shown = {copy.partition.path.name: str(copy.partition.path) for copy in chosen.copies}
        named = {owner.location: owner for owner in self.owners}
        self._owner_of = {copy.partition.index: named.get(copy.location) for copy in chosen.copies}
        return [FoundFile(copy.partition.path, copy.partition) for copy in chosen.copies]

    def asked(self) -> list[Location]:
        """Return what each location has, the own one first, with owners. Raises the error of the first file that cannot
        be read."""
        return [self._own_location(), *each(self._at_owner, self.owners, at_once=AT_ONCE, name="owner")]

    def _own_location(self) -> Location:
        try:
            files = scan(self.directory)
        except NoPartitionsError:
            # It may hold no partition, but it must exist.
            if not self.directory.is_dir():
                raise
            files = []
        return Location(str(self.directory), tuple(_described(file) for file in files))

    @staticmethod
    def _at_owner(owner: Owner) -> Location:
        described = []
        for found in owner.ask(OwnerCalls.found):
            error: RecoveryError | None = None
            if found.refusal is not None:
                error = as_error(found.refusal, owner.location)
                error.path = str(Path(owner.location, found.name))
            described.append(_described(FoundFile(Path(owner.location, found.name), found.description, error)))
        return Location(owner.location, tuple(at_owner(owner, each) for each in described))

    def sizes(self, partition: PartitionDescription) -> dict[str, StepSize] | None:
        """See `recovery.storage.scan.sizes_in`."""
        at_owner = self._facts(partition)
        return sizes_in(partition.path) if at_owner is None else at_owner.sizes

    def measures(self, partition: PartitionDescription) -> list[Measure]:
        """See `recovery.storage.scan.read_measures`."""
        at_owner = self._facts(partition)
        return read_measures(partition.path) if at_owner is None else at_owner.measures

    def log_bytes(self, partition: PartitionDescription) -> int:
        """See `recovery.storage.scan.log_bytes`."""
        at_owner = self._facts(partition)
        return log_bytes(partition.path) if at_owner is None else at_owner.log_bytes

    def _facts(self, partition: PartitionDescription) -> FileFacts | None:
        """Return the owner's facts about a partition, for which it is asked once; None without an owner."""
        owner = self.owner_of(partition.index)
        if owner is not None and partition.index not in self._known:
            self._known[partition.index] = owner.ask(OwnerCalls.facts, partition.path.name)
        return None if owner is None else self._known[partition.index]

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

    def checks(self, partitions: Sequence[PartitionDescription]) -> list[FullCheck]:
        """Return a full check of each of these partitions, but those whose pages are still being fetched: hydration
        ends with it."""
        return [self._check(each) for each in partitions if self.owner_of(each.index) or not is_lazy(each.path)]

    def _check(self, partition: PartitionDescription) -> FullCheck:
        owner = self.owner_of(partition.index)
        return PartitionCheck(partition.path) if owner is None else OwnerCheck(owner, partition.path.name)

    def owner_of(self, index: PartitionIndex) -> Owner | None:
        """Return the owner that has a partition; None if the partition is in the run's own directory."""
        return self._owner_of.get(index)

    def newest(self) -> Snapshot:
        """Return what `snapshot_at` returns of the newest epoch; with owners a `SpreadSnapshot`."""
        plan = plan_resume(self.found())
        at = Snapshot.of(plan, max(common_cuts(plan.partitions)))
        if not self.owners:
            return at
        return SpreadSnapshot(at.paths, at.cut, at.epochs, at.executions, at.cuts, at.timeline, self)

    def release(self) -> None:
        """End all connections; owners release their directories. May be called again."""
        for owner in self.owners:
            owner.release()


@dataclass(frozen=True, slots=True)
class SpreadSnapshot(Snapshot):
    """A snapshot of partitions that owners may have, with sizes, values and measures. What else a snapshot reads needs
    the files: see `recovery.storage.copied`."""

    locations: Locations

    def sizes(self, step: str) -> Iterator[tuple[str, int]]:
        """See `Snapshot.sizes`."""
        for index, path in enumerate(self.paths):
            owner = self.locations.owner_of(PartitionIndex(index))
            if owner is None:
                yield from sizes_at(path, step, self.cut)
            else:
                yield from owner.ask(OwnerCalls.key_sizes, path.name, StepId(step), self.cut)

    def values(self, step: str, keys: Sequence[str] | None = None) -> dict[str, str | bytes]:
        """See `Snapshot.values`."""
        found: dict[str, str | bytes] = {}
        for index, some in self.by_partition(step, keys).items():
            path, owner = self.paths[index], self.locations.owner_of(index)
            if owner is None:
                found |= values_at(path, step, self.cut, some)
            else:
                found |= owner.ask(OwnerCalls.values, path.name, StepId(step), self.cut, some)
        return found

    def measures(self) -> list[Measure]:
        """See `Snapshot.measures`."""
        owner = self.locations.owner_of(PartitionIndex(0))
        return (
            read_measures(self.paths[0]) if owner is None else owner.ask(OwnerCalls.facts, self.paths[0].name).measures
        )


def _described(file: FoundFile) -> PartitionDescription:
    if file.error is not None:
        raise file.error
    assert file.description is not None
    return file.description


def _verdict(owner: Owner, found: FullCheckResult) -> Verdict:
    return Verdict(Path(owner.location, found.name), found.rows, found.problems)
