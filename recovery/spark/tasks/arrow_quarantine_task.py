"""Tasks of a vectorised step with `on_error="quarantine"`: a call that fails is divided until the keys that fail are
found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from recovery.base.ids import PartitionIndex
from recovery.spark.tasks.arrow_task import ArrowStepTask
from recovery.spark.tasks.changes import too_large
from recovery.spark.tasks.quarantine import belongs_to_row
from recovery.spark.tasks.quarantining import Attempted, Quarantining, of_one_key
from recovery.spark.tasks.step_task import KeyGroups, StepTask
from recovery.storage.seam import Changes

Kept = list[tuple[PartitionIndex, Changes]]


class ArrowQuarantineTask(Quarantining, ArrowStepTask):
    """A task of a vectorised step. A call counts as a whole or not at all: if it fails, its keys are given to update
    again by halves, until only the keys that fail by themselves are left. Each other key is applied once."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._kept: Kept = []
        """What the running call changes."""
        self._states_given: list[str | None] | None = None
        """The states for the running call, where they are not those before the micro-batch."""

    def _process(self, chunk: pa.RecordBatch) -> pa.RecordBatch | None:
        runs = self._admitted(chunk)
        outputs = list(self._by_halves(runs)) if runs is not None and runs.texts else []
        self._quarantine.flush()
        return pa.concat_batches(outputs) if outputs else None

    def _by_halves(self, runs: KeyGroups) -> Iterator[pa.RecordBatch]:
        """Call update for all keys, or for each half of them if that fails; yield the output, and keep the changes. A
        key for which the call fails goes to quarantine."""
        try:
            output, kept = self._tried(runs)
        except Exception as error:
            if not belongs_to_row(error):
                raise
            count = len(runs.texts)
            if count == 1:
                self._put(runs, {0: error})
                return
            for first, end in ((0, count // 2), (count // 2, count)):
                yield from self._by_halves(_some(runs, first, end))
            return
        for partition, changes in kept:
            StepTask._keep_changes(self, partition, changes)
        if output is not None:
            yield output

    def _tried(self, runs: KeyGroups) -> tuple[pa.RecordBatch | None, Kept]:
        """Call update; return the output and the changes, without keeping any. Raises the error of the call."""
        counted = self._keys, self._rows
        self._kept = []
        try:
            return self._call_tables(runs), self._kept
        except Exception:
            self._keys, self._rows = counted
            raise

    def _keep_changes(self, partition: PartitionIndex, changes: Changes) -> None:
        for _, error in too_large(self._definition.step_id, changes):
            raise error
        self._kept.append((partition, changes))

    def _read(self, texts: list[str]) -> list[str | None]:  # type: ignore[override]
        return super()._read(texts) if self._states_given is None else self._states_given

    def _late(self) -> Iterator[pa.RecordBatch]:
        for text, home in sorted(self._quarantine.marked.items()):
            yield from self._replay(home, text, False)

    def _attempted(self, home: PartitionIndex, text: str, state: str | None, rows: pa.RecordBatch | None) -> Attempted:
        assert rows is not None, "a vectorised step has no timeouts"
        output, kept = self._tried_in(state, of_one_key(rows, text))
        return output, kept[0][1] if kept else None

    def _call_behind(
        self, home: PartitionIndex, text: str, state: str | None, chunk: pa.RecordBatch | None
    ) -> pa.RecordBatch | None:
        assert chunk is not None, "a vectorised step has no timeouts"
        runs = of_one_key(chunk, text)
        try:
            output, kept = self._tried_in(state, runs)
        except Exception as error:
            if not belongs_to_row(error):
                raise
            # These rows were counted when they were put behind.
            self._quarantine.put(home, text, chunk, error)
            return None
        for partition, changes in kept:
            StepTask._keep_changes(self, partition, changes)
        return output

    def _tried_in(self, state: str | None, runs: KeyGroups) -> tuple[pa.RecordBatch | None, Kept]:
        """Do what `_tried` does for one key, in this state; its rows are counted already."""
        rows, self._states_given = self._rows, [state]
        try:
            return self._tried(runs)
        finally:
            self._rows, self._states_given = rows, None


def _some(runs: KeyGroups, first: int, end: int) -> KeyGroups:
    """Return the keys from `first` up to `end`, with their rows."""
    ends = runs.ends.to_pylist()
    start = ends[first - 1] if first else 0
    rows = runs.chunk.slice(start, ends[end - 1] - start)
    return KeyGroups(
        rows, runs.texts[first:end], runs.raw[first:end], pa.array([each - start for each in ends[first:end]])
    )
