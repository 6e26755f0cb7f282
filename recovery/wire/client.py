"""The task's end of the connections: `OwnerTaskStore`, and the connections that a worker process keeps.

Every operation of a task may be repeated, so the client repeats a call whose connection breaks on a new one, until it
has not reached the owner for the address's deadline. The client never repeats a call that the owner refused.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TypeVar

from recovery.base.ids import BatchId, PartitionIndex, StepId
from recovery.errors import OwnerRefusedError, StorageError
from recovery.storage.seam import BatchCount, Changes, States
from recovery.wire import messages
from recovery.wire.address import OwnerAddress
from recovery.wire.declared import encode
from recovery.wire.frames import MESSAGE_BYTES, Channel, Kind, WireError
from recovery.wire.line import Line, RefusedError, answer, ask, next_message, put
from recovery.wire.messages import TASK_CALLS, TaskCalls

KEY_CHARS = MESSAGE_BYTES // 4 - 4096
"""Limit of the keys in one call, in characters: at most four bytes each."""

T = TypeVar("T")


class OwnerTaskStore:
    """A task's view of partitions that an owner on another host has open: a `TaskStore`."""

    def __init__(self, address: OwnerAddress, task_key: bytes, attempt: int = 0) -> None:
        """attempt: as in `reach`."""
        self._address = address
        self._task_key = task_key
        self._attempt = attempt
        self._looked_up = 0
        self._seam_s = 0.0

    def read(self, step: StepId, batch: BatchId, wanted: Mapping[PartitionIndex, tuple[str, ...]]) -> States:
        """See `TaskStore.read`."""
        with self._timed():
            found: States = {index: [] for index in wanted}
            for some in _in_calls(wanted):
                self._looked_up += sum(map(len, some.values()))
                states = iter(self._lines.call(partial(_read, step, batch, some)))
                for index, keys in some.items():
                    found[index] += islice(states, len(keys))
            return found

    def apply(
        self, step: StepId, batch: BatchId, changes: Mapping[PartitionIndex, Iterable[Changes]], count: BatchCount
    ) -> None:
        """See `TaskStore.apply`."""
        if not changes:
            return
        # Keep what can be read only once: the call may be repeated.
        kept = {index: tuple(chunks) if iter(chunks) is chunks else chunks for index, chunks in changes.items()}
        counted = count._replace(looked_up=count.looked_up + self._looked_up, seam_s=count.seam_s + self._seam_s)
        self._lines.call(partial(_apply, step, batch, kept, counted, self._attempt))
        self._looked_up, self._seam_s = 0, 0.0

    def withdraw(self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex]) -> None:
        """See `TaskStore.withdraw`."""
        given = step, batch, tuple(partitions), self._attempt
        self._lines.call(lambda channel: ask(channel, TASK_CALLS, TaskCalls.withdraw, *given))

    def due(
        self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex], up_to_ms: int
    ) -> dict[PartitionIndex, list[str]]:
        """See `TaskStore.due`."""
        there = tuple(partitions)
        with self._timed():
            return self._lines.call(
                lambda channel: ask(channel, TASK_CALLS, TaskCalls.due, step, batch, there, up_to_ms)
            )

    def gathered(self, step: StepId, batch: BatchId, *, note: bool) -> bool:
        """See `TaskStore.gathered`."""
        return self._lines.call(lambda channel: ask(channel, TASK_CALLS, TaskCalls.gathered, step, batch, note))

    def release(self) -> None:
        """See `TaskStore.release`. The process keeps its connection for the next task."""

    def traffic(self) -> tuple[int, int]:
        """Return the bytes on this process's idle connections to the owner, in both directions, and the calls."""
        return self._lines.traffic()

    @property
    def _lines(self) -> Lines:
        # Looked up for every call: the process may be a fork of the one that made this object.
        return _lines_to(self._address, self._task_key)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self._seam_s += time.monotonic() - began_s


def connect(address: OwnerAddress, task_key: bytes | None, attempt: int = 0) -> tuple[OwnerTaskStore, int]:
    """Return the store at an owner's address, and the number of partitions. Connects with the first call. attempt: as
    in `reach`."""
    if not task_key:
        raise OwnerRefusedError(
            f"the owner at {address.location} asks for the run's task key, and this task has none",
            cause="The step was declared by another version of this package.",
        )
    return OwnerTaskStore(address, task_key, attempt), address.partition_count


# The calls


def _read(
    step: StepId, batch: BatchId, wanted: Mapping[PartitionIndex, tuple[str, ...]], channel: Channel
) -> list[str | None]:
    verb = put(channel, TASK_CALLS, TaskCalls.read, step, batch, dict(wanted))
    channel.flush()
    found: list[str | None] = []
    while (message := next_message(channel))[0] == Kind.STATES:
        found += messages.read_states(message[1])
    number = answer(verb, message)
    if not number == len(found) == sum(map(len, wanted.values())):
        raise WireError(f"{len(found)} states instead of {sum(map(len, wanted.values()))}")
    return found


def _apply(
    step: StepId,
    batch: BatchId,
    changes: Mapping[PartitionIndex, Iterable[Changes]],
    count: BatchCount,
    attempt: int,
    channel: Channel,
) -> None:
    verb = put(channel, TASK_CALLS, TaskCalls.apply, step, batch, tuple(changes), count, attempt)
    numbers, size_bytes = [], 0
    for chunks in changes.values():
        number = 0
        for body in messages.changes_messages(_from_here(chunks)):
            channel.put(Kind.CHANGES, body)
            number += 1
            size_bytes += len(body)
        numbers.append(number)
    channel.send(Kind.END, encode(messages.End(tuple(numbers), size_bytes)))
    answer(verb, next_message(channel))


def _from_here(chunks: Iterable[Changes]) -> Iterator[Changes]:
    """Yield the chunks, and keep errors of this host's disk apart from errors of the connection."""
    try:
        yield from chunks
    except OSError as error:
        raise StorageError(str(error)) from error


def _in_calls(
    wanted: Mapping[PartitionIndex, tuple[str, ...]],
) -> Iterator[Mapping[PartitionIndex, tuple[str, ...]]]:
    """Yield parts of `wanted` that fit into a message each: normally all of it."""
    if sum(sum(map(len, keys)) for keys in wanted.values()) + 8 * sum(map(len, wanted.values())) <= KEY_CHARS:
        yield wanted
        return
    for index, keys in wanted.items():
        begin = 0
        while begin < len(keys) or not begin:
            if begin < len(keys) and len(keys[begin]) > KEY_CHARS:
                raise messages.too_large(len(keys[begin]), "key")
            end, chars = begin, 0
            while end < len(keys) and (end == begin or chars + len(keys[end]) + 8 <= KEY_CHARS):
                chars += len(keys[end]) + 8
                end += 1
            yield {index: keys[begin:end]}
            begin = end or 1


# The connections


class Lines:
    """This process's connections to one owner, each for one call at a time."""

    def __init__(self, address: OwnerAddress, task_key: bytes) -> None:
        self._address = address
        self._task_key = task_key
        self._lock = threading.Lock()
        self._idle: list[Line] = []

    def call(self, work: Callable[[Channel], T]) -> T:
        """Do `work` on a connection, again and again until it succeeds, is refused, or the deadline has passed."""
        line = self._take()
        try:
            result = line.call(work)
        except RefusedError as refused:
            self._give(line)
            raise messages.as_error(refused.refusal, self._address.location) from None
        except BaseException:
            line.drop()
            raise
        self._give(line)
        return result

    def traffic(self) -> tuple[int, int]:
        """See `OwnerTaskStore.traffic`."""
        with self._lock:
            channels = [line.channel for line in self._idle if line.channel is not None]
        return sum(each.sent_bytes + each.received_bytes for each in channels), sum(line.calls for line in self._idle)

    def _take(self) -> Line:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Line(self._address, self._task_key)

    def _give(self, line: Line) -> None:
        with self._lock:
            self._idle.append(line)


_all_lines: dict[tuple[OwnerAddress, bytes], Lines] = {}
_lock = threading.Lock()
MOST_ADDRESSES = 8
"""Owners that a process stays connected to: the owners of its newest runs."""


def _lines_to(address: OwnerAddress, task_key: bytes) -> Lines:
    with _lock:
        found = _all_lines.pop((address, task_key), None) or Lines(address, task_key)
        _all_lines[address, task_key] = found
        # Keep the connections to all owners of this run, and to the newest owners of earlier runs.
        others = [each for each in _all_lines if each[0].lease != address.lease]
        for each in others[: max(0, len(others) - MOST_ADDRESSES)]:
            del _all_lines[each]
        return found


def _forget() -> None:
    """Forget the parent's connections in a forked process: two processes that share one would read each other's
    answers."""
    global _lock
    _lock = threading.Lock()
    _all_lines.clear()


os.register_at_fork(after_in_child=_forget)
