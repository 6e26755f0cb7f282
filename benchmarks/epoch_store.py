"""Recovery partitions on which a benchmark closes epochs, without Spark."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

DIRECTORY = Path("recovery")
FILL_KEYS = 500_000
"""The most keys that one of the first epochs writes."""


class EpochStore:
    """Partitions in the directory `recovery`, with a step `totals`."""

    def __init__(self, partitions: int, *, noted: bool, kept_epochs: int | None = None) -> None:
        """noted: epochs note the keys that they make. kept_epochs: how many can be gone back to; None: all."""
        from recovery.base.ids import ExecutionNumber, StepId
        from recovery.planning.resume import plan_resume
        from recovery.planning.values import Execution
        from recovery.storage.initialize import init_partitions
        from recovery.storage.scan import scan
        from recovery.storage.sqlite.store import FilePartitions

        self.paths = init_partitions(DIRECTORY, partitions)
        plan = plan_resume(scan(DIRECTORY))
        self._store = FilePartitions(self.paths, DIRECTORY / "scratch")
        execution = Execution(
            ExecutionNumber(1), "benchmark", "benchmark", plan.resume_epoch, 0, 10.0, 3600.0, "host", os.getpid(), "0"
        )
        self._step = StepId("totals")
        self._store.start(execution, [self._step])
        self._lease = execution.lease
        self._epoch = 0
        self._noted = noted
        self._kept_epochs = kept_epochs

    def fill(self, keys: int, chance: random.Random, first: int = 0) -> None:
        """Close epochs that make so many keys, from the number `first` on."""
        for begin in range(first, first + keys, FILL_KEYS):
            self.close({key(n): value(chance) for n in range(begin, min(first + keys, begin + FILL_KEYS))})

    def close(self, states: dict[str, str], now_ms: int | None = None, *, logged: bool = False) -> float:
        """Close an epoch that writes these states; the processor time of the closing. now_ms: the time; None: by the
        clock. logged: append the epoch's changes to the partitions' logs, as a run does with short intervals."""
        from recovery.base.ids import BatchId, Epoch
        from recovery.storage.reach import reach
        from recovery.storage.seam import BatchCount, Changes, CloseRequest
        from recovery.values.keys import partition_of

        self._epoch += 1
        batch, count = BatchId(self._epoch), len(self.paths)
        by_partition: dict[int, list[str]] = {index: [] for index in range(count)}
        for name, state in states.items():
            by_partition[partition_of(name, count)].append(f"{state}\x1f{name}")
        task = reach(self._store.address(self._lease), keep=False)[0]
        changes = {index: [Changes(tuple(packed), False)] for index, packed in by_partition.items()}
        task.apply(self._step, batch, changes, BatchCount(len(states), len(states)))
        task.release()
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        floor = Epoch(0 if self._kept_epochs is None else max(0, self._epoch - self._kept_epochs))
        request = CloseRequest(
            Epoch(self._epoch), batch, now_ms, now_ms, floor, {}, logged=logged, notes_made=self._noted
        )
        began_s = time.process_time()
        if logged:
            self._store.seal(self._lease, batch, apart=False)
        self._store.close(self._lease, [request] * count)
        spent_s = time.process_time() - began_s
        self._store.checkpoint()
        return spent_s

    def fold(self) -> float:
        """Move what is logged into the snapshots; the processor time."""
        from recovery.base.ids import BatchId, Epoch

        began_s = time.process_time()
        self._store.seal(self._lease, BatchId(self._epoch), apart=True)
        self._store.fold(self._lease, Epoch(self._epoch), Epoch(self._epoch))
        self._store.checkpoint()
        return time.process_time() - began_s

    def release(self) -> None:
        """Close the partitions."""
        self._store.release()


def key(number: int) -> str:
    """The name of a key."""
    return f"key-{number:08d}"


def value(chance: random.Random) -> str:
    """A state."""
    return f'{{"count":{chance.randrange(10**6)},"sum":{chance.random()}}}'


def rows_of(paths: Sequence[Path]) -> int:
    """The number of keys in the partitions of one directory."""
    from recovery.storage.scan import scan

    return sum(found.description.newest.live_rows for found in scan(paths[0].parent))  # type: ignore[union-attr]
