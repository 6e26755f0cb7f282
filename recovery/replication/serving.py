"""The shipping process: `python -m recovery.replication`, as `recovery.replication.process` starts it.

The process gets everything on its standard input, the address included, so that neither its arguments nor its
environment show a secret. The process ends when its standard input does, even while it ships: when the driver ends.
What the process was shipping then does not count, and the next run ships that epoch.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from secrets import token_hex

import msgspec

from recovery.backup.conditional import open_documents
from recovery.backup.lease import Claimant, PublishingLease, claim
from recovery.backup.make import Parts
from recovery.backup.manifest import backup_id
from recovery.backup.spread import SpreadParts, parts_of
from recovery.base.clock import SystemClock
from recovery.errors import BackupTargetError, RecoveryError, StaleDirectoryError
from recovery.host.children import lines_of, tell_parent
from recovery.host.durable import PRIVATE
from recovery.places.mounted import limited
from recovery.places.opening import open_place
from recovery.places.secrets import shown_address
from recovery.planning.backups import parse_keep
from recovery.replication.messages import Answer, ReplicationTask, Ship, problem_of
from recovery.replication.shipper import PASSING, Shipper, note_problem
from recovery.replication.unseen import end_unseen, read_unseen
from recovery.storage.store import OwnerAccess, Store

NICENESS = 10
LOOK_S = 10.0
"""How long a shipping tries to reach an owner."""


def main() -> int:
    """Ship until the standard input ends."""
    # Ctrl-C and a service's stop reach all processes. The driver then closes its last epoch, which is to be shipped.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    given = sys.stdin.buffer.readline()
    if not given:
        return 0
    task = msgspec.json.decode(given, type=ReplicationTask)
    if not task.sync:
        os.nice(NICENESS)
    asked = lines_of(task.driver)
    fence = None
    try:
        fence = _Fence(task)
        fence.shipper.look(task.store_id)
        fence.check()
        wrong = fence.elsewhere()
        _print(Answer(lacks=fence.lost) if wrong is None else Answer(problem_of(wrong, passes=False)))
    except RecoveryError as error:
        if isinstance(error, PASSING):
            # A run that is refused leaves its directory as it was.
            note_problem(Path(task.directory), shown_address(task.destination), SystemClock(), error)
        _print(_failed(error))
        if fence is None:
            return error.exit_code
    while True:
        wanted = msgspec.json.decode(asked.get(), type=Ship)
        _print(_answer(fence, wanted))


def _parts(task: ReplicationTask) -> Parts:
    """Return the partitions of the run."""
    token_file, tls_ca = (None if path is None else Path(path) for path in (task.token_file, task.tls_ca))
    owners = OwnerAccess(tuple(task.owners), token_file, tls_ca).connect(LOOK_S)
    return parts_of(Store(Path(task.directory), owners), task.destination)


class _Fence:
    """Ships under the lease of the store, which is claimed when the place is first reached.

    lost: what the place has and the directory lacks, a sentence, if the run continues nevertheless.
    """

    def __init__(self, task: ReplicationTask) -> None:
        self._task = task
        self._lease: PublishingLease | None = None
        self._has_all = False
        self.lost: str | None = None
        self._target = limited(open_place(task.destination))
        self._parts = _parts(task)
        self.shipper = Shipper(
            Path(task.directory), self._target, clock=SystemClock(), random_id=lambda: token_hex(4),
            keep=[parse_keep(text) for text in task.keep], scratch=Path(task.scratch), fence=self.check,
            parts=self._parts,
        )  # fmt: skip

    def check(self) -> int:
        """Check that this run is still the store's writer, and return its term. Raises what `claim` and
        `PublishingLease.check` raise, and StaleDirectoryError."""
        lease = self._claimed()
        lease.check()
        return lease.term.term

    def elsewhere(self) -> BackupTargetError | None:
        """Return the error for an owner that the same address leads to another place; None if there is none. Raises
        what an owner refuses with."""
        if not isinstance(self._parts, SpreadParts):
            return None
        now_ms = SystemClock().wall_ms()
        return self._parts.elsewhere(self._target, backup_id(now_ms, token_hex(4)), now_ms)

    def end(self, epoch: int) -> None:
        """Record that the run has ended after this epoch, and that everything is shipped."""
        self._claimed().end(epoch)

    def _claimed(self) -> PublishingLease:
        task = self._task
        if self._lease is None:
            claimant = Claimant(
                Path(task.directory), task.store_id, "run", task.driver, task.execution, task.sync,
                least=self.shipper.newest_term(),
            )  # fmt: skip
            documents = open_documents(task.destination, PRIVATE)
            lease = claim(
                documents, claimant, SystemClock(), lambda: token_hex(8), takeover=task.takeover,
                check=self._check_lost,
            )  # fmt: skip
            # Once more: from now on, who wrote before adds nothing.
            self._check_lost(self._has_all)
            end_unseen(Path(task.directory))
            self._lease = lease
        return self._lease

    def _check_lost(self, has_all: bool) -> None:
        """Raises StaleDirectoryError if the directory lacks what the place has. has_all: it took the store over."""
        task = self._task
        self._has_all = has_all
        unseen = read_unseen(Path(task.directory))
        if has_all or unseen is None:
            # Without the note an earlier process of this very run has looked, and may have shipped.
            return
        self.lost = self.shipper.lacks(task.executions, task.epoch)
        known, since = task.executions[: unseen.executions], task.executions[unseen.executions :]
        if self.lost is None and since:
            self.lost = self.shipper.lacks(known, unseen.epoch, since)
        if self.lost is not None and not task.lose_epochs:
            raise StaleDirectoryError(self.lost, path=shown_address(task.destination))


def _answer(fence: _Fence, wanted: Ship) -> Answer:
    try:
        if wanted.ends_after is not None:
            fence.end(wanted.ends_after)
            return Answer()
        done = fence.shipper.ship()
    except RecoveryError as error:
        return _failed(error)
    return Answer(
        epoch=done.newest.epoch,
        execution=done.newest.execution,
        stored_bytes=done.made.stored_bytes,
        whole=done.made.stored,
        pruning_problem=None if done.pruning_problem is None else done.pruning_problem.found,
    )


def _failed(error: RecoveryError) -> Answer:
    return Answer(problem_of(error, passes=isinstance(error, PASSING)))


def _print(message: Answer) -> None:
    tell_parent(msgspec.json.encode(message))
