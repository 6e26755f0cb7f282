"""What a run does between two of its executions, and the settings with which the next one starts.

Tasks find partitions by addresses that their execution was planned with. So a run whose partitions change place ends
its execution as after a signal, does what is due while the run holds nothing, and starts again in the same Spark
session.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Protocol

from recovery.base.intervals import format_interval, parse_interval
from recovery.config import RecoveryConfig
from recovery.errors import OwnerUnreachableError
from recovery.spark.run.reporting.events import RunSummary


class Between(Protocol):
    """What is done between two executions. `str()` says what, as a sentence for the user's terminal."""

    def __call__(self, config: RecoveryConfig, stopping: threading.Event) -> RecoveryConfig:
        """Do it, and return the settings of the next execution. The run holds no directory and no owner meanwhile.

        config: the settings that the next execution has otherwise. stopping: set when a signal has come; return soon
        then, because no further execution starts. Raises what ends the run.
        """
        ...

    def drop(self, error: BaseException | None) -> None:
        """Let go of what it holds: it will not be done. error: what ended the execution; None: a signal has."""
        ...


class OwnerLost:
    """What is done after the loss of an owner: the next start waits for the owner, and replaces it after a while."""

    def __init__(self, error: OwnerUnreachableError, wait_s: float) -> None:
        self.error = error
        self._wait_s = wait_s

    def __call__(self, config: RecoveryConfig, stopping: threading.Event) -> RecoveryConfig:
        """Return the settings: a start does all of this."""
        return config

    def drop(self, error: BaseException | None) -> None:
        """Do nothing: there is nothing to let go of."""

    def __str__(self) -> str:
        limit = format_interval(self._wait_s)
        return f"{self.error.found}; its partitions come back at other owners if it is away for {limit}"


def after_loss(
    error: OwnerUnreachableError, config: RecoveryConfig, summary: RunSummary, before: Between | None
) -> OwnerLost:
    """Return how a run goes on that has lost an owner. summary: of the execution that ended by it. before: what was
    done before that execution. Raises `error` if the settings say no place, and if the run makes no progress: the
    execution before ended in the same way, and this one has closed no epoch."""
    if config.replace_from is None:
        raise error
    if isinstance(before, OwnerLost) and not summary.epochs:
        error.cause = f"This loss follows another one, and no epoch was closed in between: {before.error.found}"
        error.remedy = (
            "Run the same command again: partitions that have come back stay where they are, and those of the owner "
            "that is lost now come back too. Name further owners if too few are left."
        )
        raise error
    return OwnerLost(error, parse_interval(config.replace_after))


def settings_of_next(config: RecoveryConfig, summary: RunSummary) -> RecoveryConfig:
    """Return the settings of a further execution: without what was asked for the first one alone. summary: of the
    execution that has ended; until it has closed an epoch, the loss of input is not recorded."""
    return replace(
        config,
        discard_history=False,
        resume_after=None,
        resume_epoch=None,
        rewind_again=None,
        drop_steps=(),
        rename_steps={},
        takeover=False,
        lose_epochs=False,
        lose_input=() if summary.epochs else config.lose_input,
    )


def added_up(before: RunSummary | None, last: RunSummary) -> RunSummary:
    """Return the summary of a run of several executions. before: of all earlier ones; None: there was none."""
    if before is None:
        return last
    exceeded = {each["target"]: each for each in (*before.exceeded, *last.exceeded)}
    return replace(
        last,
        resume_epoch=before.resume_epoch,
        resume_after=before.resume_after,
        last_epoch=max(before.last_epoch, last.last_epoch),
        epochs=before.epochs + last.epochs,
        batches=before.batches + last.batches,
        rows=before.rows + last.rows,
        states=before.states + last.states,
        snapshot_s=before.snapshot_s + last.snapshot_s,
        elapsed_s=before.elapsed_s + last.elapsed_s,
        exceeded=list(exceeded.values()),
        discarded=before.discarded,
        lost_input={**before.lost_input, **last.lost_input},
        replaced=[*before.replaced, *last.replaced],
    )
