"""Reading one partition as of a cut, wherever its file is: `PartitionReader`, and the reader of a file of this host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from recovery.planning.measures import Measure, StepSize
from recovery.planning.resume import Cut
from recovery.planning.values import PartitionDescription
from recovery.storage import erasing, history, scan
from recovery.storage.history import Due, KeyChange, KeyState, KeyVersion, VersionSpan
from recovery.storage.seam import HeldRows, KeyToErase


class PartitionReader(Protocol):
    """Reads one partition, even during a run.

    Every method raises CorruptPartitionError, and StorageError if a run began meanwhile on a partition that nobody
    used; those that take a cut raise EpochNotHeldError if the partition does not hold it, or no longer. A reader of a
    file at an owner also raises OwnerUnreachableError.
    """

    @property
    def path(self) -> Path:
        """How errors name the file: its path, or the address of its owner and its name."""
        ...

    def states(self, step: str, cut: Cut, *, in_order: bool = False) -> Iterator[KeyState]:
        """Yield the states of a step as of a cut. in_order: by key."""
        ...

    def few_states(self, step: str, cut: Cut, keys: Sequence[str] | None = None) -> list[KeyState]:
        """Return the states of these keys of a step as of a cut, in one list; None: of all keys of a step with few."""
        ...

    def page(self, step: str, cut: Cut, begin: str, end: str | None, limit: int, most_bytes: int) -> list[KeyState]:
        """Return the first states of a step from the key `begin` on, as of a cut: at most `limit`, in the order of
        their keys, and none after their values together have `most_bytes`. end: only keys less than this one."""
        ...

    def ending(self, step: str, cut: Cut, ending: str) -> Iterator[KeyState]:
        """Yield the states of a step whose keys end with a text, as of a cut. The values of other keys are not read."""
        ...

    def key_sizes(self, step: str, cut: Cut) -> Iterator[tuple[str, int]]:
        """Yield the keys of a step as of a cut, with the size of each value in bytes. Values are not read."""
        ...

    def count(self, step: str, cut: Cut) -> int:
        """Return the number of keys of a step as of a cut."""
        ...

    def versions(self, step: str, key: str, cut: Cut, since: int = 0) -> list[KeyVersion]:
        """Return the values of a key that the partition still holds, up to a cut, oldest first. since: only those that
        this epoch or a later one wrote."""
        ...

    def version_spans(self, step: str, key: str, cut: Cut) -> list[VersionSpan]:
        """Return when each value that `versions` returns was there, without reading the values."""
        ...

    def due(self, step: str, moments: Sequence[int]) -> Due:
        """Return the earliest timeout of a step in the newest snapshot, and how many are due up to each moment,
        milliseconds since 1970."""
        ...

    def changes(self, step: str, first: Cut, last: Cut) -> Iterator[KeyChange]:
        """Yield the keys of a step whose value or timeout differs between two cuts. `first` is the older cut."""
        ...

    def check_all_there(self, step: str, cut: Cut) -> None:
        """Raise CorruptPartitionError if the partition lacks rows of a step that it had as of a cut."""
        ...

    def steps(self) -> list[str]:
        """Return the steps that have rows in any held snapshot, sorted, including reserved ones."""
        ...

    def newest_steps(self) -> list[str]:
        """Return the steps of the flow that have rows in the newest snapshot, sorted."""
        ...

    def has_step(self, step: str) -> bool:
        """Return whether the newest snapshot has rows of a step."""
        ...

    def rows_of(self, keys: Sequence[KeyToErase]) -> list[HeldRows]:
        """Return how many rows the partition holds of these keys, at any epoch, by step."""
        ...

    def sizes(self) -> dict[str, StepSize] | None:
        """Return the size of each step; None if the version of the file is too old to record sizes."""
        ...

    def measures(self) -> list[Measure]:
        """Return all measures, oldest first: only part-0 has some."""
        ...

    def log_bytes(self) -> int:
        """Return the size of the file's write-ahead log."""
        ...

    def largest(self, limit: int) -> list[tuple[str, str, int]]:
        """Return the largest states: step, key, bytes; without the run's own rows."""
        ...


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads a file of this host: a `PartitionReader`."""

    path: Path

    @classmethod
    def of(cls, partition: PartitionDescription) -> FileReader:
        """Return the reader of a described file."""
        return cls(partition.path)

    def states(self, step: str, cut: Cut, *, in_order: bool = False) -> Iterator[KeyState]:
        return history.states_at(self.path, step, cut, in_order=in_order)

    def few_states(self, step: str, cut: Cut, keys: Sequence[str] | None = None) -> list[KeyState]:
        return history.few_states_at(self.path, step, cut, keys)

    def page(self, step: str, cut: Cut, begin: str, end: str | None, limit: int, most_bytes: int) -> list[KeyState]:
        return history.page_at(self.path, step, cut, begin, end, limit, most_bytes)

    def ending(self, step: str, cut: Cut, ending: str) -> Iterator[KeyState]:
        return history.ending_at(self.path, step, cut, ending)

    def key_sizes(self, step: str, cut: Cut) -> Iterator[tuple[str, int]]:
        return history.sizes_at(self.path, step, cut)

    def count(self, step: str, cut: Cut) -> int:
        return history.count_at(self.path, step, cut)

    def versions(self, step: str, key: str, cut: Cut, since: int = 0) -> list[KeyVersion]:
        return history.versions_of(self.path, step, key, cut, since)

    def version_spans(self, step: str, key: str, cut: Cut) -> list[VersionSpan]:
        return history.spans_of(self.path, step, key, cut)

    def due(self, step: str, moments: Sequence[int]) -> Due:
        return history.due_in(self.path, step, moments)

    def changes(self, step: str, first: Cut, last: Cut) -> Iterator[KeyChange]:
        return history.changes_between(self.path, step, first, last)

    def check_all_there(self, step: str, cut: Cut) -> None:
        history.check_all_there(self.path, step, cut)

    def steps(self) -> list[str]:
        return history.steps_in(self.path)

    def newest_steps(self) -> list[str]:
        return scan.step_names([self.path])

    def has_step(self, step: str) -> bool:
        return history.has_step(self.path, step)

    def rows_of(self, keys: Sequence[KeyToErase]) -> list[HeldRows]:
        return erasing.rows_in(self.path, keys)

    def sizes(self) -> dict[str, StepSize] | None:
        return scan.sizes_in(self.path)

    def measures(self) -> list[Measure]:
        return scan.read_measures(self.path)

    def log_bytes(self) -> int:
        return scan.log_bytes(self.path)

    def largest(self, limit: int) -> list[tuple[str, str, int]]:
        return scan.largest_states(self.path, limit)
