"""Tasks of a step that puts rows into quarantine by a condition, which Spark has evaluated."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from recovery.spark.steps.definition import HASH_BITS, ROUTE, WHEN
from recovery.spark.tasks.chunks import Width
from recovery.spark.tasks.output_values import in_known_zones
from recovery.spark.tasks.quarantine import StillBad
from recovery.spark.tasks.quarantining import Quarantining
from recovery.spark.tasks.step_task import mixed_partitions
from recovery.storage.seam import BatchCount
from recovery.values.keys import partition_of
from recovery.values.quarantine import WITHOUT_KEY, KeptFailure, held_by
from recovery.values.tables import columns_of


class ConditionTask(Quarantining):
    """A task whose rows have no key: those for which the condition holds wait in one partition, in the order in which
    they came; the others pass immediately."""

    def run(self, batches: Iterator[pa.RecordBatch], width: Width | None = None) -> Iterator[pa.RecordBatch]:
        """Yield rows that are replayed and pass, then the new ones that pass; apply what waits at the end."""
        width = width or Width()
        home = partition_of(WITHOUT_KEY, self._partition_count)
        if self._partition == home:
            yield from self._replayed()
        for batch in map(in_known_zones, width.measured(batches)):
            self._locate(batch)
            bad = batch.column(WHEN)
            self._rows += len(batch) - bad.null_count
            rows = batch.filter(bad)
            if len(rows):
                if self._partition != home:
                    raise mixed_partitions(self._definition)
                self._quarantine.put(home, WITHOUT_KEY, rows, self._failure)
                # Ticks have no value there.
                batch = batch.filter(pc.invert(bad))
            elif bad.null_count:
                batch = batch.filter(bad.is_valid())
            if len(batch):
                yield self._passed(batch)
        self._quarantine.flush()
        self._apply(BatchCount(self._rows, 0, width.row_bytes))
        for spool in self._spools.values():
            spool.close()

    def _locate(self, chunk: pa.RecordBatch) -> None:
        if (chunk.column(ROUTE).to_numpy() >> HASH_BITS != self._spark_partition).any():
            raise mixed_partitions(self._definition)

    @property
    def _failure(self) -> KeptFailure:
        return held_by(self._definition.when or "")

    def _replayed(self) -> Iterator[pa.RecordBatch]:
        """Look at the rows of the marked entries again; yield those that pass now."""
        passed: list[pa.RecordBatch] = []

        def attempt(rows: pa.RecordBatch | None) -> None:
            assert rows is not None, "a condition has no timeouts"
            bad = rows.column(WHEN)
            good, left = rows.filter(pc.invert(bad)), rows.filter(bad)
            if len(good):
                passed.append(self._passed(good))
            if len(left):
                raise StillBad(left, self._failure)

        home = partition_of(WITHOUT_KEY, self._partition_count)
        self._quarantine.wake([home])
        for text in sorted(self._quarantine.marked):
            self._quarantine.replay(home, text, attempt)
        yield from passed

    def _passed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        names = self._definition.columns
        own = pa.Table.from_arrays(rows.columns[: len(names)], names=names)
        return pa.RecordBatch.from_arrays(columns_of(own, self._schema), schema=self._schema)
