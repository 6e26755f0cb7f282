"""The rewinds that executions made: a document in the recovery directory, which no rewind takes back.

A rewind is recorded after its execution began and before that execution can close an epoch. A run that is killed in
between has closed nothing, so the next run with the same option discards nothing and records the rewind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recovery.base.clock import Clock
from recovery.base.ids import BatchId, Epoch
from recovery.base.wording import moment_text
from recovery.config import RecoveryConfig, given_backup_interval_s
from recovery.operational.backends.backend import Backend, DirectoryBackend, Document
from recovery.operational.backends.retry import RetryPolicy
from recovery.planning.going_back import Rewind, check_again, check_history, check_rewind, cut_of
from recovery.planning.resume import ResumePlan

DOCUMENT = "rewinds"
KEPT = 1000


def check_start(plan: ResumePlan, config: RecoveryConfig, clock: Clock, kept: Backend | None = None) -> None:
    """Refuse a start that would discard history that nobody asked to discard; changes nothing.

    kept: the operational state that lies with the partitions; by default that of the directory.
    Raises RewindRepeatedError, HistoryLossError, ConfigurationError.
    """
    check_again(config.rewind_to, config.rewind_again)
    if config.rewind_to is not None:
        check_rewind(plan, _rewinds(kept or _backend(config.path, clock)), config.rewind_again, moment_text)
    if not config.discard_history:
        check_history(plan, given_backup_interval_s(config), moment_text)


def note_start(plan: ResumePlan, config: RecoveryConfig, clock: Clock, kept: Backend | None = None) -> None:
    """Record the rewind that this plan's execution was asked for, if any, even if it discarded nothing. kept: as for
    `check_start`."""
    if config.rewind_to is not None:
        made = Rewind(cut_of(plan), plan.execution_number, clock.wall_ms())
        note_rewind(kept or _backend(config.path, clock), made)


def read_rewinds(directory: Path, clock: Clock) -> list[Rewind]:
    """Return the rewinds that were made, oldest first. Raises CorruptPartitionError."""
    return _rewinds(_backend(directory, clock))


def _backend(directory: Path, clock: Clock) -> Backend:
    return DirectoryBackend(directory, clock, RetryPolicy())


def _rewinds(kept: Backend) -> list[Rewind]:
    return _parsed(kept.read([DOCUMENT]).get(DOCUMENT))


def note_rewind(kept: Backend, rewind: Rewind) -> None:
    """Record a rewind; durable when it returns. Raises StateLockedError, StorageError, CorruptPartitionError."""

    def change(document: Document | None) -> dict[str, Any]:
        made = [*_parsed(document), rewind][-KEPT:]
        return {"rewinds": [[*each.cut, each.execution, each.made_ms] for each in made]}

    kept.update({DOCUMENT: change})


def _parsed(document: Document | None) -> list[Rewind]:
    """Return the well-formed rewinds; entries that another program wrote are ignored."""
    content = document.content if document is not None else None
    entries = content.get("rewinds") if isinstance(content, dict) else None
    kinds = [int, str, int, int, int]
    return [
        Rewind((Epoch(entry[0]), entry[1], BatchId(entry[2])), entry[3], entry[4])
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, list) and [type(part) for part in entry] == kinds
    ]
