"""Reading one partition as of a cut, wherever its file is: `PartitionReader`, and the reader of a file of this host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from recovery.planning.measures import Measure, StepSize
from recovery.planning.resume import Cut
from recovery.planning.values import PartitionDescription
from recovery.storage import history, scan
from recovery.storage.history import KeyChange, KeyState, KeyVersion


class PartitionReader(Protocol):
    """Reads one partition. Each method returns and raises what the function of `recovery.storage.history` or
    `recovery.storage.scan` that it names does; a reader of a file elsewhere also raises OwnerUnreachableError."""

    @property
    def path(self) -> Path:
        """How errors name the file: its path, or the address of its owner and its name."""
        ...

    def states(self, step: str, cut: Cut, *, in_order: bool = False) -> Iterator[KeyState]:
        """See `history.states_at`."""
        ...

    def few_states(self, step: str, cut: Cut, keys: Sequence[str] | None = None) -> list[KeyState]:
        """See `history.few_states_at`."""
        ...

    def key_sizes(self, step: str, cut: Cut) -> Iterator[tuple[str, int]]:
        """See `history.sizes_at`."""
        ...

    def count(self, step: str, cut: Cut) -> int:
        """See `history.count_at`."""
        ...

    def versions(self, step: str, key: str, cut: Cut) -> list[KeyVersion]:
        """See `history.versions_of`."""
        ...

    def changes(self, step: str, first: Cut, last: Cut) -> Iterator[KeyChange]:
        """See `history.changes_between`."""
        ...

    def check_all_there(self, step: str, cut: Cut) -> None:
        """See `history.check_all_there`."""
        ...

    def steps(self) -> list[str]:
        """See `history.steps_in`."""
        ...

    def newest_steps(self) -> list[str]:
        """See `scan.step_names`."""
        ...

    def has_step(self, step: str) -> bool:
        """See `history.has_step`."""
        ...

    def sizes(self) -> dict[str, StepSize] | None:
        """See `scan.sizes_in`."""
        ...

    def measures(self) -> list[Measure]:
        """See `scan.read_measures`."""
        ...

    def log_bytes(self) -> int:
        """See `scan.log_bytes`."""
        ...

    def largest(self, limit: int) -> list[tuple[str, str, int]]:
        """See `scan.largest_states`."""
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
        """See `PartitionReader.states`."""
        return history.states_at(self.path, step, cut, in_order=in_order)

    def few_states(self, step: str, cut: Cut, keys: Sequence[str] | None = None) -> list[KeyState]:
        """See `PartitionReader.few_states`."""
        return history.few_states_at(self.path, step, cut, keys)

    def key_sizes(self, step: str, cut: Cut) -> Iterator[tuple[str, int]]:
        """See `PartitionReader.key_sizes`."""
        return history.sizes_at(self.path, step, cut)

    def count(self, step: str, cut: Cut) -> int:
        """See `PartitionReader.count`."""
        return history.count_at(self.path, step, cut)

    def versions(self, step: str, key: str, cut: Cut) -> list[KeyVersion]:
        """See `PartitionReader.versions`."""
        return history.versions_of(self.path, step, key, cut)

    def changes(self, step: str, first: Cut, last: Cut) -> Iterator[KeyChange]:
        """See `PartitionReader.changes`."""
        return history.changes_between(self.path, step, first, last)

    def check_all_there(self, step: str, cut: Cut) -> None:
        """See `PartitionReader.check_all_there`."""
        history.check_all_there(self.path, step, cut)

    def steps(self) -> list[str]:
        """See `PartitionReader.steps`."""
        return history.steps_in(self.path)

    def newest_steps(self) -> list[str]:
        """See `PartitionReader.newest_steps`."""
        return scan.step_names([self.path])

    def has_step(self, step: str) -> bool:
        """See `PartitionReader.has_step`."""
        return history.has_step(self.path, step)

    def sizes(self) -> dict[str, StepSize] | None:
        """See `PartitionReader.sizes`."""
        return scan.sizes_in(self.path)

    def measures(self) -> list[Measure]:
        """See `PartitionReader.measures`."""
        return scan.read_measures(self.path)

    def log_bytes(self) -> int:
        """See `PartitionReader.log_bytes`."""
        return scan.log_bytes(self.path)

    def largest(self, limit: int) -> list[tuple[str, str, int]]:
        """See `PartitionReader.largest`."""
        return scan.largest_states(self.path, limit)
