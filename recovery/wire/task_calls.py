"""The owner's end of a task's connection: its calls, read, done and answered.

At most two calls per processor run at a time; all further calls wait for a turn. A call that waits for its client holds
no lock and no turn.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from recovery.base.ids import PartitionIndex
from recovery.errors import RecoveryError, StorageError
from recovery.storage.seam import Changes
from recovery.wire import messages
from recovery.wire.answers import Answers
from recovery.wire.frames import MESSAGE_BYTES, VALUE_BYTES, Kind, WireError
from recovery.wire.rows import RowsUnderWay
from recovery.wire.service import Aside, Tasks
from recovery.wire.traffic import CallTimes

CALLS_PER_PROCESSOR = 2
FIRST_KEYS = 256
"""Keys of a step that are read before the size of its states is known."""
MOST_KEYS = 4096
"""Keys that are read at a time."""


class Turns:
    """The turns that the connections of all tasks share."""

    def __init__(self) -> None:
        self.free = threading.BoundedSemaphore(CALLS_PER_PROCESSOR * (os.cpu_count() or 1))
        self.times = CallTimes()
        """From when a call asks for a turn until it gives the turn back."""
        self.waiting = 0
        """The number of calls that wait for a turn."""
        self._lock = threading.Lock()
        self.average_bytes: dict[str, float] = {}
        """Size of a state by step, as far as known: how many are read at a time."""

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for a turn, and have it until the block ends."""
        began_s = time.monotonic()
        self._count(1)
        try:
            self.free.acquire()
        finally:
            self._count(-1)
        try:
            yield
        finally:
            self.free.release()
            self.times.add(time.monotonic() - began_s)

    def _count(self, more: int) -> None:
        with self._lock:
            self.waiting += more


class TaskCalls:
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
        """Wait for a call and answer it. Raises OSError and WireError."""
        kind, body = self._answers.channel.message(MESSAGE_BYTES, idle=True)
        if kind != Kind.CALL:
            raise WireError(f"a message of kind {kind} instead of a call")
        call = messages.read_call(body)
        try:
            if isinstance(call, messages.Apply):
                self._apply(call)
            elif isinstance(call, messages.Read):
                self._read(call)
            elif isinstance(call, messages.Rows | messages.More):
                self._send_rows(call)
            else:
                self._answers.answer(self._simple(call))
        except (OSError, WireError):
            raise
        except Exception as error:
            with self._answers.working():
                typed = messages.as_typed(error, self._explain, self._log)
            self._answers.refuse(typed)

    def _simple(self, call: messages.AnyCall) -> Any:
        with self._turn(), self.tasks.service.store() as store:
            if isinstance(call, messages.Withdraw):
                return store.withdraw(call.step, call.batch, self._own(call.partitions))
            if isinstance(call, messages.Due):
                return store.due(call.step, call.batch, self._own(call.partitions), call.up_to_ms)
            assert isinstance(call, messages.Gathered)
            return store.gathered(call.step, call.batch, note=call.note)

    def _read(self, call: messages.Read) -> None:
        """Answer in messages of about 8 MiB, so that neither side holds more; no turn is held while one is sent."""
        self._own(call.wanted)
        averages, sent = self._turns.average_bytes, 0
        left = [(partition, keys) for partition, keys in call.wanted.items()]
        while left:
            average = averages.get(call.step)
            most = FIRST_KEYS if average is None else max(1, min(MOST_KEYS, int(MESSAGE_BYTES / (average + 1))))
            some = _first_keys(left, most)
            with self._turn(), self.tasks.service.store() as store:
                found = store.read(call.step, call.batch, some)
                states = [state for partition in some for state in found[partition]]
                body = messages.encode(states)
            if states:
                averages[call.step] = max(average or 0.0, len(body) / len(states))
            if len(body) > VALUE_BYTES:
                raise messages.too_large(len(body))
            sent += len(states)
            self._answers.put(Kind.STATES, body)
        self._answers.answer(sent)

    def _send_rows(self, call: messages.Rows | messages.More) -> None:
        """Answer with the next rows. Between two calls the rows wait in their transaction, without a turn."""
        if isinstance(call, messages.Rows):
            self._own((call.partition,))
            self._rows.begin(self.tasks.service.rows(call))
        with self._turn():
            body = self._rows.next()
        self._answers.send(Kind.ROWS, body)

    def _apply(self, call: messages.Apply) -> None:
        self._own(call.partitions)
        with self.tasks.service.aside() as aside:
            end = self._put_aside(aside)
            if (
                len(end.messages) != len(call.partitions)
                or sum(end.messages) != aside.messages
                or end.size_bytes != aside.size_bytes
            ):
                raise WireError(
                    f"an apply ends after {aside.messages} messages of {aside.size_bytes} bytes, and says"
                    f" {sum(end.messages)} of {end.size_bytes}"
                )
            changes: dict[PartitionIndex, Iterable[Changes]] = {}
            begin = 0
            for partition, number in zip(call.partitions, end.messages, strict=True):
                changes[partition] = aside.changes(begin, begin + number)
                begin += number
            with self._turn(), self.tasks.service.store() as store:
                store.apply(call.step, call.batch, changes, call.count)
        self._answers.answer(None)

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
            try:
                yield
            except OSError as error:
                # Not an error of the connection.
                raise StorageError(str(error)) from error

    def _own(self, partitions: Collection[PartitionIndex] | Mapping[PartitionIndex, Any]) -> Any:
        here = self.tasks.partitions
        if not all(index in here for index in partitions):
            raise WireError(f"partitions {sorted(partitions)[:3]} …, where only {sorted(here)[:3]} … are")
        return partitions


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
