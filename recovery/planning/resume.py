"""Where a run resumes: a pure function of the partitions' descriptions.

A run can resume from an epoch that *every* partition holds, closed by the same execution after the same micro-batch.
An older copy of one file therefore takes all partitions back to an epoch that they share. If the other partitions have
collected past that epoch, the plan fails and names the file. After a rewind the abandoned epochs have another execution
id, so they are never mistaken for those of the new timeline with equal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from recovery.base.ids import NO_BATCH, NO_EPOCH, BatchId, Epoch, ExecutionNumber
from recovery.base.intervals import format_interval
from recovery.base.wording import counted, listed
from recovery.errors import (
    EpochNotHeldError,
    FlowMismatchError,
    InconsistentPartitionsError,
    MissingPartitionsError,
    NoPartitionsError,
)
from recovery.planning.strays import file_name, strays
from recovery.planning.values import ClosedEpoch, Execution, FoundFile, PartitionDescription

Cut = tuple[Epoch, str, BatchId]
BEGINNING: Cut = (NO_EPOCH, "", NO_BATCH)


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """One file's role in the plan. behind: the number of epochs by which it is older than the newest file."""

    path: Path
    newest: Epoch
    oldest: Epoch
    behind: int
    limits: bool
    note: str


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """Where the next execution starts, and why.

    snapshot: the epoch whose state it starts with; None: the beginning. window: the epochs after which a run can
    resume, oldest first; 0 is the beginning. cuts: the snapshots of these epochs, which every partition holds.
    """

    partitions: tuple[PartitionDescription, ...]
    resume_epoch: Epoch
    snapshot: ClosedEpoch | None
    execution_number: ExecutionNumber
    window: tuple[Epoch, ...]
    verdicts: tuple[FileVerdict, ...]
    cuts: frozenset[Cut]

    @property
    def last_clock(self) -> tuple[int, int | None]:
        """The recovery clock's newest reading in any file, and the latest wall time that any epoch implies for it.

        The machine's clock may have been behind when the newest epoch was closed. The newest epoch's wall time alone
        could make the time since then seem too long.
        """
        epochs = [closed for d in self.partitions for closed in d.epochs]
        if not epochs:
            return 0, None
        newest_ms = max(e.clock_ms for e in epochs)
        return newest_ms, newest_ms + max(e.closed_ms - e.clock_ms for e in epochs)

    @property
    def store_id(self) -> str:
        """The id of the store that all files belong to."""
        return self.partitions[0].store_id

    @property
    def held(self) -> tuple[str, Epoch] | None:
        """The id of the newest execution that any file knows, and the newest epoch that any file holds; None before the
        first execution."""
        began = {each.number: each.id for d in self.partitions for each in d.executions}
        return (began[max(began)], max(d.newest_epoch for d in self.partitions)) if began else None

    @property
    def flow_id(self) -> str | None:
        """The id of the flow that the store is bound to; None before its first execution."""
        return next((d.flow_id for d in self.partitions if d.flow_id is not None), None)


def plan_resume(
    found: Sequence[FoundFile], *, flow_id: str | None = None, shared: bool = False, resume_epoch: int | None = None
) -> ResumePlan:
    """Return the plan for the files of a directory. flow_id: the flow or pipeline about to run. shared: whether the
    directory may be bound to another flow or pipeline: the directory holds only marks, which pipelines share.
    resume_epoch: rewind to it.

    Raises the error of the first unreadable file, NoPartitionsError, ForeignPartitionError, DuplicatePartitionError,
    MissingPartitionsError, FlowMismatchError, InconsistentPartitionsError or EpochNotHeldError.
    """
    partitions = check_set(found)
    check_flow(partitions, None if shared else flow_id)
    cuts = common_cuts(partitions)
    if not cuts:
        raise inconsistent(partitions)
    chosen = latest = max(cuts)
    if resume_epoch is not None:
        chosen = _requested(cuts, resume_epoch, directory_of(partitions))
    pending = cut_off(partitions, cuts)
    newest = max(d.newest_epoch for d in partitions if d.path not in pending)
    numbers = [execution.number for d in partitions for execution in d.executions]
    return ResumePlan(
        partitions=partitions,
        resume_epoch=Epoch(chosen[0] + 1),
        snapshot=next((e for e in partitions[0].epochs if e.cut == chosen), None),
        execution_number=ExecutionNumber(max(numbers, default=0) + 1),
        window=tuple(sorted(cut[0] for cut in cuts)),
        verdicts=tuple(_verdict(d, chosen[0], latest[0], newest) for d in partitions),
        cuts=frozenset(cuts),
    )


def check_set(found: Sequence[FoundFile]) -> tuple[PartitionDescription, ...]:
    """Return the N partitions of one store, in order of their index: none missing, none twice, none foreign.

    Raises the error of the first unreadable file, NoPartitionsError, ForeignPartitionError, DuplicatePartitionError or
    MissingPartitionsError.
    """
    for file in found:
        if file.error is not None:
            raise file.error
    descriptions = [file.description for file in found if file.description is not None]
    if not descriptions:
        raise NoPartitionsError("no recovery partition was found")
    for error in strays(found).values():
        raise error
    count = descriptions[0].count
    missing = sorted(set(range(count)) - {d.index for d in descriptions})
    if missing:
        names = ", ".join(map(file_name, missing))
        raise MissingPartitionsError(
            f"{names} of {counted(count, 'partition')} missing", path=directory_of(descriptions)
        )
    return tuple(sorted(descriptions, key=lambda d: d.index))


def directory_of(partitions: Sequence[PartitionDescription]) -> Path | None:
    """Return the directory that has all partitions, which an error about the whole store names; None if the partitions
    are in several places: no single place has the fault."""
    parents = {d.path.parent for d in partitions}
    return parents.pop() if len(parents) == 1 else None


def name_in(partitions: Sequence[PartitionDescription], path: Path) -> str:
    """Return how an error about the whole store names one file: with its place if the partitions are in several."""
    return path.name if directory_of(partitions) is not None else str(path)


def common_cuts(partitions: Sequence[PartitionDescription]) -> set[Cut]:
    """Return the snapshots that every partition holds."""
    return set.intersection(*(cuts_of(d) for d in partitions))


def cuts_of(description: PartitionDescription) -> set[Cut]:
    """Return the snapshots that one partition holds."""
    cuts = {closed.cut for closed in description.epochs}
    if description.collected == NO_EPOCH:
        cuts.add(BEGINNING)
    return cuts


def cut_off(partitions: Sequence[PartitionDescription], shared: AbstractSet[Cut]) -> dict[Path, Execution]:
    """Return the files that an unfinished start did not reach, with its execution.

    The unfinished start was killed after it had abandoned, in other files, epochs that these files still hold. The next
    start completes it, so these files are not ahead of the rest, and the rest does not hold them back.
    """
    executions = [execution for d in partitions for execution in d.executions]
    last = max(executions, key=lambda e: e.number, default=None)
    if last is None or not shared or max(shared)[0] != last.resume_epoch - 1:
        return {}
    if any(d.newest is not None and d.newest.execution == last.lease for d in partitions):
        return {}
    return {d.path: last for d in partitions if last not in d.executions and d.newest_epoch >= last.resume_epoch}


def check_flow(partitions: Sequence[PartitionDescription], flow_id: str | None = None) -> None:
    """Raise FlowMismatchError if partitions of one store are bound to different flows, or to another one than this."""
    # Pipelines that share a directory bind it in turn. A file that an unfinished start did not reach, or an older copy,
    # is bound to an earlier one.
    newest = max(partitions, key=lambda d: max((execution.number for execution in d.executions), default=0))
    earlier = {d.path for d in partitions if d is not newest and _is_bound_earlier(d, newest)}
    bound = {d.flow_id: d.path for d in partitions if d.flow_id is not None and d.path not in earlier}
    if len(bound) > 1:
        named = ", ".join(f"{name_in(partitions, path)} of {flow!r}" for flow, path in bound.items())
        raise FlowMismatchError(f"files of several flows: {named}", path=directory_of(partitions))
    for flow in bound:
        if flow_id is not None and flow != flow_id:
            raise FlowMismatchError(
                f"the partitions hold the state of flow {flow!r}, not of {flow_id!r}", path=directory_of(partitions)
            )


def _is_bound_earlier(description: PartitionDescription, newest: PartitionDescription) -> bool:
    """Whether a file's last execution, which bound it, is one that the newest file knows too."""
    last = description.executions[-1] if description.executions else None
    return last is not None and last.flow_id == description.flow_id and last in newest.executions


def _requested(cuts: set[Cut], resume_epoch: int, directory: Path | None) -> Cut:
    for cut in cuts:
        if cut[0] == resume_epoch - 1:
            return cut
    held = sorted(cut[0] for cut in cuts)
    raise EpochNotHeldError(
        f"a run cannot resume at epoch {resume_epoch}, because not all partitions hold the snapshot after epoch "
        f"{resume_epoch - 1}. All hold the snapshots after epochs {listed(held)}, so a run can resume at epochs "
        f"{listed(e + 1 for e in held)}",
        path=directory,
    )


def too_old(partitions: Iterable[PartitionDescription]) -> list[PartitionDescription]:
    """Return the partitions whose newest epoch another one no longer holds. While a run closes epochs, those that were
    looked at first may seem to be."""
    known = list(partitions)
    collected = max((d.collected for d in known), default=NO_EPOCH)
    return [d for d in known if d.newest_epoch < collected]


def inconsistent(partitions: Sequence[PartitionDescription]) -> InconsistentPartitionsError:
    """Return an error that names the files too old for the rest, and by how much."""
    horizon = max(partitions, key=lambda d: d.collected)
    old = too_old(partitions)
    if not old:
        listed = "; ".join(f"{name_in(partitions, d.path)} holds epochs {_span(d)}" for d in partitions)
        return InconsistentPartitionsError(
            f"no epoch was closed by the same execution in every file: {listed}",
            path=directory_of(partitions),
            cause="Some files are from an abandoned timeline: copies taken before a rewind to an earlier epoch.",
            remedy="Replace them by copies taken after the rewind.",
        )
    needed = next((e for e in horizon.epochs if e.epoch == horizon.collected), None)
    parts = []
    for d in old:
        age = ""
        if needed is not None and d.newest is not None:
            age = f", {format_interval(max(0, needed.closed_ms - d.newest.closed_ms) / 1000)} too old"
        parts.append(f"{name_in(partitions, d.path)} ends at epoch {d.newest_epoch}{age}")
    return InconsistentPartitionsError(
        f"{'; '.join(parts)}; {name_in(partitions, horizon.path)} goes back no further than epoch {horizon.collected}",
        path=directory_of(partitions),
        remedy=f"Replace the old files by copies that hold epoch {horizon.collected} or a newer one, "
        "and choose a longer backup interval (-b).",
    )


def _span(description: PartitionDescription) -> str:
    if not description.epochs:
        return "none"
    first, last = description.epochs[0], description.epochs[-1]
    return f"{first.epoch} to {last.epoch} (last by execution {last.execution.number})"


def _verdict(description: PartitionDescription, chosen: Epoch, shared: Epoch, newest: Epoch) -> FileVerdict:
    behind = max(0, newest - description.newest_epoch)
    ahead = description.newest_epoch - chosen
    limits = newest > shared and description.newest_epoch == shared
    if limits:
        note = "holds back the other files: its newest epoch is the newest that all share"
    elif ahead > 0:
        why = "after the newest shared one" if chosen == shared else "from there on"
        note = f"{counted(ahead, 'epoch')} {why} will be abandoned"
    else:
        note = "current"
    return FileVerdict(description.path, description.newest_epoch, description.oldest_epoch, behind, limits, note)
