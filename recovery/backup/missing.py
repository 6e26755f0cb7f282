"""Bring partitions that a store lacks back from a place of copies, to owners that are left; the others stay.

The caller has locked every location, and keeps it locked.

missing.1  Look at what each location has. If no partition is missing and no owner was lost, there is nothing to do.
missing.2  Read the place. Choose the partitions to bring back, and copies that share an epoch with all that stay.
missing.3  Restore the copies into a temporary directory of this host, which checks every digest.
missing.4  Send each owner its files, and their digests. The owner stages, compares and syncs them.
missing.5  Have the files put into place. Each counts from then on, as a copy that somebody has put there.

Nothing of the store has changed before missing.5. A copy that is in place takes the place of no newer one: a lost owner
that comes back before an execution has begun on the copy still has the newer one, and that counts. So an attempt that
ends between two files of missing.5 leaves nothing to undo, and the next one brings what is still lacking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from recovery.backup.at_owners import OwnerPart, each_owner
from recovery.backup.note import note_replaced
from recovery.backup.progress import Observer, ignore
from recovery.backup.restore import Announce, plan_from, restore_beside
from recovery.backup.sources import Source, open_source
from recovery.base.clock import Clock
from recovery.base.faults import reach
from recovery.base.ids import PartitionIndex
from recovery.errors import InconsistentPartitionsError, OwnerUnreachableError
from recovery.places.opening import open_place, refuse_itself
from recovery.planning.backups import PartitionCopy, RestorePlan
from recovery.planning.copies import newest_copies
from recovery.planning.replacement import Replacement, executions_of, lacking, spread
from recovery.planning.values import PartitionDescription
from recovery.storage.initialize import RESTORING
from recovery.storage.restored import read_restored
from recovery.storage.store import Store


class Shortage(NamedTuple):
    """What the locations of a store have. lost: the owners that were not reached. held: the copies that count, by their
    partition. owner_bytes: what each owner has, in the order in which the owners were named. wants_older: the
    directory was just restored, so an older copy is what the user wants."""

    lost: tuple[str, ...]
    held: dict[PartitionIndex, PartitionDescription]
    owner_bytes: dict[str, int]
    wants_older: bool

    @property
    def is_whole(self) -> bool:
        """Whether no partition is missing, and no owner was lost."""
        return not self.lost and bool(self.held) and len(self.held) == next(iter(self.held.values())).count


class MissingPlan(NamedTuple):
    """Which partitions come back, to which owner each, from the copies of which restore. stay: the others, as copies of
    themselves."""

    owner_of: dict[PartitionIndex, str]
    stay: tuple[PartitionCopy, ...]
    restore: RestorePlan


class BroughtBack(NamedTuple):
    """Partitions that came back. rows: of all of them."""

    replacement: Replacement
    plan: MissingPlan
    size_bytes: int


def shortage(store: Store, lost: Sequence[str], clock: Clock) -> Shortage:
    """Step missing.1. lost: the locations of owners of the store that were not reached. Raises what `newest_copies`
    raises, and the error of the first file that cannot be read."""
    store.lost = tuple(dict.fromkeys((*store.lost, *lost)))
    found = store.locations(without_lost=True)
    held = {index: copy.partition for index, copy in newest_copies(found).copies.items()}
    sizes = {location.name: sum(each.size_bytes for each in location.partitions) for location in found}
    owner_bytes = {owner.location: sizes[owner.location] for owner in store.owners}
    return Shortage(store.lost, held, owner_bytes, read_restored(store.directory, clock.wall_ms()).counts)


def plan_missing(source: Source, short: Shortage, clock: Clock) -> MissingPlan | None:
    """Step missing.2; None: the locations have all that the place has.

    Raises OwnerUnreachableError if no owner is left, MissingPartitionsError if the place lacks a partition too,
    InconsistentPartitionsError if the copies are older than the window of the partitions that stay, and what
    `plan_from` raises.
    """
    wanted = lacking(short.held, source.latest or source.copies, only_missing=short.wants_older)
    if not wanted:
        return None
    if not short.owner_bytes:
        raise OwnerUnreachableError(
            f"no owner is left that part-{wanted[0]}.sqlite3 could come back at",
            cause=f"Not reached: {', '.join(short.lost)}.",
            remedy="Start an owner (recovery serve DIR --at HOST:PORT), name it with --owner, and run the same command "
            "again.",
        )
    stay = _as_copies([each for index, each in sorted(short.held.items()) if index not in wanted], clock)
    try:
        plan = plan_from(source, held=stay)
    except InconsistentPartitionsError:
        # An epoch between two backups may be one that only chains hold.
        source.describe_chains()
        plan = plan_from(source, held=stay)
    sizes = {copy.index: copy.description.size_bytes for copy in plan.copies if copy.index in wanted}
    return MissingPlan(spread(sizes, short.owner_bytes), tuple(stay), plan)


def bring_missing(
    source: Source,
    store: Store,
    lost: Sequence[str],
    scratch: Path,
    *,
    clock: Clock,
    random_id: Callable[[], str],
    umask: bool = False,
    announce: Announce = lambda _plan, _left_out: None,
    observe: Observer = ignore,
) -> BroughtBack | None:
    """Bring back what the store lacks; None: nothing, since all is there.

    store: all its locations are locked for the caller. lost: the locations of owners that were not reached. scratch:
    has room for the partitions that come back. umask: others may read the files, as far as the umask of each owner
    allows. Raises what `plan_missing` and `restore_beside` raise, and what owners refuse with. Before missing.5 nothing
    has changed then.
    """
    plan = plan_missing(source, short := shortage(store, lost, clock), clock)
    if plan is None:
        return None
    room = scratch / "missing"
    room.mkdir()
    restored, paths = restore_beside(source, plan.stay, room, clock=clock, announce=announce, observe=observe)
    # A copy that turned out to be damaged may have been replaced by another one.
    plan = plan._replace(restore=restored)
    reach("missing.3")
    newest = max(executions_of(each.description) for each in restored.copies)
    parts = [
        OwnerPart(owner, [index for index, at in sorted(plan.owner_of.items()) if at == owner.location])
        for owner in store.owners
    ]
    _put([part for part in parts if part.indexes], paths, f"{RESTORING}{newest}-{random_id()}", umask, observe)
    size_bytes = sum(path.stat().st_size for path in paths.values())
    return BroughtBack(Replacement(short.lost, plan.owner_of, source.shown, restored.epoch), plan, size_bytes)


def replace_lost(
    place: str, store: Store, lost: Sequence[str], scratch: Path, *, clock: Clock, random_id: Callable[[], str]
) -> Replacement | None:
    """Do for a run that begins what `bring_missing` does, with the copies at a place, which is asked only if an owner
    was lost or a partition is missing. Raises besides what `open_source` raises."""
    if shortage(store, lost, clock).is_whole:
        return None
    refuse_itself(place, store.directory, "backup")
    done = bring_missing(
        open_source(open_place(place), scratch, clock), store, lost, scratch, clock=clock, random_id=random_id
    )
    if done is None:
        return None
    note_replaced(store.directory, done.replacement, clock.wall_ms())
    return done.replacement


def _put(
    parts: Sequence[OwnerPart], paths: dict[PartitionIndex, Path], name: str, umask: bool, observe: Observer
) -> None:
    """Steps missing.4 and missing.5."""
    try:
        each_owner(lambda part: part.stage(name, None, umask), parts)
        each_owner(lambda part: part.send(paths, observe), parts)
        reach("missing.4")
        each_owner(lambda part: part.place(), parts)
        reach("missing.5")
    finally:
        each_owner(lambda part: part.end(counts=True), parts)


def _as_copies(partitions: Sequence[PartitionDescription], clock: Clock) -> list[PartitionCopy]:
    return [PartitionCopy(each, str(each.path), clock.wall_ms()) for each in partitions]
