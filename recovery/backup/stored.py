"""A partition's copy at a place of backups, as a manifest lists it: an object of its own, or a chain of objects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from recovery.planning.chains import ChainLink
from recovery.planning.values import PartitionDescription
from recovery.storage.copies import NO_MARKS, Marks


@dataclass(frozen=True, slots=True)
class StoredChanges:
    """A changes file in a chain, and the number of links in it. sha256, size_bytes: of the file; stored_bytes: of the
    object."""

    object_name: str
    sha256: str
    size_bytes: int
    stored_bytes: int
    links: int


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """One partition's copy in a backup.

    object_name: the object that holds its bytes, or the whole copy with which its chain begins. sha256, size_bytes: of
    the SQLite file in it; stored_bytes: of the object. fingerprint: equal for two copies of one partition with the same
    content. changes: the rest of its chain. marks: where a further link begins in what belongs to no epoch.
    index_bytes, index_sha256: of the index at the end of the whole copy; 0 if an older version stored it without one.
    """

    description: PartitionDescription
    object_name: str
    sha256: str
    size_bytes: int
    stored_bytes: int
    taken_ms: int
    fingerprint: int
    changes: tuple[StoredChanges, ...] = ()
    marks: Marks = NO_MARKS
    index_bytes: int = 0
    index_sha256: str = ""

    @property
    def objects(self) -> tuple[tuple[str, int], ...]:
        """Name and size in bytes of each object that a restore reads."""
        return ((self.object_name, self.stored_bytes), *((c.object_name, c.stored_bytes) for c in self.changes))

    @property
    def digests(self) -> dict[str, str]:
        """The digest of the file in each of these objects."""
        return {self.object_name: self.sha256} | {each.object_name: each.sha256 for each in self.changes}

    @property
    def origin(self) -> str:
        """The newest of its objects, which no other copy has as its newest."""
        return self.objects[-1][0]

    @property
    def links(self) -> int:
        """The number of links in its chain."""
        return sum(each.links for each in self.changes)

    def name_of(self, link: int) -> str:
        """Return the changes file that holds a link of the chain."""
        return self.changes[self._position(link)].object_name

    def as_of(self, link: ChainLink, description: PartitionDescription) -> StoredCopy:
        """Return the chain as of one of its links, as of which the partition has this description."""
        position = self._position(link.number)
        before = sum(each.links for each in self.changes[:position])
        last = replace(self.changes[position], links=link.number - before)
        changes = (*self.changes[:position], last)
        return replace(self, description=description, taken_ms=link.taken_ms, fingerprint=0, changes=changes)

    def _position(self, link: int) -> int:
        ends = accumulate(each.links for each in self.changes)
        return next(position for position, end in enumerate(ends) if link <= end)

    def stored_by(self, identity: str) -> int:
        """Return the bytes that the backup of this id stored for the copy."""
        return sum(size for name, size in self.objects if identity in name)
