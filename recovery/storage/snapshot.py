"""A snapshot of a store: the state of its steps at a held epoch, read from all partitions, wherever they are."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from recovery.base.ids import NO_EPOCH
from recovery.base.reserved import RESERVED_PREFIX
from recovery.errors import ConfigurationError, EpochNotHeldError
from recovery.planning.measures import Measure
from recovery.planning.resume import Cut, ResumePlan, plan_resume
from recovery.planning.timeline import TimelinePart, fork, timeline
from recovery.planning.values import ClosedEpoch, Execution, FoundFile, PartitionDescription
from recovery.storage.history import KeyChange, KeyState, KeyVersion, VersionSpan
from recovery.storage.reading import FileReader, PartitionReader
from recovery.storage.scan import scan
from recovery.values.keys import home_of

ReaderOf: TypeAlias = Callable[[PartitionDescription], PartitionReader]
"""Returns the reader of a partition: `FileReader.of`, or `Store.reader`."""


class NewestVersions(NamedTuple):
    """The newest values of a key, oldest first. has_before: the first is there to compare the second with, and is one
    of those that are left out. left_out: when the values that were left out were there."""

    versions: list[KeyVersion]
    has_before: bool
    left_out: tuple[VersionSpan, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of a store: the readers of its partitions in the order of their indexes, and the cut that all share.

    epochs, executions: the closed epochs that the partitions held when the snapshot was chosen, and the executions.
    cuts: the snapshots that they shared. timeline: which execution closed which epochs up to this snapshot.
    """

    readers: tuple[PartitionReader, ...]
    cut: Cut
    epochs: tuple[ClosedEpoch, ...]
    executions: tuple[Execution, ...]
    cuts: frozenset[Cut]
    timeline: tuple[TimelinePart, ...]

    @classmethod
    def of(cls, plan: ResumePlan, cut: Cut, reader: ReaderOf) -> Snapshot:
        """Return the snapshot of a cut that all partitions of a plan hold."""
        return cls._among(plan, cut, reader)

    @classmethod
    def newest(cls, plan: ResumePlan, reader: ReaderOf) -> Snapshot:
        """Return the newest snapshot that all partitions of a plan hold."""
        return cls._among(plan, max(plan.cuts), reader)

    @classmethod
    def _among(cls, plan: ResumePlan, cut: Cut, reader: ReaderOf) -> Snapshot:
        held = plan.partitions
        snapshot = next((closed for closed in held[0].epochs if closed.cut == cut), None)
        parts = timeline(held[0].executions, snapshot)
        return cls(tuple(map(reader, held)), cut, held[0].epochs, tuple(held[0].executions), plan.cuts, parts)

    def at(self, epoch: int, directory: Path) -> Snapshot:
        """Return the snapshot of another epoch that the partitions shared. directory: named in errors. Raises
        EpochNotHeldError."""
        for cut in self.cuts:
            if cut[0] == epoch:
                snapshot = next((closed for closed in self.epochs if closed.cut == cut), None)
                return replace(self, cut=cut, timeline=timeline(self.executions, snapshot))
        raise EpochNotHeldError(
            f"epoch {epoch} is not held: the partitions share epochs {min(self.cuts)[0]} to {max(self.cuts)[0]}",
            path=directory,
        )

    @property
    def paths(self) -> tuple[Path, ...]:
        """How errors name the partitions; the paths of their files, if all are of this host."""
        return tuple(reader.path for reader in self.readers)

    @property
    def epoch(self) -> int:
        """The snapshot's epoch; 0 for the time before the first."""
        return self.cut[0]

    @property
    def oldest(self) -> int:
        """The oldest epoch that the files shared."""
        return min(self.cuts)[0]

    def shared_with(self, other: Snapshot) -> tuple[Snapshot, Snapshot] | None:
        """Return the newest snapshot that both directories hold of the history that they share, read from each;
        None if there is none. A fork shares the history of its origin, and a restored backup that of its store. An
        erasure that only one of them has seen has changed every epoch before: then they share none."""
        erasures, others = ({each.id for each in at.executions if each.erases} for at in (self, other))
        if erasures != others:
            return None
        limit = min(fork(self.timeline, other.timeline), self.epoch, other.epoch)
        cuts = [cut for cut in self.cuts & other.cuts if NO_EPOCH < cut[0] <= limit]
        return (replace(self, cut=max(cuts)), replace(other, cut=max(cuts))) if cuts else None

    def states(self, step: str) -> Iterator[KeyState]:
        """Yield the states of a step, one partition after the other."""
        for reader in self.readers:
            yield from reader.states(step, self.cut)

    def states_in_order(self, step: str) -> Iterator[KeyState]:
        """Yield the states of a step by key, from all partitions. Holds a few rows of each partition in memory."""
        every = [reader.states(step, self.cut, in_order=True) for reader in self.readers]
        return heapq.merge(*every, key=lambda state: state.key)

    def versions(self, step: str, key: str) -> list[KeyVersion]:
        """Return the values of a key that are still held, oldest first."""
        return self._home_of(step, key).versions(step, key, self.cut)

    def newest_versions(self, step: str, key: str, most_bytes: int) -> NewestVersions:
        """Return the newest values of a key: as many as have `most_bytes` together, at least one. The values of the
        others are not read."""
        reader = self._home_of(step, key)
        spans = reader.version_spans(step, key, self.cut)
        first = len(spans)
        while first and (sum(each.size_bytes for each in spans[first - 1 :]) <= most_bytes or first == len(spans)):
            first -= 1
        begin = max(0, first - 1)
        found = reader.versions(step, key, self.cut, spans[begin].epoch) if spans else []
        return NewestVersions(found, first > 0, tuple(spans[:first]))

    def state(self, step: str, key: str) -> KeyState | None:
        """Return the state of one key."""
        return self.some(step, [key]).get(key)

    def some(self, step: str, keys: Iterable[str]) -> dict[str, KeyState]:
        """Return the states of these keys, for those that have one."""
        wanted: dict[int, list[str]] = {}
        for key in dict.fromkeys(keys):
            wanted.setdefault(home_of(step, len(self.readers), key), []).append(key)
        found = (self.readers[index].few_states(step, self.cut, some) for index, some in wanted.items())
        return {state.key: state for states in found for state in states}

    def ending(self, step: str, ending: str) -> Iterator[KeyState]:
        """Yield the states of a step whose keys end with a text, without reading the values of other keys."""
        for reader in self.readers:
            yield from reader.ending(step, self.cut, ending)

    def sizes(self, step: str) -> Iterator[tuple[str, int]]:
        """Yield the keys of a step and the size of each value in bytes, without reading the values."""
        for reader in self.readers:
            yield from reader.key_sizes(step, self.cut)

    def values(self, step: str, keys: Sequence[str] | None = None) -> dict[str, str | bytes]:
        """Return the values of these keys, for those that have one; None: of all, for a step with few."""
        found = self.states(step) if keys is None else self.some(step, keys).values()
        return {state.key: state.value for state in found}

    def measures(self) -> list[Measure]:
        """Return the measures of part-0, oldest first. Raises what `read_measures` raises."""
        return self.readers[0].measures()

    def count(self, step: str) -> int:
        """Return the number of keys of a step, without reading their values."""
        return sum(reader.count(step, self.cut) for reader in self.readers)

    def changes(self, step: str, since: Snapshot) -> Iterator[KeyChange]:
        """Yield the keys of a step whose state differs from that in the snapshot `since`."""
        for reader in self.readers:
            yield from reader.changes(step, since.cut, self.cut)

    def changes_in_order(self, step: str, since: Snapshot) -> Iterator[KeyChange]:
        """Yield the changes of a step since another snapshot, by key. Holds the keys that were written in
        between in memory."""
        every = [reader.changes(step, since.cut, self.cut) for reader in self.readers]
        return heapq.merge(*every, key=lambda change: change.key)

    def check_all_there(self, step: str, key: str) -> None:
        """Raises CorruptPartitionError if the key's partition lacks rows of the step. Reads all keys of the step in
        that partition."""
        self._home_of(step, key).check_all_there(step, self.cut)

    def steps(self, *, reserved: bool = False) -> list[str]:
        """Return the steps that have state at any held epoch."""
        found = {step for reader in self.readers for step in reader.steps()}
        return sorted(step for step in found if reserved or not step.startswith(RESERVED_PREFIX))

    def _home_of(self, step: str, key: str) -> PartitionReader:
        return self.readers[home_of(step, len(self.readers), key)]


def snapshot_at(directory: Path, epoch: int | None = None) -> Snapshot:
    """Return the snapshot of an epoch that all partitions of a directory hold; None: the newest. Only reads; a run may
    be active. Raises the errors of planning, and EpochNotHeldError."""
    return snapshot_of(scan(directory), FileReader.of, directory, epoch)


def snapshot_of(found: Sequence[FoundFile], reader: ReaderOf, directory: Path, epoch: int | None = None) -> Snapshot:
    """Return what `snapshot_at` does, of these files. directory: named in errors about all of them."""
    plan = plan_resume(found)
    newest = Snapshot.newest(plan, reader)
    return newest if epoch is None else newest.at(epoch, directory)


def snapshots_at(directory: Path, epoch: int | None, since: int | None) -> tuple[Snapshot, Snapshot | None]:
    """Return the snapshot of an epoch, and that of the older epoch `since`, or None. Raises ConfigurationError if
    `since` is newer."""
    now = snapshot_at(directory, epoch)
    before = None if since is None else snapshot_at(directory, since)
    if before is not None and before.epoch > now.epoch:
        raise ConfigurationError(
            f"epoch {before.epoch} is newer than epoch {now.epoch}", cause="", remedy="Give the older epoch as `since`."
        )
    return now, before
