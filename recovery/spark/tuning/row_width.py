"""Giving Python a step's rows without looking at how large their Arrow batch has become.

Spark ends a batch by its rows or its bytes, whichever comes first, and asks for the bytes after each row: a fifth of
what the JVM takes to give small rows to Python. A task reads that limit from its job's properties, so it is lifted for
the jobs of one micro-batch: where the one before had small rows, and the sources say that there is not so much to read
that its rows, should they all be wide, would be too large for one batch. Whoever sets the limit has it as it is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from recovery.spark.jvm.errors import JVM_GONE

LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"
UNLIMITED = "2147483647"
"""For which Spark does not ask."""
SMALL_BYTES = 256
"""A batch of rows that are no wider than this on average is an eighth of what Spark's limit allows."""
MANY_ROWS = 10_000
"""With fewer it is not worth the calls of the JVM."""
MOST_BYTES = 256 << 20
"""What there is to read for all tasks of a micro-batch."""


class RowWidth:
    """How wide the rows are that one run gives to its steps."""

    def __init__(self, spark: SparkSession, *, steps_only: bool) -> None:
        """`steps_only`: nothing else in the run's plan has Python take rows, which may be wide."""
        self._context = spark.sparkContext
        self._steps_only = steps_only
        self._small = False

    def learn(self, rows: int, row_bytes: int) -> None:
        """A micro-batch had so many rows, and those of no Arrow batch were wider on average."""
        self._small = self._steps_only and rows >= MANY_ROWS and row_bytes <= SMALL_BYTES

    @contextlib.contextmanager
    def expected(self, query: Any) -> Iterator[None]:
        """While it lasts, the jobs that this thread starts run the plan of the next micro-batch of the JVM's query, and
        nothing else. The query may be None, as long as Spark has not said which it is."""
        known = query is not None and self._small and bytes_to_read(query) <= MOST_BYTES
        if not known or self._context.getLocalProperty(LIMIT) is not None:
            yield
            return
        self._context.setLocalProperty(LIMIT, UNLIMITED)
        try:
            yield
        finally:
            # Without the JVM it is gone as well.
            with contextlib.suppress(Py4JError, *JVM_GONE):
                self._context.setLocalProperty(LIMIT, None)


def bytes_to_read(query: Any) -> int:
    """What a micro-batch's sources, and tables besides, say that they are; eight exabytes where one does not know."""
    leaves = query.streamingQuery().lastExecution().logical().collectLeaves()
    return sum(int(leaves.apply(place).stats().sizeInBytes()) for place in range(leaves.length()))
