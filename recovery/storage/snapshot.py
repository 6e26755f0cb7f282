"""A snapshot of a recovery directory: the state of its steps at a held epoch, read from all partitions."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recovery.base.ids import NO_EPOCH, PartitionIndex
from recovery.base.reserved import RESERVED_PREFIX
from recovery.errors import ConfigurationError, EpochNotHeldError
from recovery.planning.measures import Measure
from recovery.planning.resume import Cut, ResumePlan, common_cuts, plan_resume
from recovery.planning.timeline import TimelinePart, fork, timeline
from recovery.planning.values import ClosedEpoch, Execution
from recovery.storage.history import (
    KeyChange,
    KeyState,
    KeyVersion,
    changes_between,
    check_all_there,
    count_at,
    few_states_at,
    sizes_at,
    states_at,
    steps_in,
    values_at,
    versions_of,
)
from recovery.storage.scan import read_measures, scan
from recovery.values.keys import home_of


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of a recovery directory: the files, and the cut that they share.

    epochs, executions: the closed epochs that the files held when the snapshot was chosen, and the executions. cuts:
    the snapshots that they shared. timeline: which execution closed which epochs up to this snapshot.
    """

    paths: tuple[Path, ...]
    cut: Cut
    epochs: tuple[ClosedEpoch, ...]
    executions: tuple[Execution, ...]
    cuts: frozenset[Cut]
    timeline: tuple[TimelinePart, ...]

    @classmethod
    def of(cls, plan: ResumePlan, cut: Cut) -> Snapshot:
        """Return the snapshot of a cut that all partitions of a plan hold."""
        held = plan.partitions
        snapshot = next((closed for closed in held[0].epochs if closed.cut == cut), None)
        parts = timeline(held[0].executions, snapshot)
        paths, cuts = tuple(d.path for d in held), frozenset(common_cuts(held))
        return cls(paths, cut, held[0].epochs, tuple(held[0].executions), cuts, parts)

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
        None if there is none. A fork shares the history of its origin, and a restored backup that of its store."""
        limit = min(fork(self.timeline, other.timeline), self.epoch, other.epoch)
        cuts = [cut for cut in self.cuts & other.cuts if NO_EPOCH < cut[0] <= limit]
        return (replace(self, cut=max(cuts)), replace(other, cut=max(cuts))) if cuts else None

    def states(self, step: str) -> Iterator[KeyState]:
        """Yield the states of a step, one partition after the other."""
        for path in self.paths:
            yield from states_at(path, step, self.cut)

    def states_in_order(self, step: str) -> Iterator[KeyState]:
        """Yield the states of a step by key, from all partitions. Holds a few rows of each partition in memory."""
        every = [states_at(path, step, self.cut, in_order=True) for path in self.paths]
        return heapq.merge(*every, key=lambda state: state.key)

    def versions(self, step: str, key: str) -> list[KeyVersion]:
        """Return the values of a key that are still held, oldest first."""
        return versions_of(self.paths[home_of(step, len(self.paths), key)], step, key, self.cut)

    def state(self, step: str, key: str) -> KeyState | None:
        """Return the state of one key."""
        return self.some(step, [key]).get(key)

    def some(self, step: str, keys: Iterable[str]) -> dict[str, KeyState]:
        """Return the states of these keys, for those that have one."""
        wanted: dict[Path, list[str]] = {}
        for key in dict.fromkeys(keys):
            wanted.setdefault(self.paths[home_of(step, len(self.paths), key)], []).append(key)
        found = (few_states_at(path, step, self.cut, some) for path, some in wanted.items())
        return {state.key: state for states in found for state in states}

    def sizes(self, step: str) -> Iterator[tuple[str, int]]:
        """Yield the keys of a step and the size of each value in bytes, without reading the values."""
        for path in self.paths:
            yield from sizes_at(path, step, self.cut)

    def values(self, step: str, keys: Sequence[str] | None = None) -> dict[str, str | bytes]:
        """Return the values of these keys, for those that have one; None: of all, for a step with few."""
        return {
            key: value
            for index, some in self.by_partition(step, keys).items()
            for key, value in values_at(self.paths[index], step, self.cut, some)
        }

    def by_partition(self, step: str, keys: Iterable[str] | None) -> dict[PartitionIndex, list[str] | None]:
        """Return which of these keys each partition may have; None: all of them in each."""
        if keys is None:
            return {PartitionIndex(index): None for index in range(len(self.paths))}
        found: dict[PartitionIndex, list[str] | None] = {}
        for key in dict.fromkeys(keys):
            some = found.setdefault(PartitionIndex(home_of(step, len(self.paths), key)), [])
            assert some is not None
            some.append(key)
        return found

    def measures(self) -> list[Measure]:
        """Return the measures of part-0, oldest first. Raises what `read_measures` raises."""
        return read_measures(self.paths[0])

    def count(self, step: str) -> int:
        """Return the number of keys of a step, without reading their values."""
        return sum(count_at(path, step, self.cut) for path in self.paths)

    def changes(self, step: str, since: Snapshot) -> Iterator[KeyChange]:
        """Yield the keys of a step whose state differs from that in the snapshot `since`."""
        for path in self.paths:
            yield from changes_between(path, step, since.cut, self.cut)

    def changes_in_order(self, step: str, since: Snapshot) -> Iterator[KeyChange]:
        """Yield the changes of a step since another snapshot, by key. Holds the keys that were written in
        between in memory."""
        every = [changes_between(path, step, since.cut, self.cut) for path in self.paths]
        return heapq.merge(*every, key=lambda change: change.key)

    def check_all_there(self, step: str, key: str) -> None:
        """Raises CorruptPartitionError if the key's partition lacks rows of the step. Reads all keys of the step in
        that partition."""
        check_all_there(self.paths[home_of(step, len(self.paths), key)], step, self.cut)

    def steps(self, *, reserved: bool = False) -> list[str]:
        """Return the steps that have state at any held epoch."""
        found = {step for path in self.paths for step in steps_in(path)}
        return sorted(step for step in found if reserved or not step.startswith(RESERVED_PREFIX))


def snapshot_at(directory: Path, epoch: int | None = None) -> Snapshot:
    """Return the snapshot of an epoch that all partitions hold; None: the newest. Only reads; a run may be active.

    Raises the errors of planning, and EpochNotHeldError.
    """
    plan = plan_resume(scan(directory))
    cuts = common_cuts(plan.partitions)
    if epoch is None:
        return Snapshot.of(plan, max(cuts))
    for cut in cuts:
        if cut[0] == epoch:
            return Snapshot.of(plan, cut)
    raise EpochNotHeldError(
        f"epoch {epoch} is not held: the partitions share epochs {min(cuts)[0]} to {max(cuts)[0]}", path=directory
    )


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
