"""Sinks without memory: a micro-batch that comes again has its effect again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.base.printable import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DiscardSink:
    """Computes every micro-batch and keeps no output: for flows that only build state."""

    single_action = True

    def write(self, batch: DataFrame, batch_id: int) -> None:
        batch.write.format("noop").mode("overwrite").save()


class ConsoleSink:
    """Prints up to `rows` rows of every micro-batch, one per line, with control characters escaped as in JSON."""

    single_action = False

    def __init__(self, rows: int = 20) -> None:
        self.rows = rows

    def write(self, batch: DataFrame, batch_id: int) -> None:
        names = batch.columns
        for row in batch.take(self.rows):
            print(one_line("  ".join(f"{name}={value}" for name, value in zip(names, row, strict=True))))
