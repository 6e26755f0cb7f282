"""What the driver of a run and its shipping process tell each other, one line of JSON each."""

from __future__ import annotations

from typing import Any

import msgspec

from recovery.errors import RecoveryError, StorageError, error_named


class ReplicationTask(msgspec.Struct, frozen=True):
    """What the process gets first, on its standard input. destination: an address, which may have credentials.
    scratch: where it makes files. keep: rules for older backups. execution: the number of the run's. sync: an epoch's
    output waits for it; if not, it gives way to the run. takeover: whether to take the store's lease from another
    writer. executions, epoch: those that had begun on the directory before the run, the oldest first, and its newest
    epoch then. lose_epochs: whether epochs that the place has besides may be lost. owners, token_file, tls_ca: who has
    partitions besides the directory, and how they are reached."""

    directory: str
    store_id: str
    destination: str
    scratch: str
    driver: int
    keep: list[str]
    execution: int
    sync: bool
    takeover: bool
    executions: list[str]
    epoch: int
    lose_epochs: bool
    owners: list[str] = []
    token_file: str | None = None
    tls_ca: str | None = None


class Ship(msgspec.Struct, frozen=True):
    """Ship the newest closed epoch. ends_after: the run has ended after this epoch, and everything is shipped; record
    that instead."""

    ends_after: int | None = None


class Problem(msgspec.Struct, frozen=True):
    """An error of the package. passes: whether it may be gone at the next attempt."""

    error: str
    found: str
    path: str | None
    cause: str
    remedy: str
    passes: bool

    def as_error(self) -> RecoveryError:
        """Return the error."""
        kind = error_named(self.error) or StorageError
        return kind(self.found, path=self.path, cause=self.cause, remedy=self.remedy)


class Answer(msgspec.Struct, frozen=True):
    """What the process answers: first whether the place can be used, then to each `Ship`. Without a problem the process
    has shipped the epoch. pruning_problem: why older backups could not be removed. lacks: what the place holds and the
    directory does not, and which is lost, a sentence."""

    problem: Problem | None = None
    epoch: int = 0
    execution: int = 0
    stored_bytes: int = 0
    whole: int = 0
    pruning_problem: str | None = None
    lacks: str | None = None


def problem_of(error: RecoveryError, *, passes: bool) -> Problem:
    """Return an error as a message."""
    facts: dict[str, Any] = error.as_json()
    del facts["exit_code"]
    return Problem(**facts, passes=passes)
