"""Where Bytewax would resume, and whether that is right: pure functions of its partitions' content.

Bytewax resumes at the lowest frontier of the newest execution's workers, and reads of each key the newest snapshot
below it. Bytewax checks that no partition is missing, and that none has collected past that epoch. Bytewax does not
notice:

- a partition that is an older copy, or was copied without its -wal file. Nothing in the partition shows that; but a
  partition with anything of the newest epoch, or of a later one, was present when the epoch was counted;
- snapshots of epochs that were abandoned: an execution wrote them and was killed before it counted the epoch, and the
next execution, which began at the same epoch, did not write these keys;
- partitions of two dataflows, two files of one partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from recovery.base.wording import counted
from recovery.errors import (
    CorruptPartitionError,
    DuplicatePartitionError,
    EpochNotHeldError,
    ForeignPartitionError,
    InconsistentPartitionsError,
    MissingPartitionsError,
)

ASSERTED = "--no-older-copies"


@dataclass(frozen=True, slots=True)
class TheirExecution:
    """One run of the dataflow. resume_epoch: the first epoch that it computed. begun: UTC, as sortable text, in whole
    seconds."""

    number: int
    workers: int
    resume_epoch: int
    begun: str


@dataclass(frozen=True, slots=True)
class TheirPartition:
    """The description of one partition. frontiers: by execution and worker, the epoch that the worker had reached.
    collected: the epoch up to which superseded snapshots are gone. snapshots: when the last new row of each epoch was
    written, as sortable text. flows: the dataflows whose steps it has."""

    path: Path
    index: int
    count: int
    executions: tuple[TheirExecution, ...] = ()
    frontiers: Mapping[tuple[int, int], int] | None = None
    collected: int | None = None
    snapshots: Mapping[int, str] | None = None
    flows: frozenset[str] = frozenset()


class Written(Enum):
    """Which execution wrote a snapshot: the one that counted its epoch, an abandoned one, or one of the two, since both
    ran in the same second."""

    COUNTED = 1
    ABANDONED = 2
    UNCLEAR = 3


@dataclass(frozen=True, slots=True)
class TheirPosition:
    """Where Bytewax would resume. epoch: the first epoch that is not in the state. quiet: partitions that have nothing
    of the newest epoch, and of which the caller says that they are no older copies."""

    flow: str
    epoch: int
    executions: tuple[TheirExecution, ...]
    quiet: tuple[Path, ...] = ()

    def written(self, epoch: int, created: str) -> Written:
        """Return which execution wrote a snapshot of this epoch for the first time."""
        owner = _owner(self.executions, epoch)
        if owner is None or owner is self.executions[0] or created > owner.begun:
            return Written.COUNTED
        return Written.ABANDONED if created < owner.begun else Written.UNCLEAR


def their_position(found: Sequence[TheirPartition], directory: Path, *, no_older_copies: bool = False) -> TheirPosition:
    """Return where Bytewax would resume. no_older_copies: the caller says that no partition is an older copy.

    Raises DuplicatePartitionError, MissingPartitionsError, InconsistentPartitionsError, ForeignPartitionError,
    EpochNotHeldError or CorruptPartitionError; each names the partition.
    """
    _check_complete(found, directory)
    flows = sorted({flow for each in found for flow in each.flows})
    if len(flows) > 1:
        raise ForeignPartitionError(
            f"it holds the state of several dataflows: {', '.join(flows)}",
            path=directory,
            cause="Two dataflows ran on one recovery directory.",
            remedy="Nothing can be taken over from it: each dataflow counts the other's epochs as its own.",
        )
    executions = _executions(found)
    if not executions or not flows:
        raise EpochNotHeldError(
            "no execution of it has counted an epoch with state",
            path=directory,
            cause="No dataflow with state ran on the directory; or its files were copied without their -wal files.",
            remedy="Begin with new partitions: python -m recovery init DIR N",
        )
    epoch = _resume_epoch(executions[-1], found)
    _check_collected(found, epoch, directory)
    quiet = [each for each in found if _reaches(each, executions) < epoch - 1]
    if quiet and not no_older_copies:
        raise _quiet(quiet, executions, epoch, directory)
    return TheirPosition(flows[0], epoch, executions, tuple(each.path for each in quiet))


def _check_complete(found: Sequence[TheirPartition], directory: Path) -> None:
    by_index: dict[int, TheirPartition] = {}
    for each in found:
        other = by_index.setdefault(each.index, each)
        if other is not each:
            raise DuplicatePartitionError(
                f"{other.path.name} and {each.path.name} are both partition {each.index}", path=directory
            )
        if each.count != found[0].count:
            raise InconsistentPartitionsError(
                f"{found[0].path.name} is one of {found[0].count} partitions, {each.path.name} one of {each.count}",
                path=directory,
                cause="Files of two recovery directories were mixed.",
                remedy="Put the files of one directory together.",
            )
    missing = [index for index in range(found[0].count) if index not in by_index]
    if missing:
        raise MissingPartitionsError(
            f"of {found[0].count} partitions {counted(len(missing), 'is', 'are')} missing: "
            f"{', '.join(map(str, missing[:8]))}",
            path=directory,
            remedy="Put all of Bytewax's partitions together in one directory.",
        )


def _executions(found: Sequence[TheirPartition]) -> tuple[TheirExecution, ...]:
    known: dict[int, tuple[TheirExecution, Path]] = {}
    for partition in found:
        for each in partition.executions:
            _, path = known.setdefault(each.number, (each, partition.path))
            if path != partition.path:
                raise InconsistentPartitionsError(
                    f"{path.name} and {partition.path.name} both have an execution {each.number}",
                    cause="Files of two recovery directories were mixed.",
                    remedy="Put the files of one directory together.",
                )
            if each.workers < 1 or each.resume_epoch < 0:
                raise CorruptPartitionError(f"execution {each.number} is impossible", path=partition.path)
    return tuple(known[number][0] for number in sorted(known))


def _resume_epoch(newest: TheirExecution, found: Sequence[TheirPartition]) -> int:
    """Return the lowest frontier of the workers. A worker that has not counted any epoch is where the execution
    began."""
    reached: dict[int, int] = {}
    for partition in found:
        for (execution, worker), frontier in (partition.frontiers or {}).items():
            if execution == newest.number:
                reached[worker] = max(frontier, reached.get(worker, newest.resume_epoch))
    counting = [max(frontier, newest.resume_epoch) for frontier in reached.values()]
    return min(counting) if len(counting) >= newest.workers else newest.resume_epoch


def _check_collected(found: Sequence[TheirPartition], epoch: int, directory: Path) -> None:
    past = [each for each in found if each.collected is not None and each.collected >= epoch]
    if past:
        names = ", ".join(each.path.name for each in past)
        raise InconsistentPartitionsError(
            f"the newest epoch that all partitions reached is {epoch - 1}, and {names} "
            f"{'has' if len(past) == 1 else 'have'} discarded what is needed for it",
            path=directory,
            cause="Another partition is an older copy, or was copied without its -wal file.",
            remedy="Put the newer file of that partition into the directory.",
        )


def _reaches(partition: TheirPartition, executions: Sequence[TheirExecution]) -> int:
    """Return the newest epoch that the partition is known to have seen: it has a snapshot of it, has collected up to
    it, or has counted it for a worker. Snapshots of abandoned epochs do not count."""
    seen = [
        epoch
        for epoch, written in (partition.snapshots or {}).items()
        if (owner := _owner(executions, epoch)) is not None and written >= owner.begun
    ]
    counted_before = [frontier - 1 for frontier in (partition.frontiers or {}).values()]
    begun_at = [each.resume_epoch - 1 for each in partition.executions]
    return max([0, partition.collected or 0, *seen, *counted_before, *begun_at])


def _owner(executions: Iterable[TheirExecution], epoch: int) -> TheirExecution | None:
    """Return the execution that counted this epoch: the latest that began at it or before."""
    return next((each for each in reversed(tuple(executions)) if each.resume_epoch <= epoch), None)


def _quiet(
    quiet: Sequence[TheirPartition], executions: Sequence[TheirExecution], epoch: int, directory: Path
) -> InconsistentPartitionsError:
    first = quiet[0]
    others = f", nor have {counted(len(quiet) - 1, 'other partition')}" if len(quiet) > 1 else ""
    since = _reaches(first, executions) + 1
    which = f"epoch {since}" if since == epoch - 1 else f"the epochs {since} to {epoch - 1}"
    return InconsistentPartitionsError(
        f"Bytewax would resume after epoch {epoch - 1}, and {first.path.name} has nothing of {which}{others}",
        path=directory,
        cause="The file is an older copy, or was copied without its -wal file; then Bytewax resumes with state "
        "that is too "
        "old, and does not notice. Or no key in the partition changed in that time.",
        remedy="Put the newest file into the directory, with its -wal file. If you know that every file is the "
        "newest: either let "
        "Bytewax go on to the end of its input, where it writes every key, or give " + ASSERTED + ".",
    )
