"""Convert the texts of state keys back to the key's columns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from recovery.errors import StateValueError, shown
from recovery.spark.jvm.versions import to_arrow_type
from recovery.values.keys import decode_key


def parse_keys(texts: list[str], kinds: Sequence[T.DataType], time_zone: str) -> list[pa.Array]:
    """Return the key's columns for state keys. Raises StateValueError for a key that no run can have written, and names
    it."""
    try:
        return _parsed_keys(texts, kinds, time_zone)
    except (ValueError, TypeError, NotImplementedError, RecursionError) as error:
        if len(texts) > 1:
            for text in texts:
                parse_keys([text], kinds, time_zone)
        raise StateValueError(
            f"the state key {shown(texts[0] if len(texts) == 1 else texts)} does not fit the key's columns: {error}",
            cause="The state was edited, or written by another kind of step under the same id.",
            remedy="Correct it with `recovery state`, or start again with --drop-step.",
        ) from error


def _parsed_keys(texts: list[str], kinds: Sequence[T.DataType], time_zone: str) -> list[pa.Array]:
    types = [to_arrow_type(kind, time_zone) for kind in kinds]
    if len(types) == 1:
        parts: list[list[str | None]] = [[decode_key(text) for text in texts]]
    else:
        parts = [list(part) for part in zip(*map(msgspec.json.decode, texts), strict=True)] or [[] for _ in types]
    columns = []
    for part, kind in zip(parts, types, strict=True):
        if pa.types.is_binary(kind):
            columns.append(pa.array([None if text is None else bytes.fromhex(text) for text in part], kind))
            continue
        column = pa.array(part, pa.string())
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            column = column.cast(pa.int64())  # written as microseconds since 1970
        columns.append(_read_far_years(part, kind) if _is_far(part, kind) else column.cast(kind))
    return columns


def _is_far(texts: list[str | None], kind: pa.DataType) -> bool:
    """Return whether a date, or a timestamp without time zone, has a year that Spark writes with a sign."""
    dated = pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
    return dated and any(text is not None and text[0] in "+-" for text in texts)


def _read_far_years(texts: list[str | None], kind: pa.DataType) -> pa.Array:
    """Parse the texts with NumPy, which reads years that Arrow does not."""
    unit = "datetime64[D]" if pa.types.is_date(kind) else "datetime64[us]"
    return pa.array(np.array(["NaT" if text is None else text for text in texts], unit)).cast(kind)
