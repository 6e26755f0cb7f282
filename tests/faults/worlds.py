"""A run without Spark over what others own: an input, and the target of a sink.

Each record has a number of its own, so what a reader sees says exactly which records count, and how often.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from traceback import format_exception
from typing import Any, TypeAlias

from recovery.base.credentials.task_key import task_key
from recovery.base.ids import BatchId
from recovery.base.reserved import CHECKPOINT_STEP, SOURCES_STEP
from recovery.checkpoint.reached import reached
from recovery.checkpoint.sources import IDENTITIES_KEY
from recovery.epochs.closer import DriverRows
from recovery.errors import RecoveryError
from recovery.planning.going_back import given_up, goes_back
from recovery.planning.lost_input import check_losses, losses
from recovery.spark.inputs.protocol import Resumes
from recovery.storage.connect import left_executions
from recovery.storage.reach import reach
from recovery.storage.seam import BatchCount, Changes
from recovery.values.keys import partition_of
from tests.faults.minirun import STEP, MiniRun, child, die_at, wait
from tests.faults.sources import FilesSource, Record, TopicSource
from tests.faults.targets import DeltaTarget, FilesTarget, UpsertTarget, content_of
from tests.sinks.tables import Batch
from tests.stores import content

Target: TypeAlias = FilesTarget | DeltaTarget | UpsertTarget
Source: TypeAlias = FilesSource | TopicSource


class WorldRun(MiniRun):
    """One execution of a flow that adds up the numbers of each key, and passes every record on."""

    def __init__(self, directory: Path, source: Source, sink: Any, **config: Any) -> None:
        self._source = source
        self._records: list[Record] = []
        super().__init__(directory, 0, sink=sink, **config)

    def is_at_end(self) -> bool:
        """Whether there is nothing left to read."""
        return self._source.next(self.checkpoint, self.next_batch) is None

    def look(self) -> DriverRows:
        """Look at the input as a run does, and record the identities of its parts."""
        plan, scratch = self.prepared.plan, self.prepared.scratch
        left = [path / "checkpoint" for path in left_executions(scratch, self.prepared.config.path).values()]
        with closing(self.store.driver_rows(CHECKPOINT_STEP)) as rows:
            beyond = reached(
                rows if goes_back(plan) else (), [path for path in left if path != self.checkpoint], self.checkpoint
            )
        at = self._source.at(self.checkpoint) if isinstance(self._source, TopicSource) else None
        recorded = [self.store.driver_values(SOURCES_STEP), self.store.driver_values(SOURCES_STEP, plan.resume_epoch)]
        known = {name: text for each in recorded for name, text in json.loads(each.get(IDENTITIES_KEY, "{}")).items()}
        found = self._source.input(Resumes(at, beyond, known)).look()
        check_losses(losses(found.needed, found.there), (), given_up(plan, str), found.causes)
        return {SOURCES_STEP: {IDENTITIES_KEY: json.dumps(dict(found.identities))}}

    def plan(self, batch: BatchId) -> None:
        """Log what the micro-batch reads, as Spark and its sources do."""
        read = self._source.next(self.checkpoint, batch)
        assert read is not None
        self._records = read.records
        for name, text in read.logs.items():
            self._log(f"sources/0/{name}", text)
        self._log(f"offsets/{batch}", f"v1\n{{}}\n{read.offset}")

    def deliver(self, batch: BatchId) -> None:
        """Give the sink the records of the micro-batch."""
        self.delivery.write(Batch(self._records), batch, self.closer.epoch)

    def note_start(self) -> None:
        """Note nothing: a recovery directory that is repartitioned has no other files."""

    def task(self, index: int, batch: BatchId) -> None:
        """What the step's function does in one partition: it adds up."""
        sums = Counter[str]()
        for key, n in self._records:
            if partition_of(key, self.store.partition_count) == index:
                sums[key] += n
        keys = tuple(sorted(sums))
        task, _ = reach(self.store.address(self.lease), task_key=task_key())
        try:
            before = task.read(STEP, batch, {index: keys})[index]
            packed = [f"{int(text or 0) + sums[key]}\x1f{key}" for key, text in zip(keys, before, strict=True)]
            changes = {index: [Changes(tuple(packed), False)] if packed else []}
            task.apply(STEP, batch, changes, BatchCount(len(keys), len(keys)))
        finally:
            task.release()


def everything(directory: Path, target: Target) -> tuple[Any, Any]:
    """All rows of the partitions and all bytes of the target: what a refused start leaves as it was."""
    return content(directory), content_of(target.path)


def forked(work: Callable[[], Any]) -> Any:
    """Do work in a fork; returns what it returned or raised, or the exit code if the fork was killed."""
    reading, writing = os.pipe()

    def answer() -> None:
        try:
            result = work()
        except Exception as error:
            result = error if isinstance(error, RecoveryError) else AssertionError("".join(format_exception(error)))
        os.write(writing, pickle.dumps(result))

    code = wait(child(answer))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    result = pickle.loads(text) if text else code
    if isinstance(result, AssertionError):
        raise result
    return result


def attempt(
    directory: Path, source: Source, target: Target, *, point: str = "", visit: int = 1, **config: Any
) -> RecoveryError | int:
    """One run, to the end of its input or killed at a crash point; returns the error that refused it, or 0, or the
    code of the signal."""

    def work() -> int:
        die_at(point, visit)
        execution = WorldRun(directory, source, target.sink(), **config)
        try:
            while not execution.is_at_end():
                execution.batch()
        except BaseException:
            execution.release()
            raise
        execution.finish()
        return 0

    return forked(work)


def changed(path: Path, change: Callable[[], object]) -> Callable[[], None]:
    """Change what is in a directory as somebody else would; returns what undoes that, times of files included."""
    kept = path.with_name(f"{path.name}-kept")
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(path, kept)
    change()

    def undo() -> None:
        shutil.rmtree(path, ignore_errors=True)
        kept.rename(path)

    return undo
