"""The copies of `recovery erase DIR`: those that it names, those that are known, and files beside partitions."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from recovery.backup.erased import ErasedCopy
from recovery.base.clock import SystemClock
from recovery.cli.owners import looked_at
from recovery.errors import RecoveryError
from recovery.planning.resume import plan_resume
from recovery.planning.strays import ASIDE
from recovery.storage.copied import files_of
from recovery.storage.erasing import SoughtKeys
from recovery.storage.others import others_beside
from recovery.storage.scan import SUFFIX
from recovery.storage.store import OwnerAccess, Store
from recovery.wire.calls import OwnerCalls

if TYPE_CHECKING:
    # These import Arrow, which other commands need not wait for.
    from recovery.backup.erase import PlaceSearch
    from recovery.backup.make import Made
    from recovery.backup.writer import Writer
    from recovery.places.protocol import Place

UNUSED = "an older copy of the partition, which no run uses; remove the file, and its log"
LITESTREAM = (
    "Litestream keeps pages of the partition in it, and at its replica: end Litestream, remove this directory and the "
    "replica, and start it again"
)
BY_OTHERS = "another program has made it; remove it, and what else that program has copied"


class NamedCopies:
    """The copies that the command names. killed: no backup that is announced at a place goes on."""

    def __init__(
        self,
        directory: Path,
        access: OwnerAccess,
        wanted: SoughtKeys,
        places: Sequence[str],
        standbys: Sequence[Path],
        *,
        killed: bool = False,
    ) -> None:
        self.directory, self.access, self.wanted, self.killed = directory, access, wanted, killed
        self.places = list({_lasting(each): each for each in places}.values())
        self.standbys = list(dict.fromkeys(standbys))
        self._searches: list[PlaceSearch] = []

    def __bool__(self) -> bool:
        return bool(self.places or self.standbys)

    def searched(self, *, dry_run: bool) -> list[ErasedCopy]:
        """Search all copies, and return what they hold. Raises for the first one that could not be erased: it is
        misspelt, out of reach, of another store, in use or another directory's, or this user may not write there. Then
        nothing has changed. dry_run: write nothing to find out."""
        if not self:
            return []
        from recovery.backup.erase import PlaceSearch, check_access, check_standby
        from recovery.backup.repository import under_way
        from recovery.places.opening import open_place

        self._searches = [PlaceSearch(open_place(each), self.wanted) for each in self.places]
        running = [under_way(each.place, SystemClock().wall_ms()) for each in self._searches]
        counted = [[] if self.killed else each for each in running]
        found = [search.found(each) for search, each in zip(self._searches, counted, strict=True)]
        found += [check_standby(each, self.wanted) for each in self.standbys]
        changed = [
            (search, address)
            for search, address, each in zip(self._searches, self.places, running, strict=True)
            if search.holding or search.unread or (self.killed and each)
        ]
        for search, address in changed:
            with looked_at(self.directory, self.access) as store:
                partitions = plan_resume(store.found()).partitions
                self._writer(search.place, address, dry_run=True).begin(partitions, search.latest)
        # Last, since it writes: no other check refuses anything then.
        for search, _ in changed if not dry_run else ():
            check_access(search.place)
        return found

    def erased(self) -> list[ErasedCopy]:
        """Erase the keys from the copies, which were searched, and return what was done at each. A copy that fails is
        one that still may hold the keys."""
        if not self:
            return []
        from recovery.backup.erase import erase_place, erase_standby

        clock = SystemClock()

        def at_place(search: PlaceSearch, address: str) -> ErasedCopy:
            return erase_place(search, lambda: self.backed_up(search.place, address), clock, killed=self.killed)

        searched = zip(self.places, self._searches, strict=True)
        found = [_tried(search.place.shown, partial(at_place, search, address)) for address, search in searched]
        found += [_tried(str(each), partial(erase_standby, each, self.wanted, clock)) for each in self.standbys]
        return found

    def backed_up(self, place: Place, address: str) -> Made:
        """Make a backup of whole partitions."""
        from recovery.backup.make import make_backup

        writer = self._writer(place, address)
        with looked_at(self.directory, self.access) as store, files_of(store) as files:
            return make_backup(
                files, place, clock=SystemClock(), random_id=_random_id, writer=writer, home=self.directory
            )

    def _writer(self, place: Place, address: str, *, dry_run: bool = False) -> Writer:
        from recovery.backup.writer import Writer

        return Writer(self.directory, place, SystemClock(), _random_id, place=address, dry_run=dry_run)


def _random_id() -> str:
    return token_hex(4)


def _tried(location: str, work: Callable[[], ErasedCopy]) -> ErasedCopy:
    try:
        return work()
    except RecoveryError as error:
        return ErasedCopy(location, left=(location,), why=error.found)


def beside(store: Store, wanted: SoughtKeys, standbys: Sequence[Path]) -> list[ErasedCopy]:
    """Return what lies beside the partitions of a store, whose copies are chosen, and of standbys, and that nobody
    rewrites: copies that no run uses, and files that carry the name of a partition and were not made by this package,
    such as what Litestream keeps there. Each may hold anything that the partition has held."""
    unused = [each.path for each in store.unused if each.index in wanted.partitions]
    here = dict.fromkeys(path for each in (store.directory, *standbys) for path in others_beside(each))
    others = [(str(path), path.name) for path in here]
    for owner in store.owners:
        there = map(Path, owner.ask(OwnerCalls.others_beside))
        others += ((f"{path} at {owner.location}", path.name) for path in there)
    return [
        *(ErasedCopy(str(path), left=(path.name,), why=UNUSED) for path in unused),
        *(ErasedCopy(at, left=(name,), why=_why_kept(name)) for at, name in others),
    ]


def _why_kept(name: str) -> str:
    if f"{SUFFIX}{ASIDE}" in name:
        return UNUSED
    return LITESTREAM if name.endswith("-litestream") else BY_OTHERS


def known_copies(directory: Path, named: Sequence[str]) -> list[str]:
    """Return other copies of the directory that are known: the places to which it was backed up or replicated last, if
    they were not named, and directories of the store before it was repartitioned. To be called before a backup is
    made, which is the last one then."""
    from recovery.backup.note import last_backup, last_replica
    from recovery.partitioning.in_place import kept_directories

    notes = (last_backup(directory), last_replica(directory))
    known, there = {note.destination for note in notes if note is not None}, set(map(_lasting, named))
    kept: list[Path] = []
    # Partition 0, which knows its origins, may be at an owner.
    with suppress(RecoveryError):
        kept = kept_directories(directory)
    return [*sorted(each for each in known if _lasting(each) not in there), *map(str, kept)]


def _lasting(address: str) -> str:
    """Return one text for all names of a directory; an address of another kind as it is."""
    from recovery.places.opening import directory_of
    from recovery.places.secrets import shown_address

    with suppress(RecoveryError):
        path = directory_of(address)
        return shown_address(address) if path is None else os.path.realpath(path)
    return address
