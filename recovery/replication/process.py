"""The driver's side of replication: what is still to be shipped, and the process that ships it.

At most one shipping is under way. A shipping covers every epoch that was closed before it began, so of those that wait
only their number and the age of the oldest is kept, however long the place is away. After a failure the next attempt
follows after a pause, which grows.

The stream waits for nothing here, except with `sync`: then an epoch's output is shown when the epoch is shipped.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from recovery.base.clock import Clock
from recovery.base.wording import counted
from recovery.errors import BackupTargetError, RecoveryError, StorageError
from recovery.host.children import end, exit_text, own_module
from recovery.places.secrets import shown_address
from recovery.planning.replica import NO_LAG, NOTHING, ReplicaLag, ReplicaState, Shipped, pause_s
from recovery.replication.messages import Answer, ReplicationTask, Ship
from recovery.replication.shipper import note_problem
from recovery.replication.unseen import Unseen, begin_unseen
from recovery.storage.store import OwnerAccess

NO_OWNERS = OwnerAccess()
END_S = 30.0
"""How long the end of a run waits for the last epoch to be shipped."""
RECORD_S = 5.0
"""How long the run waits besides for the end of a shipping to be recorded."""
STOP_S = 2.0
"""How long to wait for the process to end by itself. What the process ships then does not count."""


class _Waiting(NamedTuple):
    """Closed epochs that are not shipped: how many, and when the oldest was closed, by the clock's elapsed time."""

    epochs: int = 0
    oldest_s: float | None = None

    def plus(self, later: _Waiting) -> _Waiting:
        oldest_s = later.oldest_s if self.oldest_s is None else self.oldest_s
        return _Waiting(self.epochs + later.epochs, oldest_s)


class Replication:
    """Ships the epochs of one run. Any thread may call it; `_thread` alone talks to the process."""

    def __init__(
        self,
        directory: Path,
        store_id: str,
        destination: str,
        scratch: Path,
        *,
        clock: Clock,
        keep: Sequence[str] = (),
        sync: bool = False,
        execution: int = 1,
        takeover: bool = False,
        began: Sequence[str] = (),
        epoch: int = 0,
        lose_epochs: bool = False,
        lag: ReplicaLag = NO_LAG,
        shipped: Shipped = NOTHING,
        access: OwnerAccess = NO_OWNERS,
        log: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        """Start the process; do not wait for it. execution: the number of the run's. takeover: take the store's lease
        from another writer: only `ready` starts the process then. began, epoch: the executions that have begun on the
        directory, the oldest first, and its newest epoch; lose_epochs: what the place has besides may be lost. lag,
        shipped: what the replica has and lacks by now. access: the owners of other partitions. Raises StorageError."""
        self.sync = sync
        self.on_change: Callable[[ReplicaState], None] = lambda _: None
        """Called when a problem begins, and when it is over; on a thread of this object."""
        self._destination = shown_address(destination)
        self._clock = clock
        self._log = log
        self.directory = directory
        self._task = ReplicationTask(
            str(directory), store_id, destination, str(scratch), os.getpid(), list(keep), execution, sync, takeover,
            list(began), epoch, lose_epochs, list(access.owners),
            *(None if path is None else str(path) for path in access[1:]),
        )  # fmt: skip
        begin_unseen(directory, Unseen(self._destination, len(began), epoch))
        self._changed = threading.Condition()
        self._closed = self._covered = 0
        self._under_way = _Waiting()
        # Of epochs that are dated ahead of this host's clock, only the time from now on is known.
        self._waiting = _Waiting(lag.epochs, clock.elapsed_s() - max(0.0, lag.seconds) if lag.epochs else None)
        self._shipped = shipped
        self._bytes = self._shippings = self._failures = self._in_a_row = 0
        self._error: RecoveryError | None = None
        self._refused: RecoveryError | None = None
        self._looked = False
        self._not_before_s = 0.0
        self._ending = self._ended = self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._work, name="replication", daemon=True)
        if not takeover:
            self._thread.start()

    # ---- what the run calls

    def ready(self, wait_s: float) -> None:
        """Wait until it is known whether the place can be used, or `wait_s` have passed. Call `ready` when the run is
        known to be able to begin, since a takeover stops the writer before. Raises the error if the place cannot be
        used; an error that may pass, or no answer, only with `sync`."""
        if self._thread.ident is None:
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._looked, wait_s)
            self._raise_if_refused()
            if self.sync and self._error is not None:
                raise self._error
            if self.sync and not self._looked:
                raise BackupTargetError(f"no answer for {wait_s:.0f} s", path=self._destination)

    def closed(self, epochs: int = 1) -> None:
        """Have everything shipped that is closed by now, `epochs` more than at the last call."""
        with self._changed:
            self._closed += 1
            if epochs:
                self._waiting = self._waiting.plus(_Waiting(epochs, self._clock.elapsed_s()))
            self._changed.notify_all()

    def wait(self, is_ending: Callable[[], bool], *, once: bool = False) -> None:
        """Wait until everything is shipped that is closed by now, however long it takes; once the run ends, `END_S`.

        once: only for the next attempt. Raises the error of a place that refuses, and BackupTargetError if it is not
        shipped.
        """
        until_s = None
        with self._changed:
            wanted, failures = self._closed, self._failures
            while self._covered < wanted:
                self._raise_if_refused()
                if once and self._failures > failures:
                    raise self._behind()
                if until_s is None and is_ending():
                    until_s = self._clock.elapsed_s() + END_S
                    self._not_before_s = 0.0
                    self._changed.notify_all()
                if self._stopped or (until_s is not None and self._clock.elapsed_s() >= until_s):
                    raise self._behind()
                self._changed.wait(0.2)

    def say(self, text: str) -> None:
        """Tell the user. Whether anybody listens does not matter."""
        with contextlib.suppress(OSError, ValueError):
            self._log(f"recovery: {text}")

    def check(self) -> None:
        """Raise the error of a place that refuses, if there is one by now."""
        with self._changed:
            self._raise_if_refused()

    @property
    def state(self) -> ReplicaState:
        """What the replica has and lacks now."""
        with self._changed:
            lacking = self._under_way.plus(self._waiting)
            age_s = 0.0 if lacking.oldest_s is None else max(0.0, self._clock.elapsed_s() - lacking.oldest_s)
            return ReplicaState(
                self._destination, self._shipped, ReplicaLag(lacking.epochs, age_s), self._bytes, self._shippings,
                self._failures, None if self._error is None else self._error.found,
            )  # fmt: skip

    def end(self) -> None:
        """Wait until the last epoch is shipped and that is recorded, at most `END_S`, or until an attempt has failed;
        then end the process. May be called again."""
        with self._changed:
            self._ending, self._not_before_s = True, 0.0
            failures = self._failures

            def is_over() -> bool:
                return self._ended or self._failures > failures or self._refused is not None or self._stopped

            self._changed.notify_all()
            self._changed.wait_for(lambda: self._covered == self._closed or is_over(), END_S)
            self._changed.wait_for(is_over, RECORD_S)
            lacks = self._covered < self._closed and self._refused is None
        self.stop()
        if lacks:
            # The process may have been ended before it could note anything.
            note_problem(self.directory, self._destination, self._clock, self._why_behind())

    def check_complete(self) -> None:
        """Raise BackupTargetError if an epoch is not shipped. After `end`."""
        lag = self.state.lag
        if lag.epochs:
            why = self._why_behind()
            raise BackupTargetError(
                f"at the end of the run, it lacks {counted(lag.epochs, 'closed epoch')}: {why.found}",
                path=self._destination,
                cause=why.cause,
                remedy="Nothing is lost while the recovery directory is there: the next run with --replicate ships "
                "them, or ship them now, by recovery backup --incremental.",
            )

    def stop(self) -> None:
        """End the process now. May be called again."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        process = self._process
        if process is not None:
            end(process, STOP_S)
        if self._thread.ident is not None:
            self._thread.join()

    # ---- the thread

    def _work(self) -> None:
        # The first answer says whether the place can be used, also if nothing is to be shipped yet.
        self._take(self._started(), first=True)
        while True:
            with self._changed:
                while not self._stopped and not self._is_due():
                    self._changed.wait(self._pause_s())
                if self._stopped:
                    return
                ends = self._covered == self._closed
                covers = self._closed
                self._under_way, self._waiting = self._under_way.plus(self._waiting), _Waiting()
            answer = self._ask(Ship(ends_after=self._shipped.epoch) if ends else Ship())
            if ends:
                # Whether it is recorded or not: everything is shipped.
                with self._changed:
                    self._ended = True
                    self._changed.notify_all()
            if ends or self._stopped:
                return
            self._take(answer, covers)

    def _is_due(self) -> bool:
        if self._refused is not None:
            return False
        return self._ending if self._covered == self._closed else self._pause_s() is None

    def _pause_s(self) -> float | None:
        """The seconds to wait before the next attempt; None: there is nothing to wait for."""
        left_s = self._not_before_s - self._clock.elapsed_s()
        return left_s if left_s > 0 and self._covered < self._closed else None

    def _take(self, answer: Answer | RecoveryError, covers: int = 0, *, first: bool = False) -> None:
        """Note what the process has answered."""
        with self._changed:
            before = self._error
            problem = answer if isinstance(answer, RecoveryError) else None
            if isinstance(answer, Answer) and answer.problem is not None:
                problem = answer.problem.as_error()
                if not answer.problem.passes:
                    self._refused = problem
            self._looked, self._error = True, problem
            if problem is not None:
                self._failures += 1
                self._in_a_row += 1
                self._not_before_s = self._clock.elapsed_s() + pause_s(self._in_a_row)
                self._waiting, self._under_way = self._under_way.plus(self._waiting), _Waiting()
            elif isinstance(answer, Answer) and not first:
                self._in_a_row, self._covered, self._under_way = 0, covers, _Waiting()
                self._shipped = Shipped(answer.epoch, answer.execution)  # type: ignore[arg-type]
                self._bytes += answer.stored_bytes
                self._shippings += 1
            self._changed.notify_all()
        if (before is None) != (problem is None):
            with contextlib.suppress(Exception):
                self.on_change(self.state)
        if isinstance(answer, Answer) and answer.lacks is not None:
            self.say(f"{self._destination}: {answer.lacks}; epochs that only this place has are lost")
        if isinstance(answer, Answer) and answer.pruning_problem is not None:
            self.say(f"older backups in {self._destination} could not be removed: {answer.pruning_problem}")

    def _ask(self, wanted: Ship) -> Answer | RecoveryError:
        """Have something done by the process. Starts the process again if it has ended."""
        process = self._process
        if process is None or process.poll() is not None:
            answer = self._started()
            if isinstance(answer, RecoveryError) or answer.problem is not None:
                return answer
            process = self._process
        assert process is not None
        return _answer(process, msgspec.json.encode(wanted))

    def _started(self) -> Answer | RecoveryError:
        """Start the process; return what it says of the place."""
        command, environment = own_module("recovery.replication")
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        except OSError as error:
            return StorageError(f"the shipping process cannot be started: {error}")
        self._process = process
        if self._stopped:
            end(process, STOP_S)
        return _answer(process, msgspec.json.encode(self._task))

    # ---- errors

    def _raise_if_refused(self) -> None:
        if self._refused is not None:
            raise self._refused

    def _why_behind(self) -> RecoveryError:
        """Return what keeps epochs from being shipped: also an owner, or this host's disk."""
        return self._error or BackupTargetError("no answer yet", path=self._destination)

    def _behind(self) -> BackupTargetError:
        why = self._why_behind()
        return BackupTargetError(
            f"the newest epoch is closed, but not shipped, so its output is not shown: {why.found}",
            path=self._destination,
            cause=why.cause,
            remedy="Run the same command again when the place can be reached: the run ships the epoch, then shows its "
            "output. "
            "Without --replicate-sync the run shows the output immediately.",
        )


def _answer(process: subprocess.Popen[bytes], line: bytes) -> Answer | RecoveryError:
    """Write a line to the process and return the process's answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    # It may have ended, or the run may have closed its input.
    with contextlib.suppress(OSError, ValueError):
        process.stdin.write(line + b"\n")
        process.stdin.flush()
    answer = process.stdout.readline()
    try:
        return msgspec.json.decode(answer, type=Answer)
    except (msgspec.DecodeError, msgspec.ValidationError):
        end(process, STOP_S)
        return StorageError(f"the shipping process ended ({exit_text(process.returncode)})")
