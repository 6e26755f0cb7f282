"""Arrow batches as chunks that hold whole keys, and as the rows of one recovery partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from recovery.spark.steps.definition import (
    HASH_BITS,
    ROUTE,
)


def pieces_of(
    batches: Iterator[pa.RecordBatch], partition_of_rows: Callable[[pa.RecordBatch], Any]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut the batches where the recovery partition changes; yield each piece with its partition."""
    for batch in batches:
        partitions = partition_of_rows(batch)
        starts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(batch)]
        for start, end in pairwise(starts):
            yield int(partitions[start]), batch.slice(start, end - start)


class Width:
    """The width of a task's rows."""

    row_bytes = 0
    """Average bytes of a row in Arrow, in the batch where that average is greatest."""

    def measured(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches, none of which may be empty, and measure them."""
        for batch in batches:
            self.row_bytes = max(self.row_bytes, -(-batch.nbytes // len(batch)))
            yield batch


def partitions_of(rows: pa.RecordBatch, count: int) -> Any:
    """Return the recovery partition of each row, as an array."""
    return (rows.column(ROUTE).to_numpy() & ((1 << HASH_BITS) - 1)) % count


def whole_key_chunks(batches: Iterator[pa.RecordBatch], name: str, chunk_rows: int) -> Iterator[pa.RecordBatch]:
    """Regroup batches that are sorted by a column and not empty into chunks of whole keys."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count < chunk_rows:
            continue
        last = batch.column(name)
        final = last[-1]
        if last[0] == final and (len(held) == 1 or held[-2].column(name)[-1] == final):
            continue  # the whole batch is one key, which the next batch may continue
        whole = _combine(held)
        column = whole.column(name)
        if column[0] == final:
            held = [whole]
            continue
        cut = _start_of_last_run(column)
        yield whole.slice(0, cut)
        held, count = [whole.slice(cut)], len(whole) - cut
    if held:
        yield _combine(held)


def _start_of_last_run(column: pa.Array) -> int:
    """Return the index of the last key's first row, by bisection: the column is sorted."""
    final = column[-1]
    low, high = 0, len(column) - 1
    while low < high:
        middle = (low + high) // 2
        if column[middle] == final:
            high = middle
        else:
            low = middle + 1
    return low


def _combine(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
