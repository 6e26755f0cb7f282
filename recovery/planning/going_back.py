"""What a start discards: epochs after a rewind, and snapshots that a shorter backup interval no longer keeps.

Pure functions of the plan. Nothing is discarded silently: a rewind lists what it discards and happens once for each
snapshot, and a backup interval shorter than the last run's needs a setting of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recovery.base.ids import NO_BATCH, NO_EPOCH, BatchId, Epoch, ExecutionNumber
from recovery.base.intervals import format_interval
from recovery.base.wording import counted, listed
from recovery.errors import ConfigurationError, HistoryLossError, RewindRepeatedError
from recovery.planning.resume import BEGINNING, Cut, ResumePlan, directory_of
from recovery.planning.values import ClosedEpoch, PartitionDescription

When = Callable[[int], str]
"""Formats a time, in milliseconds since 1970, for people."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """The epochs after the snapshot that a plan goes back to, up to the newest that all partitions hold.

    batches: the number of their micro-batches. closed_ms: when the first and the last of them were closed.
    """

    first: Epoch
    last: Epoch
    batches: int
    executions: tuple[ExecutionNumber, ...]
    closed_ms: tuple[int, int]

    def text(self, when: When) -> str:
        """Return what is lost as text for people."""
        epochs = f"epoch {self.first}" if self.first == self.last else f"epochs {self.first} to {self.last}"
        runs = f"execution{'s' * (len(self.executions) > 1)} {listed(self.executions)}"
        span = f"{when(self.closed_ms[0])} to {when(self.closed_ms[1])}" if self.first != self.last else (
            when(self.closed_ms[0])
        )  # fmt: skip
        return f"{epochs} of {runs}, closed {span}, with {counted(self.batches, 'micro-batch', 'micro-batches')}"

    def as_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        return {
            "first_epoch": self.first,
            "last_epoch": self.last,
            "batches": self.batches,
            "executions": list(self.executions),
            "first_closed_ms": self.closed_ms[0],
            "last_closed_ms": self.closed_ms[1],
        }


@dataclass(frozen=True, slots=True)
class Rewind:
    """A rewind that the user asked for: the snapshot it went back to, its execution and its time."""

    cut: Cut
    execution: int
    made_ms: int


def discarded(plan: ResumePlan) -> Discarded | None:
    """Return what a plan discards; None when it resumes from the newest snapshot that all partitions share."""
    newest, chosen = plan.window[-1], Epoch(plan.resume_epoch - 1)
    epochs = [each for each in plan.partitions[0].epochs if chosen < each.epoch <= newest]
    if not epochs:
        return None
    before = plan.snapshot.batch_id if plan.snapshot is not None else NO_BATCH
    return Discarded(
        first=epochs[0].epoch,
        last=epochs[-1].epoch,
        batches=BatchId(epochs[-1].batch_id - before),
        executions=tuple(sorted({each.execution.number for each in epochs})),
        closed_ms=(_first_closed_ms(plan, epochs[0]), _first_closed_ms(plan, epochs[-1])),
    )


def goes_back(plan: ResumePlan) -> bool:
    """Return whether any file holds epochs that a plan gives up, be it one that not all files hold."""
    return any(each.newest_epoch >= plan.resume_epoch for each in plan.partitions)


def given_up(plan: ResumePlan, when: When) -> str | None:
    """Return the epochs that a plan gives up in any file, as text; None: it gives up none."""
    gone = discarded(plan)
    if gone is not None:
        return gone.text(when)
    if not goes_back(plan):
        return None
    last = max(each.newest_epoch for each in plan.partitions)
    span = f"epoch {last}" if last == plan.resume_epoch else f"epochs {plan.resume_epoch} to {last}"
    return f"{span}, which not all partitions hold"


def cut_of(plan: ResumePlan) -> Cut:
    """Return the snapshot from which a plan resumes."""
    return BEGINNING if plan.snapshot is None else plan.snapshot.cut


def check_rewind(plan: ResumePlan, made: Sequence[Rewind], again: int | None, when: When) -> None:
    """Raise RewindRepeatedError for a rewind to a snapshot in `made`, unless `again` names its last execution.

    A plan that discards nothing is not a rewind.
    """
    gone = discarded(plan)
    if gone is None:
        return
    last = next((each for each in reversed(made) if each.cut == cut_of(plan)), None)
    if last is None or again == last.execution:
        return
    epoch = plan.resume_epoch - 1
    raise RewindRepeatedError(
        f"execution {last.execution} went back to {after_text(epoch)} already, {when(last.made_ms)}; to go back there "
        f"again would discard {gone.text(when)}",
        path=directory_of(plan.partitions),
        remedy="Remove --resume-after or --resume-epoch to continue from the latest snapshot, or give "
        f"--rewind-again {last.execution} as well (rewind_again={last.execution}) to discard these epochs.",
    )


def kept_interval_s(partitions: Sequence[PartitionDescription], given_s: float | None, default_s: float = 0.0) -> float:
    """Return a run's backup interval: `given_s`, or that of the last execution, or `default_s` without one."""
    if given_s is not None:
        return given_s
    runs = [each for d in partitions for each in d.executions]
    return max(runs, key=lambda each: each.number).backup_interval_s if runs else default_s


def check_history(plan: ResumePlan, given_s: float | None, when: When) -> None:
    """Raise HistoryLossError for a backup interval shorter than the last run's, if older snapshots are held."""
    kept_s = kept_interval_s(plan.partitions, None)
    if given_s is None or given_s >= kept_s or len(plan.window) < 2:
        return
    oldest = next((each for each in plan.partitions[0].epochs if each.epoch == plan.window[0]), None)
    since = f"closed {when(oldest.closed_ms)}" if oldest is not None else "the beginning"
    raise HistoryLossError(
        f"a backup interval of {format_interval(given_s)} discards snapshots that the last run kept for "
        f"{format_interval(kept_s)}: those {after_text(plan.window[0])} to {plan.window[-2]} (the oldest is {since}), "
        f"as far as they are older than {format_interval(given_s)}",
        path=directory_of(plan.partitions),
        remedy=f"Leave -b (backup_interval) out to keep them for {format_interval(kept_s)} as before, or give "
        "--discard-history (discard_history=True) to discard them.",
    )


def check_again(rewind_to: int | None, again: int | None) -> None:
    """Raise ConfigurationError for --rewind-again without a rewind."""
    if again is not None and rewind_to is None:
        raise ConfigurationError(
            f"--rewind-again {again} goes with --resume-after or --resume-epoch",
            cause="The option confirms a rewind, and does not name the snapshot.",
            remedy="Give --resume-after E as well.",
        )


def after_text(epoch: int) -> str:
    """Return the name of a snapshot that all outputs use."""
    return f"after epoch {epoch}" if epoch != NO_EPOCH else "before epoch 1"


def _first_closed_ms(plan: ResumePlan, closed: ClosedEpoch) -> int:
    """Return when the last partition closed the epoch: then the epoch was closed."""
    return max(each.closed_ms for d in plan.partitions for each in d.epochs if each.cut == closed.cut)
