"""Step 5 of starting: make durable where sources start, before the first micro-batch that reads them may count."""

from __future__ import annotations

from typing import Any

from recovery.base import faults
from recovery.base.ids import NO_BATCH, BatchId
from recovery.checkpoint.beginning import take_beginning, with_starts
from recovery.checkpoint.offsets import OffsetLog, labels, read_offsets, ticking
from recovery.checkpoint.position import logged_entry
from recovery.spark.run.execution import FlowRun

SCAN = "StreamingDataSourceV2ScanRelation"
"""The plan node that reads a source of Spark's newer API."""


class SourceStarts:
    """Makes durable where the sources of one run start. `recovery.checkpoint.beginning` says why, and in which form.

    Called in the callback of a micro-batch, before a task or the sink has seen anything of it:

    1. Compare the log of offsets of this micro-batch with the previous one: do any sources begin?
    2. Take the starts of these sources from Spark's plan of the micro-batch.
    3. Before the very first micro-batch, write the position before it into every partition (`start.5.partition`). That
       position is not an epoch, so epochs count from 1 whatever the sources are. Otherwise close an epoch as of the
       previous micro-batch, with the starts in its position.
    4. The start is durable in every partition (`start.5`): the micro-batch may count.

    A crash before 4 leaves the start in some partitions or in none. Nothing has seen the micro-batch by then, so the
    next run may begin there or where the sources start for that run.

    When all sources have begun, nothing is left to do.
    """

    def __init__(self, run: FlowRun) -> None:
        self._run = run
        self._places = run.bound.sources
        self._outdated = run.position.outdated
        self._waiting = True

    def keep(self, query: Any, batch: BatchId) -> None:
        """Make durable the starts of sources that this micro-batch is the first to read. query: the JVM's handle."""
        if not self._waiting:
            return
        self._run.home.pull(batch)
        planned, before = (read_offsets(self._run.home.directory, BatchId(each)) for each in (batch, batch - 1))
        assert planned is not None, f"Spark has planned micro-batch {batch}"
        begin = planned.begun - ticking(self._places, planned) - (before.begun if before is not None else set())
        if begin or self._outdated:
            starts = self._starts(query, planned) if begin else {}
            position = with_starts(planned, before, starts, self._places)
            if self._run.closer.finished == NO_BATCH:
                self._begin_input(position)
            elif any(label in starts or _may_log_its_start(planned.offsets[label]) for label in begin):
                self._close_epoch(BatchId(batch - 1), position)
        self._outdated = False
        self._waiting = planned.begun != planned.offsets.keys()

    def _begin_input(self, position: OffsetLog) -> None:
        identities = self._run.position.identities
        beginning = take_beginning(self._run.home.directory, position, self._places, identities)
        if beginning is not None:
            self._run.store.begin_input(self._run.lease, beginning.to_text())
            faults.reach("start.5")

    def _close_epoch(self, batch: BatchId, position: OffsetLog) -> None:
        self._run.closer.end_epoch(lambda: True, position={f"offsets/{batch}": position.to_bytes()})
        self._run.closer.wait()
        faults.reach("start.5")

    def _starts(self, query: Any, planned: OffsetLog) -> dict[str, str]:
        """Where the micro-batch reads from, by the sources' names in the log. Py4j calls the JVM's `equals`."""
        running = query.streamingQuery()
        leaves, sources = running.lastExecution().logical().collectLeaves(), running.sources()
        scans = [leaves.apply(place) for place in range(leaves.length())]
        scans = [scan for scan in scans if scan.nodeName() == SCAN and scan.startOffset().isDefined()]
        starts = {}
        for place, label in enumerate(labels(self._places, planned)):
            source = sources.apply(place)
            for scan in scans:
                if scan.stream().equals(source):
                    starts[label] = str(scan.startOffset().get().json())
        return starts


def _may_log_its_start(offset: str) -> bool:
    """Whether a source of the older API may have logged where it starts. File sources log what they have read."""
    return logged_entry(offset) is None
