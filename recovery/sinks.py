"""Sinks of our own: each takes a micro-batch in one complete action, so it needs no materialised copy."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from pyspark.sql import DataFrame


@runtime_checkable
class Sink(Protocol):
    """An object with the `write` of a foreachBatch function.

    single_action: True promises that `write` runs the batch exactly once and completely, on the calling thread;
    only then is it given the plan itself instead of a materialised copy.
    """

    single_action: bool

    def write(self, batch: DataFrame, batch_id: int) -> Any:
        """Take one micro-batch. It may come again after a crash."""
        ...


class DiscardSink:
    """Computes every micro-batch and keeps no output: for flows that only build state."""

    single_action = True

    def write(self, batch: DataFrame, batch_id: int) -> None:
        batch.write.format("noop").mode("overwrite").save()


class ConsoleSink:
    """Prints up to `rows` rows of every micro-batch."""

    single_action = False

    def __init__(self, rows: int = 20) -> None:
        self.rows = rows

    def write(self, batch: DataFrame, batch_id: int) -> None:
        names = batch.columns
        for row in batch.take(self.rows):
            print("  ".join(f"{name}={value}" for name, value in zip(names, row, strict=True)))
