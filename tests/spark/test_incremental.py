"""How far below a mark a load begins. Nothing here starts Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from recovery import ConfigurationError, incremental

DAY = date(2024, 1, 10)
NEW_YORK = ZoneInfo("America/New_York")


@pytest.mark.parametrize(
    ("mark", "lag", "begins"),
    [(DAY, "12h", date(2024, 1, 9)), (DAY, "36h", date(2024, 1, 8)), (DAY, "1d", date(2024, 1, 9)), (100, 0.5, 99),
     (100, 2, 98), (1.5, 0.5, 1.0), (datetime(2024, 1, 10, tzinfo=UTC), "12h", datetime(2024, 1, 9, 12, tzinfo=UTC)),
     # Without a unit: days of a date, seconds of a time, and of a number as it is.
     (DAY, 9, date(2024, 1, 1)), (DAY, "9", date(2024, 1, 1)), (DAY, 0.5, date(2024, 1, 9)), (100, "2", 98),
     (datetime(2024, 1, 10, tzinfo=UTC), 90, datetime(2024, 1, 9, 23, 58, 30, tzinfo=UTC)),
     (DAY, "2 days", date(2024, 1, 8)), (DAY, timedelta(days=2), date(2024, 1, 8)), (Decimal(5), 1, Decimal(4)),
     # Of instants, in the hour that comes twice and in the one that does not come.
     (datetime(2026, 11, 1, 1, 50, fold=1, tzinfo=NEW_YORK), "1h", datetime(2026, 11, 1, 5, 50, tzinfo=UTC)),
     (datetime(2026, 3, 8, 3, 10, tzinfo=NEW_YORK), "30m", datetime(2026, 3, 8, 6, 40, tzinfo=UTC))],
    ids=str,
)  # fmt: skip
def test_a_lag_is_never_shorter_than_asked_for(mark, lag, begins):
    """Days and whole numbers are rounded up."""
    load = incremental(lambda spark: None, column="c", key="k", mode="stateful", watermark_lag=lag)
    assert load._lagged(mark) == begins


@pytest.mark.parametrize("lag", [-1, "-1d", float("nan"), float("inf"), "1 month", "soon", True, [1]])
def test_what_is_no_lag(lag):
    """Refused where the load is described, like a lookback."""
    for given in ({"watermark_lag": lag}, {"lookback": lag, "mode": "rolling_window"}):
        with pytest.raises(ConfigurationError):
            incremental(lambda spark: None, column="c", key="k", **given)


@pytest.mark.parametrize("lag", [10**9, "9" * 15, "900000d"])
def test_a_lag_before_all_dates(lag):
    """Refused when it is used, by the name of the load."""
    with pytest.raises(ConfigurationError, match=r"'k'.*before the year 1|longer than a thousand years"):
        incremental(lambda spark: None, column="c", key="k", watermark_lag=lag)._lagged(DAY)


def test_odibi_s_names():
    """Its settings, by its names; a unit without a fixed length is refused."""
    load = incremental(lambda spark: None, key_column="c", state_key="k", lookback=3, unit="day")
    assert (load.column, load.key, load.mode, load.lookback) == ("c", "k", "rolling_window", "3 day")
    assert load._below(DAY, load.lookback) == date(2024, 1, 7)
    for wrong in ({"lookback": 3, "unit": "month"}, {"unit": "day"}, {"lookback": "3d", "unit": "day"}):
        with pytest.raises(ConfigurationError):
            incremental(lambda spark: None, column="c", key="k", **wrong)
