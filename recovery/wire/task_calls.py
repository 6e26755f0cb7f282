"""The owner's end of a task's connection: its calls, read, done and answered.

A call that works on files has a turn (`recovery.wire.turns`). A call that waits for its client holds no lock and no
turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from recovery.base.ids import BatchId, PartitionIndex, StepId
from recovery.errors import RecoveryError
from recovery.storage.seam import BatchCount, Changes, TaskStore
from recovery.wire import messages
from recovery.wire.answers import Answers, disk_errors
from recovery.wire.declared import Verb, encode
from recovery.wire.frames import MESSAGE_BYTES, VALUE_BYTES, Kind, WireError
from recovery.wire.rows import RowsUnderWay
from recovery.wire.service import Aside, Tasks
from recovery.wire.turns import Turns

FIRST_KEYS = 256
"""Keys of a step that are read before the size of its states is known."""
MOST_KEYS = 4096
"""Keys that are read at a time."""


class TaskConnection(messages.TaskCalls):
    """The calls of one connection of a task."""

    def __init__(
        self, answers: Answers, tasks: Tasks, turns: Turns, explain: messages.Explain, log: Callable[[str], None]
    ) -> None:
        """explain, log: see `messages.as_typed`."""
        self.tasks = tasks
        self._answers = answers
        self._turns = turns
        self._explain = explain
        self._log = log
        self._rows = RowsUnderWay()

    def end(self) -> None:
        """End a read that spans several calls."""
        self._rows.end()

    def serve_call(self) -> None:
        """See `Answers.serve_call`."""
        self._answers.serve_call(messages.TASK_CALLS, MESSAGE_BYTES, self._execute, self._explain, self._log)

    def _execute(self, verb: Verb, arguments: tuple[Any, ...]) -> Any:
        return getattr(self, verb.name)(*arguments)

    def withdraw(self, step: StepId, batch: BatchId, partitions: tuple[PartitionIndex, ...], attempt: int) -> None:
        """See `TaskCalls.withdraw`."""
        self._own(partitions)
        with self._store(attempt) as store:
            store.withdraw(step, batch, partitions)

    def due(
        self, step: StepId, batch: BatchId, partitions: tuple[PartitionIndex, ...], up_to_ms: int
    ) -> dict[PartitionIndex, list[str]]:
        """See `TaskCalls.due`."""
        self._own(partitions)
        with self._store() as store:
            return store.due(step, batch, partitions, up_to_ms)

    def gathered(self, step: StepId, batch: BatchId, note: bool) -> bool:
        """See `TaskCalls.gathered`."""
        with self._store() as store:
            return store.gathered(step, batch, note=note)

    def read(self, step: StepId, batch: BatchId, wanted: dict[PartitionIndex, tuple[str, ...]]) -> int:
        """See `TaskCalls.read`. Sends messages of about 8 MiB, so that neither side holds more; no turn is held while
        one is sent."""
        self._own(wanted)
        averages, sent = self._turns.average_bytes, 0
        left = list(wanted.items())
        while left:
            average = averages.get(step)
            most = FIRST_KEYS if average is None else max(1, min(MOST_KEYS, int(MESSAGE_BYTES / (average + 1))))
            some = _first_keys(left, most)
            with self._store() as store:
                found = store.read(step, batch, some)
                states = [state for partition in some for state in found[partition]]
                body = encode(states)
            if states:
                averages[step] = max(average or 0.0, len(body) / len(states))
            if len(body) > VALUE_BYTES:
                raise messages.too_large(len(body))
            sent += len(states)
            self._answers.put(Kind.STATES, body)
        return sent

    def rows(self, wanted: messages.Rows) -> bytes:
        """See `TaskCalls.rows`."""
        self._own((wanted.partition,))
        self._rows.begin(self.tasks.service.rows(wanted))
        return self.more()

    def more(self) -> bytes:
        """See `TaskCalls.more`. Between two calls the rows wait in their transaction, without a turn."""
        with self._turn():
            return self._rows.next()

    def apply(
        self, step: StepId, batch: BatchId, partitions: tuple[PartitionIndex, ...], count: BatchCount, attempt: int
    ) -> None:
        """See `TaskCalls.apply`."""
        self._own(partitions)
        with self.tasks.service.aside() as aside:
            end = self._put_aside(aside)
            if (
                len(end.messages) != len(partitions)
                or sum(end.messages) != aside.messages
                or end.size_bytes != aside.size_bytes
            ):
                raise WireError(
                    f"an apply ends after {aside.messages} messages of {aside.size_bytes} bytes, and says"
                    f" {sum(end.messages)} of {end.size_bytes}"
                )
            changes: dict[PartitionIndex, Iterable[Changes]] = {}
            begin = 0
            for partition, number in zip(partitions, end.messages, strict=True):
                changes[partition] = aside.changes(begin, begin + number)
                begin += number
            with self._store(attempt) as store:
                store.apply(step, batch, changes, count)

    def _put_aside(self, aside: Aside) -> messages.End:
        """Receive an apply to its end, even without space for it: the client reads an answer only after it has sent
        all."""
        failed: RecoveryError | None = None
        while True:
            kind, more, body = self._answers.channel.part(VALUE_BYTES)
            if kind == Kind.END and not more:
                break
            if kind != Kind.CHANGES:
                raise WireError(f"a message of kind {kind} within an apply")
            if failed is None:
                try:
                    aside.add(body, more)
                except RecoveryError as error:
                    failed = error
        if failed is not None:
            raise failed
        return messages.read_end(body)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for a turn, unless the client has gone meanwhile."""
        with self._answers.working(), self._turns.taken():
            if self._answers.cancelled or self._answers.channel.has_ended():
                raise ConnectionAbortedError("the client has gone")
            with disk_errors():
                yield

    @contextlib.contextmanager
    def _store(self, attempt: int = 0) -> Iterator[TaskStore]:
        """Wait for a turn, and yield a store for it. attempt: as in `reach`."""
        with self._turn(), self.tasks.service.store(attempt) as store:
            yield store

    def _own(self, partitions: Collection[PartitionIndex]) -> None:
        """Raise WireError unless all these partitions are here."""
        here = self.tasks.partitions
        if not all(index in here for index in partitions):
            raise WireError(f"partitions {sorted(partitions)[:3]} …, where only {sorted(here)[:3]} … are")


def _first_keys(left: list[tuple[PartitionIndex, tuple[str, ...]]], most: int) -> dict[PartitionIndex, tuple[str, ...]]:
    """Take the first `most` keys, at least one, out of `left`; return them by partition."""
    found: dict[PartitionIndex, tuple[str, ...]] = {}
    while left and most > 0:
        partition, keys = left.pop(0)
        found[partition] = keys[:most]
        if len(keys) > most:
            left.insert(0, (partition, keys[most:]))
        most -= len(keys)
    return found
