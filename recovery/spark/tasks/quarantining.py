"""What tasks with a quarantine share: which rows wait, and how they are replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from recovery.base.ids import PartitionIndex
from recovery.spark.tasks.changes import value_of
from recovery.spark.tasks.quarantine import TaskQuarantine
from recovery.spark.tasks.step_task import KeyGroups, StepTask
from recovery.storage.seam import BatchCount, Changes
from recovery.values.keys import decode_key, partition_of

Attempted: TypeAlias = tuple[pa.RecordBatch | None, Changes | None]
"""The output of a call for one key, and its changed state; None: nothing."""


class Quarantining(StepTask):
    """A task that puts the rows of a key into quarantine if `update` fails for them, and goes on with the other keys.

    The key's state stays as it was before the call, and no output of the call appears.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._quarantine = TaskQuarantine(self._definition, self._store, self._batch)
        self._behind: dict[str, pa.RecordBatch] = {}
        """Rows of this micro-batch for keys whose earlier rows are replayed first."""

    def _attempted(self, home: PartitionIndex, text: str, state: str | None, rows: pa.RecordBatch | None) -> Attempted:
        """Call update for the rows of an entry of a key in this state, or for a timeout (None). Raises the error of the
        call."""
        raise NotImplementedError

    def _call_behind(
        self, home: PartitionIndex, text: str, state: str | None, chunk: pa.RecordBatch | None
    ) -> pa.RecordBatch | None:
        """Call update for the rows of a key that came in this micro-batch, or for its timeout (None), after those
        before have been replayed; keep what it changes, or put the rows into quarantine."""
        raise NotImplementedError

    def _admitted(self, chunk: pa.RecordBatch) -> KeyGroups | None:
        """Return the keys of a chunk that do not wait, with their rows; put the rows of the others aside. None: the
        chunk has only ticks."""
        runs = self._runs(chunk)
        if runs is None:
            return None
        homes = self._homes(runs.texts)
        self._quarantine.wake(homes)
        for home in dict.fromkeys(homes):
            self._spool(home)
        if self._quarantine.is_empty:
            return runs
        return self._put(
            runs, {index: None for index, text in enumerate(runs.texts) if self._quarantine.goes_behind(text)}
        )

    def _homes(self, texts: Sequence[str]) -> Sequence[PartitionIndex]:
        if self._partition is not None:
            return (self._partition,)
        return [partition_of(text, self._partition_count) for text in texts]

    def _put(self, runs: KeyGroups, aside: Mapping[int, Exception | None]) -> KeyGroups:
        """Put the rows of some keys into quarantine, by index, with the error of each; None: they only wait. Return the
        other keys with their rows."""
        if not aside:
            return runs
        ends = runs.ends.to_numpy().astype(np.int64)
        counts = np.diff(ends, prepend=0)
        for index, error in aside.items():
            text = runs.texts[index]
            rows = runs.chunk.slice(int(ends[index] - counts[index]), int(counts[index]))
            if error is None and text in self._quarantine.marked:
                self._behind[text] = rows
                continue
            if error is not None:
                # A key with rows does not time out, as if the call had come that far.
                self._due.pop(text, None)
            self._quarantine.put(self._homes([text])[0], text, rows, error)
        stays = np.ones(len(runs.texts), np.bool_)
        stays[list(aside)] = False
        self._rows += int(counts[~stays].sum())
        chunk = runs.chunk.filter(pa.array(np.repeat(stays, counts)))
        places = np.flatnonzero(stays).tolist()
        texts, raw = [runs.texts[place] for place in places], [runs.raw[place] for place in places]
        return KeyGroups(chunk, texts, raw, pa.array(np.cumsum(counts[stays])))

    def _wake(self, partitions: Iterable[int]) -> None:
        woken = list(map(PartitionIndex, partitions))
        super()._wake(woken)
        self._quarantine.wake(woken)
        for partition in woken:
            self._spool(partition)

    def _replay(self, home: PartitionIndex, text: str, is_due: bool) -> Iterator[pa.RecordBatch]:
        """Call update again for the entries of a key, and then for the rows that came in this micro-batch, or for the
        timeout that is due if nothing has cleared it; yield the output."""
        state = self._stored({home: (text,)})[home][0]
        outputs, changes = list[pa.RecordBatch](), None

        def attempt(rows: pa.RecordBatch | None) -> None:
            nonlocal state, changes
            output, made = self._attempted(home, text, state, rows)
            if output is not None:
                outputs.append(output)
            if made is not None and made.packed:
                state, changes = value_of(made.packed[0], made), made

        self._quarantine.replay(home, text, attempt)
        if changes is not None:
            StepTask._keep_changes(self, home, changes)
        yield from outputs
        rows, found = self._behind.pop(text, None), None
        if rows is not None and self._quarantine.holds(text):
            self._quarantine.put(home, text, rows, None)
        elif rows is not None or (is_due and changes is None):
            found = self._call_behind(home, text, state, rows)
        self._quarantine.flush()
        if found is not None:
            yield found

    def _apply(self, count: BatchCount) -> None:
        super()._apply(count)
        self._quarantine.apply(tuple(self.touched))


def of_one_key(rows: pa.RecordBatch, text: str) -> KeyGroups:
    """Return rows of one key as a chunk."""
    return KeyGroups(rows, [text], [decode_key(text)], pa.array([len(rows)]))
