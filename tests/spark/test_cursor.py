"""Incremental loads by columns whose values have no place in an order, or another order than they seem to have."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from recovery import (
    FlowFailedError,
    Node,
    Pipeline,
    RecoveryConfig,
    StateManager,
    incremental,
    init_partitions,
    run_pipeline,
)
from tests.shares import first

NAN, INF = float("nan"), float("inf")


class Loads:
    """A table that grows, loaded by its column `value`."""

    def __init__(self, spark, directory, kind, **options):
        self._spark, self._kind, self._directory = spark, kind, directory
        self._options = options
        self.rows = []
        self.loaded = []

    def __call__(self):
        """Load; returns the node's record."""
        read = incremental(self._read, column="value", key="k", **self._options)
        node = Node("load", read=read, write=lambda frame: self.loaded.append(sorted(r.n for r in frame.collect())))
        config = RecoveryConfig(self._directory)
        return run_pipeline(Pipeline("p", [node]), config, spark=self._spark).nodes["load"]

    def mark(self):
        """The mark now."""
        return StateManager(self._directory).get_hwm("k")

    def _read(self, spark):
        texts = [(n, None if value is None else str(value)) for n, value in enumerate(self.rows)]
        return spark.createDataFrame(texts, "n int, text string").selectExpr("n", f"{self._kind} AS value")


@pytest.fixture
def loads(spark, tmp_path):
    init_partitions(tmp_path / "db", 1)
    return lambda kind, **options: Loads(spark, tmp_path / "db", kind, **options)


@first("first", [True, False])
def test_nan_and_infinity(loads, first):
    """NaN and infinities are loaded the first time, counted each time, and never become a mark, nor block one."""
    load = loads("CAST(text AS double)")
    load.rows = [2.5, *([NAN, INF] if first else [])]
    load()
    assert (load.loaded, load.mark()) == ([[0, 1, 2] if first else [0]], 2.5)
    load.rows += [NAN, -INF, 3.5]
    record = load()
    assert load.loaded[1] == [len(load.rows) - 1]
    assert load.mark() == 3.5
    assert record.details["nulls"] == {"k": 4 if first else 2}


@first(
    "values",
    [["20-APR-24"], ["4/5/2024"], ["2024-4-9"], ["9", "10"], ["order-9", "order-10"],
     ["2024-05-01T10:00:00+01:00", "2024-05-01T10:00:00+02:00"], ["-3"]],
    ids=str,
)  # fmt: skip
def test_texts_out_of_order(loads, values):
    """They are refused the first time, before anything is written."""
    load = loads("text")
    load.rows = values
    with pytest.raises(FlowFailedError, match=r"the texts in column 'value' do not sort.*date_format"):
        load()
    assert (load.loaded, load.mark()) == ([], None)


def test_a_text_that_comes_later(loads):
    """Ten is less than nine, as text: nothing is passed over in silence, and what is in order loads on."""
    load = loads("text")
    load.rows = ["8"]
    load()
    load.rows = ["9"]
    load()
    load.rows = ["10"]
    with pytest.raises(FlowFailedError, match="it has '10', and the mark is '9'"):
        load()
    assert load.mark() == "9"


@first(
    ("form", "texts", "marks"),
    [("dd-MMM-yy", ["20-APR-24", "04-MAY-24"], [date(2024, 4, 20), date(2024, 5, 4)]),
     ("d/M/yyyy H:mm", ["9/4/2024 9:05", "10/4/2024 10:00"],
      [datetime.fromisoformat("2024-04-09 09:05"), datetime.fromisoformat("2024-04-10 10:00")]),
     ("dd MMM yyyy HH:mm:ssXXX", ["20 Apr 2024 10:00:00+02:00", "20 Apr 2024 09:00:00Z"],
      [datetime(2024, 4, 20, 8, tzinfo=UTC), datetime(2024, 4, 20, 9, tzinfo=UTC)])],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_dates_that_are_parsed(loads, form, texts, marks):
    """With date_format the mark is what they say: the day, the time without a zone, the moment."""
    load = loads("text", date_format=form)
    for text, mark in zip(texts, marks, strict=True):
        load.rows.append(text)
        load()
        assert load.mark() == mark
    load()
    assert load.loaded == [[0], [1], []]
    load.rows.append("tomorrow")
    with pytest.raises(FlowFailedError, match="'tomorrow' in column 'value' is not a date by"):
        load()


@first(
    ("kind", "found"),
    [("CAST(text AS boolean)", "is true or false"), ("text COLLATE UNICODE_CI", "collation UNICODE_CI"),
     ("array(text)", "has no order"), ("CAST('10000-01-01' AS date)", "later than the year 9999"),
     ("CAST('10000-01-01' AS timestamp)", "later than the year 9999"),
     ("CAST('10000-01-01' AS timestamp_ntz)", "later than the year 9999")],
)  # fmt: skip
def test_columns_without_an_order_that_grows(loads, kind, found):
    """They are refused by name."""
    load = loads(kind)
    load.rows = ["true"]
    with pytest.raises(FlowFailedError, match=found):
        load()
    assert load.loaded == []


@pytest.mark.long
def test_a_mark_in_the_future_is_reported(loads):
    """With the load that sets it, and those after."""
    load = loads("CAST(text AS date)")
    load.rows = [date(2024, 5, 1)]
    assert "future_marks" not in load().details
    load.rows.append(date(9999, 12, 31))
    for _ in range(2):
        assert load().details["future_marks"] == ["k"]
