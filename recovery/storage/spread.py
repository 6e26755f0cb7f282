"""A task's view of partitions that lie at several places: files of this host, and owners on others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from recovery.base.ids import BatchId, PartitionIndex, StepId
from recovery.storage.seam import BatchCount, Changes, Keys, States, TaskStore


class SpreadTaskStore:
    """A `TaskStore` that gives each call to the stores that have its partitions, one after the other."""

    def __init__(self, stores: Sequence[tuple[Collection[PartitionIndex], TaskStore]]) -> None:
        """stores: each with the indexes of its partitions. The first store notes gathered micro-batches."""
        self._stores = [store for _, store in stores]
        self._store_of = {index: store for indexes, store in stores for index in indexes}

    def read(self, step: StepId, batch: BatchId, wanted: Mapping[PartitionIndex, Keys]) -> States:
        found: States = {}
        for store, indexes in self._by_store(wanted):
            found |= store.read(step, batch, {index: wanted[index] for index in indexes})
        return {index: found[index] for index in wanted}

    def apply(
        self, step: StepId, batch: BatchId, changes: Mapping[PartitionIndex, Iterable[Changes]], count: BatchCount
    ) -> None:
        for store, indexes in self._by_store(sorted(changes)):
            store.apply(step, batch, {index: changes[index] for index in indexes}, count)
            count = BatchCount(0, 0)

    def gathered(self, step: StepId, batch: BatchId, *, note: bool) -> bool:
        return self._stores[0].gathered(step, batch, note=note)

    def withdraw(self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex]) -> None:
        for store, indexes in self._by_store(partitions):
            store.withdraw(step, batch, indexes)

    def due(
        self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex], up_to_ms: int
    ) -> dict[PartitionIndex, list[str]]:
        found: dict[PartitionIndex, list[str]] = {}
        for store, indexes in self._by_store(partitions):
            found |= store.due(step, batch, indexes, up_to_ms)
        return found

    def release(self) -> None:
        for store in self._stores:
            store.release()

    def _by_store(self, partitions: Iterable[PartitionIndex]) -> Iterator[tuple[TaskStore, list[PartitionIndex]]]:
        """Yield each store that is needed, with its partitions among the given ones."""
        wanted: dict[int, list[PartitionIndex]] = {}
        for index in partitions:
            wanted.setdefault(id(self._store_of[index]), []).append(index)
        for store in self._stores:
            if id(store) in wanted:
                yield store, wanted[id(store)]
