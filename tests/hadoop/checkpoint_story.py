"""A query whose checkpoint lies at a place that all hosts reach: what Spark would write, what the partitions hold."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

from recovery.base.ids import BatchId
from recovery.checkpoint.capture import Capture
from recovery.checkpoint.restore import restore
from recovery.checkpoint.rows import Content
from recovery.errors import SparkCheckpointError, StorageError
from recovery.hadoop.home import HadoopHome
from tests.checkpoint.support import files as files_below
from tests.checkpoint.support import log, snapshot_zip, write
from tests.sinks.memory_disk import Killed

LAST = 3
ENDS = (StorageError, SparkCheckpointError, Killed)
"""What a fault may end a run with."""
_numbers = itertools.count(1)


def spark_writes(checkpoint: Path, batch: int) -> None:
    """What there is of a query with two stores after a micro-batch: one of deltas, and one of RocksDB's."""
    log(checkpoint, batch)
    write(checkpoint, f"state/0/0/{batch + 1}.delta", f"delta {batch}" * 20)
    write(checkpoint, f"state/1/0/SSTs/{batch}.sst", "x" * (1 + batch))
    write(checkpoint, f"state/1/0/{batch + 1}.zip", _snapshot(batch))
    for operator in (0, 1):
        store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1}
        described = {"operatorInfo": {"operatorId": operator, "operatorName": "x"}, "stateStoreInfo": [store]}
        write(checkpoint, f"state/{operator}/_metadata/metadata", f"v1\n{json.dumps(described)}")


@cache
def _snapshot(batch: int) -> bytes:
    """Made once, because it has the time in it."""
    return snapshot_zip((f"{batch}.sst",))


class Story:
    """Runs of one query over a place; `rows` is what the partitions hold."""

    def __init__(self, files: Any, root: Path, home: Path) -> None:
        """files: of the place, which do not fail. root: the place. home: a directory of this host."""
        self.files, self.root, self.home = files, root, home
        self.rows: dict[str, Content] = {}
        self.closed = -1

    def run(self, files: Any, last: int = LAST) -> None:
        """A run: restore, micro-batches with an epoch each, end. files: those of the place as this run reaches them."""
        number = next(_numbers)
        directory = self.home / f"run-{number}" / "checkpoint"
        place = self.root / f"run-{number}"
        home = HadoopHome(files, "test://place", place, directory)
        held, stale = {}, frozenset()
        if self.rows:
            made = restore(self.rows.items(), directory, home.location)
            held, stale = made.held, made.stale
        else:
            directory.mkdir(parents=True)
        try:
            home.put()
            capture = Capture(home, held, stale)
            for batch in range(self.closed + 1, last + 1):
                self._batch(place, batch)
                self._close(capture, batch)
        finally:
            home.discard()

    def _batch(self, place: Path, batch: int) -> None:
        written = self.home / f"batch-{next(_numbers)}"
        spark_writes(written, batch)
        known = self.files.tree(place)
        for path in files_below(written):
            # Spark writes a file once.
            if path not in known:
                self.files.put(written / path, place / path)

    def _close(self, capture: Capture, batch: int) -> None:
        captured = capture.take(BatchId(batch))
        changes = dict(captured)
        capture.saved(captured)
        captured.release()
        for key, content in changes.items():
            if content is None:
                del self.rows[key]
            else:
                self.rows[key] = content
        self.closed = batch
