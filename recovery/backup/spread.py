"""A backup of partitions on several hosts: each owner stores its own, and this process writes the manifest.

The copies need not be of one moment: each holds the epochs of the backup interval, so they share the newest one that
was closed everywhere before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from recovery.backup.links import NoLink
from recovery.backup.make import DirectoryParts, Parts, SpoiledChainError, Storing
from recovery.backup.repository import begin, give_up, running_name
from recovery.backup.share import StoredShare, WantedShare, decoded, encoded
from recovery.backup.stored import StoredCopy
from recovery.base.ids import PartitionIndex
from recovery.base.threads import each
from recovery.errors import (
    BackupTargetError,
    ConfigurationError,
    InconsistentPartitionsError,
    RecoveryError,
    StorageError,
)
from recovery.operational.backends.owned import origins_of
from recovery.places.opening import lasting_place
from recovery.places.packed import packed, unpacked
from recovery.places.protocol import Place
from recovery.planning.held import check_fit
from recovery.planning.resume import check_set
from recovery.planning.values import FoundFile
from recovery.storage.origin import Origin
from recovery.storage.store import Store
from recovery.wire.calls import OwnerCalls
from recovery.wire.frames import VALUE_BYTES
from recovery.wire.messages import as_error
from recovery.wire.run_client import Owner

AT_ONCE = 16


def parts_of(store: Store, destination: str) -> Parts:
    """Return the partitions of a store for backups at a place. destination: the address of the place. Raises
    ConfigurationError if the address has secrets and owners were named."""
    if not store.is_spread:
        return DirectoryParts(store.directory)
    try:
        return SpreadParts(store, lasting_place(destination))
    except ConfigurationError as error:
        error.cause = "The secrets would be sent to the owners, and secrets never leave a host."
        error.remedy = "Leave the secrets out, and give them by the environment, on each host: see docs/backup.md."
        raise


class SpreadParts:
    """The `Parts` of a directory and of owners."""

    def __init__(self, store: Store, destination: str) -> None:
        """destination: the address of the place, which each owner opens with credentials of its own."""
        self._store = store
        self._destination = destination
        self._found: list[FoundFile] = []
        self._stored: dict[Owner, tuple[str, list[StoredCopy]]] = {}
        """The copies that each owner stored last, and the identity with which it did: both ends have them."""
        self._apart: RecoveryError | None = None

    def found(self, *, again: bool = True) -> list[FoundFile]:
        if again or not self._found:
            self._found = self._store.found()
            self._fit(self._found)
        return self._found

    def origins(self) -> Sequence[Origin]:
        self.found()
        return origins_of(self._store)

    def store(self, storing: Storing) -> list[StoredCopy] | None:
        found = check_set(self._found)
        own = [each.path for each in found if self._store.owner_of(each.index) is None]
        takes: list[Callable[[], list[StoredCopy] | None]] = [
            partial(self._at_owner, owner, indexes, storing, found[0].store_id, len(found))
            for owner, indexes in self._at_owners().items()
        ]
        if own:
            takes.append(partial(storing.copies, own, are_all=False))
        stored = each(lambda take: take() or [], takes, at_once=AT_ONCE, name="owner")
        copies = sorted((copy for some in stored for copy in some), key=lambda copy: copy.description.index)
        try:
            self._fit([FoundFile(copy.description.path, copy.description) for copy in copies])
        except InconsistentPartitionsError as error:
            self._apart = error
            return None
        self._check_there(storing, copies)
        return copies

    def _at_owners(self) -> dict[Owner, list[PartitionIndex]]:
        """Return the partitions that each owner has, of those that were found."""
        shares: dict[Owner, list[PartitionIndex]] = {}
        for partition in check_set(self._found):
            owner = self._store.owner_of(partition.index)
            if owner is not None:
                shares.setdefault(owner, []).append(partition.index)
        return shares

    def elsewhere(self, target: Place, identity: str, now_ms: int) -> BackupTargetError | None:
        """Return the error for an owner on whose host the address is another place; None if it is one place everywhere.
        Stores nothing but the note of a backup `identity`, which is removed again."""
        self.found()
        begin(target, identity, lambda: None, now_ms)
        wanted = WantedShare(
            self._destination, running_name(identity), identity, now_ms, False, False, "", 0, [], [], 0
        )
        try:
            owners = list(self._at_owners())
            answers = each(partial(self._answer, wanted=wanted), owners, at_once=AT_ONCE, name="owner")
        finally:
            give_up(target, identity)
        wrong = (owner for owner, answer in zip(owners, answers, strict=True) if answer.is_elsewhere)
        return next((_elsewhere(owner, target) for owner in wrong), None)

    def apart(self) -> RecoveryError:
        assert self._apart is not None, "store comes first"
        return self._apart

    def _fit(self, found: Sequence[FoundFile]) -> None:
        """Check that partitions of several hosts have an epoch in common. Raises InconsistentPartitionsError."""
        try:
            check_fit(found)
        except InconsistentPartitionsError as error:
            raise InconsistentPartitionsError(
                f"the run's backup interval is shorter than what lay between looks at its owners: {error.found}",
                path=self._store.directory,
                cause="The run closed epochs meanwhile, so that the partitions have none in common.",
                remedy="Give the run a longer backup interval, such as -b 10m.",
            ) from error

    def _at_owner(
        self, owner: Owner, indexes: Sequence[PartitionIndex], storing: Storing, store_id: str, count: int
    ) -> list[StoredCopy]:
        linking = storing.linking
        before = [copy for copy in storing.usable if copy.description.index in indexes]

        def stored(base: str) -> StoredShare:
            wanted = WantedShare(
                self._destination, linking.running, linking.identity, linking.taken_ms, linking.check,
                storing.incremental, store_id, count, list(indexes), [] if base else encoded(before), linking.since,
                storing.in_full, base,
            )  # fmt: skip
            return self._answer(owner, wanted)

        base, last = self._stored.get(owner, ("", []))
        answer = stored(base if last == before else "")
        if answer.lacks_base:
            # The process that has stored them was started again, or has stored for another run since.
            answer = stored("")
        if answer.is_elsewhere:
            raise _elsewhere(owner, linking.target)
        if answer.spoiled is not None:
            index, why = answer.spoiled
            for copy in before:
                if copy.description.index == index:
                    raise SpoiledChainError(copy, NoLink(why))
            raise StorageError(
                f"the owner at {owner.location} could not continue a chain that it was not to continue: part-{index}"
            )
        storing.whole_because |= answer.whole_because
        copies = decoded(answer.copies, store_id, count, before)
        if [copy.description.index for copy in copies] != list(indexes):
            raise StorageError(f"the owner at {owner.location} stored other partitions than its own")
        self._stored[owner] = linking.identity, copies
        return copies

    @staticmethod
    def _answer(owner: Owner, wanted: WantedShare) -> StoredShare:
        """Return what an owner answers. Raises the error with which it refuses."""
        said = owner.ask(OwnerCalls.store_copies, packed(msgspec.json.encode(wanted)))
        try:
            answer = msgspec.json.decode(unpacked([said], VALUE_BYTES), type=StoredShare)
        except ValueError as error:
            raise StorageError(f"the owner at {owner.location} answered something else: {error}") from error
        if answer.refusal is not None:
            refused = as_error(answer.refusal, owner.location)
            refused.path = refused.path or owner.location
            raise refused
        return answer

    def _check_there(self, storing: Storing, copies: Sequence[StoredCopy]) -> None:
        """Raises BackupTargetError if the place does not have what owners have just stored: the owners' place is
        another one."""
        target, identity = storing.linking.target, storing.linking.identity
        for copy in copies:
            for name, stored_bytes in copy.objects:
                if identity not in name:
                    continue
                try:
                    there = len(target.read_range(name, stored_bytes - 1, 2)) == 1
                except FileNotFoundError:
                    there = False
                if not there:
                    raise BackupTargetError(
                        f"an owner has stored {name}, and it is not there",
                        path=target.shown,
                        cause="On the owner's host the same address is another place, such as a disk of its own.",
                        remedy="Name a place that all hosts reach under the same address.",
                    )


def _elsewhere(owner: Owner, target: Place) -> BackupTargetError:
    return BackupTargetError(
        f"what this host wrote there is not there for the owner at {owner.location}, which has stored nothing",
        path=target.shown,
        cause="On the owner's host the address is another place: a disk of its own, or a share that is not mounted.",
        remedy="Name a place that all hosts reach under the same address.",
    )
