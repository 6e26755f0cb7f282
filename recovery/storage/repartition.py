"""Moving the rows of a store's partitions to another number of partitions, in streams.

The sources are only read, and no run uses them. Each new partition is written once, in the order of its keys, and
then read again as a whole. Memory holds some thousand rows, whatever the size.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

from recovery.base.ids import Epoch, PartitionIndex
from recovery.base.reserved import RESERVED_PREFIX
from recovery.errors import CorruptPartitionError
from recovery.host.open_files import allow_open_files
from recovery.planning.moving import WorkShare
from recovery.planning.values import PartitionDescription
from recovery.storage.sqlite.beginning import Beginning, read_beginning
from recovery.storage.sqlite.columns import MAX_PARTITIONS
from recovery.storage.sqlite.epoch_log import overlaid
from recovery.storage.sqlite.file.opening import partition_path
from recovery.storage.sqlite.file.reading import read_partition, reading
from recovery.storage.sqlite.file.statements import snapshot, translated
from recovery.storage.sqlite.transfer.draft_partition import DraftPartition, StoreRecord, can_attach
from recovery.storage.sqlite.transfer.tally import Rows, StepTally, Tally
from recovery.storage.sqlite.transfer.versions import Versions, check_complete
from recovery.storage.verify import PartitionCheck
from recovery.values.keys import home_of

__all__ = ["MAX_PARTITIONS", "NewStore", "Rows", "StepTally", "Tally", "move", "refuse_misplaced"]

Found = Generator[tuple[Any, ...], None, None]
"""Rows of one source, in order."""
Adds = Callable[[DraftPartition, list[tuple[Any, ...]]], None]

CACHE_BYTES = 12 << 20
"""The cache of all sources of one share together, and of all its targets."""
SMALLEST_CACHE_BYTES = 64 << 10
BUFFER_BYTES = 4 << 20
ROW_OVERHEAD_BYTES = 500
"""What a row takes in Python, besides its key and value."""
CHUNK_KEYS = 4096
MOST_COPIES = 8
"""With more partitions in a group, reading their rows once for each costs more than to look each row up."""
FILES_PER_SOURCE = 3
FILES_OF_OTHERS = 64


@dataclass(frozen=True, slots=True)
class NewStore:
    """The store that is being made: its id, when it is made, and its partitions, which are written into `draft`."""

    store_id: str
    created_ms: int
    count: int
    draft: Path


def move(
    held: Sequence[PartitionDescription],
    window: Sequence[Epoch],
    new: NewStore,
    share: WorkShare,
    observe: Callable[[int], None],
) -> tuple[Tally, Tally]:
    """Write the new partitions of a share. Return the tallies of the old partitions that the share counts, and of the
    rows that it wrote.

    held: all partitions, in the order of their indexes. window: the epochs that all of them hold, which are moved.
    observe: is called with the number of rows moved since its last call. Raises CorruptPartitionError or StorageError.
    """
    before, after = Tally(), Tally()
    allow_open_files(
        FILES_PER_SOURCE * len(share.sources) * (1 + len(share.targets)) + len(share.targets) + FILES_OF_OTHERS
    )
    drafts = {index: _draft(new, index, len(share.targets)) for index in share.targets}
    try:
        with contextlib.ExitStack() as opened:
            sources = {index: _open(opened, held[index], window, len(share.sources)) for index in share.sources}
            for index in share.counted:
                before.add(sources[index].tally())
            targets = Targets(drafts, new.count, share, observe)
            if can_attach(len(sources), len(drafts)) and all(each.is_plain for each in sources.values()):
                targets.attach([held[index].path for index in sources])
                few = new.count // share.groups <= MOST_COPIES
                (targets.copy if few else targets.pull)(list(sources.values()))
            else:
                targets.add([each.live() for each in sources.values()], key_at=1, add=DraftPartition.add_live)
            targets.add([each.earlier() for each in sources.values()], key_at=2, add=DraftPartition.add_earlier)
        if 0 in drafts:
            read_partition(held[0].path, lambda source: drafts[0].copy_documents(source, held[0].path))
        store = _record(held, window, new)
        for index, draft in drafts.items():
            after.add(draft.finish(PartitionIndex(index), store))
    except CorruptPartitionError as error:
        _name_damage([held[index].path for index in share.sources], error)
    finally:
        for draft in drafts.values():
            draft.abandon()
    return before, after


class Targets:
    """The new partitions of a share, and the rows that wait for them."""

    def __init__(
        self, drafts: Mapping[int, DraftPartition], count: int, share: WorkShare, observe: Callable[[int], None]
    ) -> None:
        self._drafts = drafts
        self._count = count
        self._share = share
        self._observe = observe

    def add(
        self,
        sources: Sequence[Found],
        *,
        key_at: int,
        add: Adds,
    ) -> None:
        """Write the rows of several sources, each in order, that belong to these partitions. key_at: the column of the
        key; the value is two columns behind it."""
        try:
            self._add(sources, key_at, add)
        except TypeError as error:
            # Two rows of one key cannot be put in order, or a value has no length.
            raise CorruptPartitionError(f"a row is not as a run writes it: {error}") from error
        finally:
            for each in sources:
                each.close()

    def _add(
        self,
        sources: Sequence[Found],
        key_at: int,
        add: Adds,
    ) -> None:
        buckets = self._buckets()
        count, step_at, value_at = self._count, key_at - 1, key_at + 2
        waiting = read = 0
        for row in sources[0] if len(sources) == 1 else heapq.merge(*sources):
            key, step = row[key_at], row[step_at]
            bucket = buckets[home_of(step, count, key) if step[:1] == RESERVED_PREFIX else crc32(key.encode()) % count]
            if bucket is None:
                continue
            read += 1
            bucket.append(row)
            waiting += len(row[value_at]) + len(key) + ROW_OVERHEAD_BYTES
            if waiting > BUFFER_BYTES:
                self._write(buckets, add)
                self._observe(read)
                waiting = read = 0
        self._write(buckets, add)
        self._observe(read)

    def attach(self, paths: Sequence[Path]) -> None:
        """Let `copy` and `pull` read from these sources, which are plain. The result of both calls is that of `add`."""
        for draft in self._drafts.values():
            draft.attach(paths, _cache_bytes(len(paths) * len(self._drafts)))

    def copy(self, sources: Sequence[Versions]) -> None:
        """Write the live rows without Python: each partition chooses its own among all of the sources. With few
        partitions this takes a third of the processor time of `add`."""
        for step in sorted({step for each in sources for step in each.steps()}):
            since: str | bytes = ""
            while isinstance(since, str):
                until = sources[0].key_behind(step, since, CHUNK_KEYS)
                self._observe(
                    sum(draft.copy(index, self._count, step, since, until) for index, draft in self._drafts.items())
                )
                since = until

    def pull(self, sources: Sequence[Versions]) -> None:
        """Write the live rows: only their keys come into Python. `pull` halves the processor time of `add`."""
        keys = [each.keys(number) for number, each in enumerate(sources)]
        buckets = self._buckets(lambda: [[] for _ in sources])
        count = self._count
        with contextlib.ExitStack() as opened:
            for each in keys:
                opened.enter_context(contextlib.closing(each))
            merged = keys[0] if len(keys) == 1 else heapq.merge(*keys)
            for step, found in itertools.groupby(merged, key=itemgetter(0)):
                reserved = step[:1] == RESERVED_PREFIX
                while chunk := list(itertools.islice(found, CHUNK_KEYS)):
                    for _, key, number in chunk:
                        bucket = buckets[home_of(step, count, key) if reserved else crc32(key.encode()) % count]
                        if bucket is not None:
                            bucket[number].append(key)
                    self._observe(self._pull(step, buckets))

    def _pull(self, step: str, buckets: list[Any]) -> int:
        """Write the rows whose keys wait; return their number."""
        total = 0
        for index, draft in self._drafts.items():
            for number, keys in enumerate(buckets[index]):
                if keys:
                    draft.pull(number, step, keys)
                    total += len(keys)
                    keys.clear()
        return total

    def _buckets(self, new: Callable[[], list[Any]] = list) -> list[Any]:
        """Return a list for each partition of this share, None for those of other shares of the group, and for
        partitions of other groups an object that refuses rows."""
        share = self._share
        misplaced = _Misplaced()
        return [
            new() if index in self._drafts else None if index % share.groups == share.remainder else misplaced
            for index in range(self._count)
        ]

    def _write(self, buckets: list[Any], add: Adds) -> None:
        for index, draft in self._drafts.items():
            if buckets[index]:
                add(draft, buckets[index])
                buckets[index].clear()


class _Misplaced:
    """Refuses rows: it stands in for a partition to which none of the rows can belong."""

    def __getitem__(self, number: int) -> _Misplaced:
        return self

    def append(self, row: tuple[Any, ...] | str) -> NoReturn:
        raise _misplaced(row if isinstance(row, str) else repr(row[:3]))


def refuse_misplaced(held: Sequence[PartitionDescription]) -> None:
    """Raise CorruptPartitionError for a live row in a partition that is not its own; `Targets.copy` passes it over."""
    for index, each in enumerate(held):
        with reading(each.path) as connection, translated(each.path):
            for step, key in connection.execute("SELECT step_id, state_key FROM snaps"):
                if home_of(step, len(held), key) != index:
                    raise _misplaced(key)


def _misplaced(row: str) -> CorruptPartitionError:
    return CorruptPartitionError(
        f"a row lies in a partition that is not its own: {row:.120}",
        cause="The file was edited from outside, or by a program that divides keys in another way.",
        remedy="Restore the partitions from a backup.",
    )


def _open(opened: contextlib.ExitStack, held: PartitionDescription, window: Sequence[Epoch], of: int) -> Versions:
    """Open a partition for reading, with what is logged, and check that no row is missing."""
    connection = opened.enter_context(reading(held.path))
    opened.enter_context(snapshot(connection))
    with translated(held.path):
        connection.pragma("cache_size", -(_cache_bytes(of) >> 10))
        check_complete(connection, held.path, held)
    opened.enter_context(overlaid(connection, held.path))
    return Versions(connection, held.path, held.newest_epoch, window[0], window[-1])


def _draft(new: NewStore, index: int, of: int) -> DraftPartition:
    return DraftPartition(partition_path(new.draft, index), _cache_bytes(of))


def _cache_bytes(files: int) -> int:
    return max(SMALLEST_CACHE_BYTES, min(CACHE_BYTES // 4, CACHE_BYTES // files))


def _record(held: Sequence[PartitionDescription], window: Sequence[Epoch], new: NewStore) -> StoreRecord:
    """Return the record of the store for the new partitions: the union of the old partitions' records."""
    epochs = [closed for closed in held[0].epochs if window[0] <= closed.epoch <= window[-1]]
    closing = {closed.execution for closed in epochs}
    executions = {}
    # Two executions may have the same number if a file is an older copy. The one that closed an epoch is needed.
    for each in sorted((each for d in held for each in d.executions), key=lambda each: each.lease in closing):
        executions[each.number] = each
    return StoreRecord(
        new.store_id,
        new.created_ms,
        new.count,
        next((d.flow_id for d in held if d.flow_id is not None), None),
        window[0],
        [executions[number] for number in sorted(executions)],
        epochs,
        _beginning([d.path for d in held]),
    )


def _beginning(paths: Sequence[Path]) -> Beginning | None:
    found: list[Beginning] = []
    for path in paths:
        beginning = read_partition(path, lambda connection, path=path: read_beginning(connection, path))  # type: ignore[misc]
        found += [beginning] if beginning is not None else []
    return max(found, key=lambda each: each.execution, default=None)


def _name_damage(paths: Sequence[Path], error: CorruptPartitionError) -> NoReturn:
    """Raise an error that names the damaged row of an old partition, if there is one; else the given error."""
    for path in paths:
        PartitionCheck(path).run().raise_if_damaged()
    raise error
