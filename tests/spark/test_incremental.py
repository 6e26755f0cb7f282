"""How far below a mark a load begins. Nothing here starts Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from recovery import incremental

DAY = date(2024, 1, 10)


@pytest.mark.parametrize(
    ("mark", "lag", "begins"),
    [(DAY, "12h", date(2024, 1, 9)), (DAY, "36h", date(2024, 1, 8)), (DAY, "1d", date(2024, 1, 9)), (100, 0.5, 99),
     (100, 2, 98), (1.5, 0.5, 1.0), (datetime(2024, 1, 10, tzinfo=UTC), "12h", datetime(2024, 1, 9, 12, tzinfo=UTC))],
    ids=str,
)  # fmt: skip
def test_a_lag_is_never_shorter_than_asked_for(mark, lag, begins):
    """Days and whole numbers are rounded up."""
    load = incremental(lambda spark: None, column="c", key="k", mode="stateful", watermark_lag=lag)
    assert load._lagged(mark) == begins
