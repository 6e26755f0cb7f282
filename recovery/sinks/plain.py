"""Sinks without memory: a micro-batch that comes again has its effect again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.base.printable import one_line
from recovery.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DiscardSink:
    """Computes every micro-batch and keeps no output: for flows that only build state."""

    single_action = True
    keeps_plan = True
    discards = True

    def write(self, batch: DataFrame, batch_id: int) -> None:
        batch.write.format("noop").mode("overwrite").save()


class ConsoleSink:
    """Prints up to `rows` rows of every micro-batch, one per line, with control characters escaped as in JSON.

    truncate: the most characters of a value that are printed, as in Spark's console sink: True is 20, False is all.
    """

    single_action = False
    keeps_plan = False

    def __init__(self, rows: int = 20, *, truncate: bool | int = False) -> None:
        if isinstance(truncate, bool):
            truncate = 20 if truncate else 0
        if type(truncate) is not int or truncate < 0:
            raise ConfigurationError(
                f"ConsoleSink: truncate={truncate!r:.80}",
                cause="",
                remedy="Use True, False or a number of characters; the text of Spark's option, 'false', is False.",
            )
        self.rows = rows
        self._width = truncate

    def write(self, batch: DataFrame, batch_id: int) -> None:
        names = batch.columns
        for row in batch.take(self.rows):
            values = map(self._shortened, row)
            print(one_line("  ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))))

    def _shortened(self, value: object) -> str:
        text = str(value)
        if not self._width or len(text) <= self._width:
            return text
        # As Spark does it: the dots count, if there is room for them.
        return f"{text[: self._width - 3]}..." if self._width > 3 else text[: self._width]
