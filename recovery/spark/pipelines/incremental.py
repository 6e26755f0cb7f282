"""Incremental loads: the rows that are newer than a high-water mark."""

from __future__ import annotations

import contextlib
import copy
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery.base.clock import Clock
from recovery.base.ids import BatchId, Epoch, StepId
from recovery.base.intervals import Interval, bare, parse_interval
from recovery.base.reserved import EPOCH_STEP
from recovery.operational.backends.open import StoreBackend
from recovery.operational.closed_marks import changes
from recovery.operational.ids import check
from recovery.operational.manager import StateManager
from recovery.operational.marks import (
    check_comparable,
    check_forward,
    check_value,
    comparable,
    is_future,
    is_same_mark,
)
from recovery.operational.results import also_named
from recovery.spark.pipelines.cursor import EPOCH, Cursor, bad, check_text, collected, cursor, python_value

STATEFUL, ROLLING_WINDOW = "stateful", "rolling_window"
MODES = (STATEFUL, ROLLING_WINDOW)
FORMATS = {
    "oracle": "dd-MMM-yy",
    "oracle_sqlserver": "dd-MMM-yy",
    "sql_server": "yyyy-MM-dd HH:mm:ss",
    "us": "MM/dd/yyyy",
    "eu": "dd/MM/yyyy",
    "iso": "yyyy-MM-dd'T'HH:mm:ss",
}
"""Odibi's names of patterns."""

Reader: TypeAlias = DataFrame | Callable[[SparkSession], DataFrame]


@dataclass
class Load:
    """One incremental load of a node: the mark that it moves, and the new value once the write succeeded.

    mark: None if nothing newer was found, or in a rolling window. nulls: the number of rows in the whole input whose
    column is NULL, NaN or infinite. future: whether the mark is a time in the future. emptied: whether a full refresh
    found no value, so that the mark has to go.
    """

    key: str
    before: Any
    mark: Any
    nulls: int
    future: bool = False
    emptied: bool = False


@dataclass
class Loading:
    """The context that a run gives to its loads; each load adds itself to `loads`. node: the name of the node that
    loads. full_refresh: load as if there was no mark."""

    spark: SparkSession
    mark_of: Callable[[str], Any]
    clock: Clock
    node: str | None = None
    full_refresh: bool = False
    loads: list[Load] = field(default_factory=list)


class FlowLoads:
    """The loads of a flow's sink: their marks move with the epoch that holds their micro-batch.

    One thread loads micro-batches, and another writes epochs. documents: the operational state that lies with the
    partitions; None: without recovery there are no marks.
    """

    def __init__(self, documents: StoreBackend | None, clock: Clock) -> None:
        self._state = None if documents is None else StateManager(backend=documents, clock=clock)
        self._clock = clock
        self._lock = threading.Lock()
        self._moved: dict[BatchId, dict[str, Any]] = {}

    @contextlib.contextmanager
    def during(self, spark: SparkSession, batch: BatchId) -> Iterator[None]:
        """Context manager in which loads belong to this micro-batch; if the micro-batch fails, the loads move no
        mark."""
        loading = Loading(spark, self._mark_of, self._clock)
        token = _current.set(loading)
        try:
            yield
        finally:
            _current.reset(token)
        for key in (load.key for load in loading.loads if load.future):
            warnings.warn(f"the mark of {key} is in the future: until then, loads skip new rows", stacklevel=1)
        marks = moved(loading.loads)
        with self._lock:
            self._moved.pop(batch, None)
            if marks:
                # Without recovery no epoch is closed, after which anything would be forgotten.
                self._moved[batch] = marks

    def prepare(self, epoch: Epoch, batch: BatchId, floor: Epoch) -> dict[StepId, dict[str, str | bytes | None]]:
        """Return the rows with marks for the epoch that ends with `batch`."""
        with self._lock:
            marks = {
                key: mark for each in sorted(self._moved) if each <= batch for key, mark in self._moved[each].items()
            }
        if not marks:
            return {}
        assert self._state is not None
        rows = {key: self._state.epoch_row(key, mark) for key, mark in marks.items()}
        return {StepId(EPOCH_STEP): {key: text for (_, key), (text, _) in changes("", rows).items()}}

    def closed(self, batch: BatchId) -> None:
        """Forget the marks up to `batch`: the epoch that ends with it is closed, so everybody sees them."""
        with self._lock:
            self._moved = {each: marks for each, marks in self._moved.items() if each > batch}

    def publish(self, epoch: Epoch, batch: BatchId, floor: Epoch) -> None:
        """Do nothing: the marks are visible when the epoch is closed."""

    def _mark_of(self, key: str) -> Any:
        if self._state is None:
            raise bad(key, "a run without a recovery directory has no marks", "Give it one (-r DIR).")
        with self._lock:
            found = [marks[key] for _, marks in sorted(self._moved.items()) if key in marks]
        return found[-1] if found else self._state.get_hwm(key)


def moved(loads: Sequence[Load]) -> dict[str, Any]:
    """Return the marks that loads move, with their new values."""
    return {load.key: load.mark for load in loads if load.mark is not None and not is_same_mark(load.before, load.mark)}


_current: ContextVar[Loading | None] = ContextVar("recovery_loading", default=None)


class Incremental:
    """The description of an incremental load, which is executed when its node runs."""

    def __init__(
        self,
        reader: Reader,
        column: str,
        key: str | None,
        mode: str,
        lookback: Interval | None,
        watermark_lag: Interval | None,
        fallback_column: str | None,
        date_format: str | None = None,
    ) -> None:
        if key is not None:
            check(key, "key of a mark")
        name = column if key is None else key
        if mode not in MODES:
            raise bad(name, f"there is no mode {mode!r}", f"Use one of {', '.join(MODES)}.")
        if (mode == ROLLING_WINDOW) != (lookback is not None):
            raise bad(
                name, f"mode {mode!r} with lookback={lookback!r}", "A rolling window has a lookback; others none."
            )
        if mode == ROLLING_WINDOW and watermark_lag is not None:
            raise bad(name, "a rolling window has no mark to lag behind", "Leave watermark_lag out.")
        for given in (each for each in (lookback, watermark_lag) if each is not None):
            number = bare(given)
            if number is None:
                parse_interval(given)
            elif not 0 <= number < math.inf:
                raise bad(name, f"{given!r:.40} leads away from the newest rows", "Give 0 or more.")
        self.reader = reader
        self.column = column
        # Before a node gives its name, an empty text, which no key is.
        self.key = key or ""
        self.mode = mode
        self.lookback = lookback
        self.watermark_lag = watermark_lag
        self.fallback_column = fallback_column
        self.date_format = None if date_format is None else FORMATS.get(date_format, date_format)

    def named_after(self, node: str) -> Incremental:
        """Return this load with the name of a node as its key, unless it has a key."""
        if self.key:
            return self
        named = copy.copy(self)
        named.key = node
        return named

    def __call__(self, spark: SparkSession) -> DataFrame:
        """Return the rows to load now. Raises ConfigurationError outside a run."""
        loading = _current.get()
        if loading is None:
            raise bad(
                self.key or self.column,
                "it was called outside a run",
                "Give it to a Node as read, or call it in read, or in a flow's sink.",
            )
        if not self.key:
            return self._load_for_node(loading)
        source = self.reader if isinstance(self.reader, DataFrame) else self.reader(spark)
        found = cursor(source, self.key, self.column, self.fallback_column, self.date_format)
        if self.mode == ROLLING_WINDOW:
            return self._window(source, found, loading)
        return self._newer(source, found, loading)

    def _load_for_node(self, loading: Loading) -> DataFrame:
        """Load with the name of the running node as the key."""
        if loading.node is None:
            raise bad(self.column, "it has no key", 'Give it one: incremental(..., key="orders").')
        if any(load.key == loading.node for load in loading.loads):
            raise bad(loading.node, "its node has two loads without a key", "Give each load its own key.")
        return self.named_after(loading.node)(loading.spark)

    @property
    def mark_key(self) -> str | None:
        """The mark that the load moves; None if it moves none."""
        return None if self.mode == ROLLING_WINDOW else self.key or None

    def __recovery_definition__(self) -> list[Any]:
        """Return the settings that define this load: with other settings it is another load."""
        reader = None if isinstance(self.reader, DataFrame) else self.reader
        return [reader, self.column, self.key, self.mode, str(self.lookback), str(self.watermark_lag),
                self.fallback_column, *([] if self.date_format is None else [self.date_format])]  # fmt: skip

    def _newer(self, source: DataFrame, found: Cursor, loading: Loading) -> DataFrame:
        """Return all rows the first time; then those above the mark, up to the highest value that is there now.

        Rows that are added during this load are left to the next one, because the mark must match what was written.
        """
        value, kind = found.value, found.kind
        before = loading.mark_of(self.key)
        if loading.full_refresh:
            before = None
        if before is not None:
            # Spark would compare values of other types anyway, and find nothing above the mark.
            check_comparable(
                self.key, before, _example(kind, before), f"column {self.column!r} of {kind.simpleString()}"
            )
        check_text(found, source, before)
        newer = F.lit(True) if before is None else value > _literal(self._lagged(before), kind)
        nulls = F.count_if(value.isNull())
        top_column = collected(found, F.max(F.when(newer, value))).alias("top")
        [row] = source.agg(top_column, nulls.alias("nulls")).collect()
        top = python_value(found, row.top)
        mark = top
        if top is not None:
            check_value(top)
            self._lagged(top)
            if before is not None:
                # With a lag, all reloaded rows may lie below the mark, which then stays.
                mark = top if not self._behind(before, top) else before
        if any(load.key == self.key and not is_same_mark(load.mark, mark) for load in loading.loads):
            raise bad(self.key, "it was loaded here already, and up to another mark", "Give each load its own key.")
        emptied = loading.full_refresh and mark is None
        loading.loads.append(Load(self.key, before, mark, row.nulls, self._future(mark, before, loading), emptied))
        if top is None:
            # Leave rows that arrive during this load to the next one, even if there were none before.
            return source.where(value.isNull() if before is None else F.lit(False))
        within = newer & (value <= _literal(top, kind))
        return source.where(within | value.isNull() if before is None else within)

    def _behind(self, before: Any, top: Any) -> bool:
        if self.watermark_lag is None:
            check_forward(self.key, before, top)
            return False
        return bool(comparable(top) < comparable(before))

    def _future(self, mark: Any, before: Any, loading: Loading) -> bool:
        """Return whether the mark, moved or not, lies in the future. Every load reports a mark in the future, because
        such a mark skips valid rows."""
        now = datetime.fromtimestamp(loading.clock.wall_ms() / 1000, tz=UTC)
        return is_future(before if mark is None else mark, now)

    def _window(self, source: DataFrame, found: Cursor, loading: Loading) -> DataFrame:
        value, kind = found.value, found.kind
        assert self.lookback is not None
        if not isinstance(kind, T.TimestampType | T.TimestampNTZType | T.DateType):
            raise bad(self.key, f"column {self.column!r} is not a time", "A rolling window needs a timestamp or date.")
        now = datetime.fromtimestamp(loading.clock.wall_ms() / 1000, tz=UTC)
        since = self._below(now.date() if isinstance(kind, T.DateType) else now, self.lookback)
        if isinstance(kind, T.TimestampNTZType):
            since = since.replace(tzinfo=None)
        [row] = source.agg(F.count_if(value.isNull()).alias("nulls")).collect()
        loading.loads.append(Load(self.key, None, None, row.nulls))
        return source.where(value >= _literal(since, kind))

    def _lagged(self, before: Any) -> Any:
        if self.watermark_lag is None:
            return before
        if isinstance(before, date):
            return self._below(before, self.watermark_lag)
        lag = bare(self.watermark_lag)
        if lag is not None and not isinstance(before, str | bytes):
            return before - type(before)(math.ceil(lag) if isinstance(before, int) else lag)
        raise bad(self.key, f"watermark_lag={self.watermark_lag!r} cannot be taken from {before!r:.40}",
                   "Give an interval for times, a number for numbers.")  # fmt: skip

    def _below(self, value: Any, given: Interval) -> Any:
        """Return the time or date that lies an interval below another. A number without a unit is seconds below a time
        and days below a date, where a part of a day counts as a whole one: that reads too much rather than too little.
        """
        number = bare(given)
        try:
            if isinstance(value, datetime):
                # Subtract from the instant: in a zone, Python subtracts from what its clocks show.
                return comparable(value) - timedelta(seconds=parse_interval(given))
            return value - timedelta(days=math.ceil(parse_interval(given) / 86_400 if number is None else number))
        except OverflowError:
            raise bad(self.key, f"{given!r:.40} leads before the year 1", "Give a shorter interval.") from None


@also_named(key_column="column", state_key="key")
def incremental(
    reader: Reader,
    *,
    column: str,
    key: str | None = None,
    mode: str | None = None,
    lookback: Interval | None = None,
    unit: str | None = None,
    watermark_lag: Interval | None = None,
    fallback_column: str | None = None,
    date_format: str | None = None,
) -> Any:
    """Return the rows of a batch source that are newer than the high-water mark of `key`.

    In the `read` of a pipeline's node, or in the sink of a flow on the thread on which Spark calls it, this returns a
    DataFrame; elsewhere, an object to pass to a Node as `read`. In a flow the mark moves with the epoch that holds the
    micro-batch.

    reader: a DataFrame, or a function that makes one from the SparkSession.
    column: decides what is newer: a number, text, date or timestamp. Rows whose column is NULL, NaN or infinite are
        loaded the first time only; each run reports their number. fallback_column replaces such values. Texts are
        refused if they are dates or numbers that sort differently as text.
    key: the high-water mark; by default the name of the node.
    date_format: the Spark pattern of dates or times in a text column, such as "dd-MMM-yy"; or one of Odibi's names:
        oracle, oracle_sqlserver, sql_server, us, eu, iso.
    mode: "stateful": all rows the first time, then those above the mark; the mark becomes the highest value once the
        node's write succeeded, with the epoch that the run closes for it. "rolling_window": the rows of the last
        `lookback`, without a mark. By default, a rolling window if there is a lookback.
    lookback, watermark_lag: an interval; a number without a unit is seconds, and days for dates, where a part of a day
        counts as a whole one. unit: that of a lookback that is a number: "hour" or "day". watermark_lag: load rows
        again down to this far below the mark, for rows that come late; of numbers, a number.

    Raises ConfigurationError, and StateValueError or HighWaterMarkError before anything is written.
    """
    if unit is not None:
        if lookback is None or bare(lookback) is None:
            raise bad(key or column, f"unit={unit!r:.40} without a number as lookback", "Give lookback=3, unit='day'.")
        lookback = f"{lookback} {unit}"
    if mode is None:
        mode = STATEFUL if lookback is None else ROLLING_WINDOW
    load = Incremental(reader, column, key, mode, lookback, watermark_lag, fallback_column, date_format)
    loading = _current.get()
    return load if loading is None else load(loading.spark)


def _literal(value: Any, kind: T.DataType) -> Column:
    if isinstance(value, datetime) and value.tzinfo is not None:
        micros = (value - EPOCH) // timedelta(microseconds=1)
        return F.timestamp_micros(F.lit(micros))
    if isinstance(value, date):
        # Pass it as text: PySpark would read a time without a zone in this process's time zone.
        return F.lit(value.isoformat()).cast(kind)
    # Spark compares two number types in the wider one; a cast to the column's type might change the mark.
    return F.lit(value) if isinstance(kind, T.NumericType) else F.lit(value).cast(kind)


def _example(kind: T.DataType, otherwise: Any) -> Any:
    """Return a value that such a column may have; `otherwise` for a type that marks cannot have."""
    return next((value for types, value in _EXAMPLES if isinstance(kind, types)), otherwise)


_EXAMPLES: tuple[tuple[Any, Any], ...] = (
    (T.NumericType, 0),
    (T.StringType, ""),
    (T.BinaryType, b""),
    (T.TimestampType, EPOCH),
    (T.TimestampNTZType, datetime(1970, 1, 1)),  # noqa: DTZ001 - it has no zone
    (T.DateType, date(1970, 1, 1)),
)
