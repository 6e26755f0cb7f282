"""Giving Python a step's rows without looking at how large their Arrow batch has become.

Spark ends a batch by its rows or its bytes, whichever comes first, and asks for the bytes after each row: a fifth of
what the JVM takes to give small rows to Python. While rows are small it can be let off. A task reads that limit from
its job's properties, so it is lifted for the jobs of one micro-batch, where the one before had rows that are far from
it. Whoever sets it in the session has it as it is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql import SparkSession

LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"
UNLIMITED = "2147483647"
"""For which Spark does not ask."""
SMALL_BYTES = 256
"""A batch of rows that are no wider than this on average is an eighth of what Spark's limit allows."""
MANY_ROWS = 10_000
"""With fewer it is not worth the calls of the JVM."""


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
    def expected(self) -> Iterator[None]:
        """While it lasts, the jobs that this thread starts run the plan of the next micro-batch and nothing else."""
        if not self._small:
            yield
            return
        self._context.setLocalProperty(LIMIT, UNLIMITED)
        try:
            yield
        finally:
            self._context.setLocalProperty(LIMIT, None)
