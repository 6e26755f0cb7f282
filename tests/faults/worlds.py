"""A run without Spark over what others own: a directory of input files, and the target of a sink.

Each record has a number of its own, so what a reader sees says exactly which records count, and how often.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from traceback import format_exception
from typing import Any, TypeAlias
from urllib.parse import quote

from recovery.base.credentials.task_key import task_key
from recovery.base.ids import BatchId
from recovery.errors import RecoveryError
from recovery.storage.reach import reach
from recovery.storage.seam import BatchCount, Changes
from recovery.values.keys import partition_of
from tests.faults.minirun import STEP, MiniRun, child, die_at, wait
from tests.faults.targets import DeltaTarget, FilesTarget, UpsertTarget, content_of
from tests.sinks.tables import Batch
from tests.stores import content

Target: TypeAlias = FilesTarget | DeltaTarget | UpsertTarget
FILES_PER_BATCH = 2


class FileRun(MiniRun):
    """One execution of a flow that adds up the numbers of each key, and passes every record on."""

    def __init__(self, directory: Path, source: Path, sink: Any, **config: Any) -> None:
        self._source = source
        self._new: list[Path] = []
        super().__init__(directory, 0, sink=sink, **config)

    def unread(self) -> list[Path]:
        """The input files that the log of the source does not have, by name."""
        read = {
            json.loads(line)["path"]
            for entry in self.checkpoint.glob("sources/0/*")
            for line in entry.read_text().splitlines()[1:]
        }
        return sorted(path for path in self._source.iterdir() if _uri(path) not in read)

    def plan(self, batch: BatchId) -> None:
        """Log which files the micro-batch reads, as Spark's file source does."""
        self._new = self.unread()[:FILES_PER_BATCH]
        lines = [
            json.dumps({"path": _uri(path), "timestamp": path.stat().st_mtime_ns // 1_000_000, "batchId": batch})
            for path in self._new
        ]
        self._log(f"sources/0/{batch}", "\n".join(["v1", *lines]))
        super().plan(batch)

    def deliver(self, batch: BatchId) -> None:
        """Give the sink the records of the micro-batch."""
        self.delivery.write(Batch(self._records()), batch, self.closer.epoch)

    def note_start(self) -> None:
        """Note nothing: a recovery directory that is repartitioned has no other files."""

    def task(self, index: int, batch: BatchId) -> None:
        """What the step's function does in one partition: it adds up."""
        sums = Counter[str]()
        for key, n in self._records():
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

    def _records(self) -> list[tuple[str, int]]:
        return [record for path in self._new for record in read_records(path)]


def _uri(path: Path) -> str:
    return f"file://{quote(str(path))}"


def read_records(path: Path) -> list[tuple[str, int]]:
    """The records of an input file."""
    return [(key, int(n)) for key, n in (line.split(",") for line in path.read_text().split())]


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
    directory: Path, source: Path, target: Target, *, point: str = "", visit: int = 1, **config: Any
) -> RecoveryError | int:
    """One run, to the end of its input or killed at a crash point; returns the error that refused it, or 0, or the
    code of the signal."""

    def work() -> int:
        die_at(point, visit)
        execution = FileRun(directory, source, target.sink(), **config)
        try:
            while execution.unread():
                execution.batch()
        except BaseException:
            execution.release()
            raise
        execution.finish()
        return 0

    return forked(work)


def changed(path: Path, change: Callable[[Path], object]) -> Callable[[], None]:
    """Change a file or directory as somebody else would; returns what undoes that, times included."""
    kept = path.parent.parent / f"kept-{path.name}"
    if kept.is_dir():
        shutil.rmtree(kept)
    (shutil.copytree if path.is_dir() else shutil.copy2)(path, kept)
    change(path)

    def undo() -> None:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        kept.rename(path)

    return undo
