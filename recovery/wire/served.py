"""What a server serves under one name: the runs and the tasks of one directory, and what is counted for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from recovery.base.printable import one_line
from recovery.errors import CorruptPartitionError, FileReplacedError, RecoveryError, StorageError, with_path
from recovery.wire import messages
from recovery.wire.proof import is_proof, new_nonce
from recovery.wire.service import Runs, Tasks
from recovery.wire.traffic import Repeats, ServerCounts
from recovery.wire.turns import TurnPool, Turns

MOST_EARLIER = 8
FILE_ERRORS = (StorageError, FileReplacedError, CorruptPartitionError)


class ProvenSession(Protocol):
    """A connection that has proved itself."""

    @property
    def tasks(self) -> Tasks | None:
        """What answers its task; None for a run or look."""
        ...

    def cancel(self) -> None:
        """End the connection, and wait until its running call has ended."""
        ...


class ServedDirectory:
    """One directory of a server."""

    def __init__(
        self,
        name: str = "",
        tasks: Tasks | None = None,
        *,
        runs: Runs | None = None,
        pool: TurnPool | None = None,
        explain: messages.Explain = lambda _: None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """name: by which clients choose the directory; a server of one directory needs none. runs: the handler of runs
        and looks; None: the server answers tasks only. pool: what it shares with other directories. explain: see
        `messages.as_typed`."""
        self.name = name
        self.incarnation = new_nonce()
        self.runs = runs
        self.explain = explain
        self.log = log
        self.turns = Turns(pool)
        self.counts = ServerCounts()
        self.proven: dict[str, ProvenSession] = {}
        """The connections that have proved themselves, by their names."""
        self._logged = {True: Repeats(), False: Repeats()}
        """The refusals of clients that have proved themselves, and of others, which keep no line of the first ones from
        the log."""
        self._tasks = tasks
        self._earlier: deque[Tasks] = deque(maxlen=MOST_EARLIER)
        """What served the tasks of runs that have ended: with those runs' keys, the tasks get an answer that they
        trust."""
        self._lock = threading.Lock()

    @property
    def tasks(self) -> Tasks | None:
        """What is needed to answer tasks; None while no run is active."""
        return self._tasks

    def serve_tasks(self, tasks: Tasks | None) -> None:
        """Serve the tasks of another execution, or of none. Returns when the connections of earlier tasks have
        ended."""
        with self._lock:
            if self._tasks not in (None, tasks):
                self._earlier.append(self._tasks)
            self._tasks = tasks
            others = [each for each in self.proven.values() if each.tasks not in (None, tasks)]
        for session in others:
            session.cancel()

    def key_of(self, found: messages.Proof, role: str, facts: tuple[str, ...]) -> bytes | None:
        """Return the key by which a task has proved itself: this run's, or an earlier one's; None if it has not."""
        with self._lock:
            keys = [each.key for each in (self._tasks, *self._earlier) if each is not None]
        return next((key for key in keys if is_proof(found.proof, key, role, *facts)), None)

    def admit(self, session: ProvenSession, line: str) -> ProvenSession | None:
        """Count a session as proven. Return the session of the same name, which the new one replaces. Raises
        ConnectionAbortedError if the run of a task has ended meanwhile."""
        with self._lock:
            if session.tasks is not None and session.tasks is not self._tasks:
                raise ConnectionAbortedError("the run has ended")
            replaced = self.proven.get(line)
            self.proven[line] = session
            return replaced

    def forget(self, session: ProvenSession, line: str | None) -> None:
        """Remove a session that has ended."""
        with self._lock:
            if line is not None and self.proven.get(line) is session:
                del self.proven[line]

    def refused(self, error: RecoveryError, peer: str, *, is_proven: bool) -> None:
        """Count an error that is sent to a client, and log it. is_proven: whether the client has proved itself."""
        self.counts.file_errors += isinstance(error, FILE_ERRORS)
        self.say_refused(with_path(error.found, error.path), peer, is_proven=is_proven)

    def say_refused(self, why: str, peer: str, *, is_proven: bool) -> None:
        """Log why a client was refused, unless the log has it already."""
        line = self._logged[is_proven](f"refused {peer}: {one_line(why)}")
        if line is not None:
            self.log(line)
