"""Values of operational state: their types, and how they are written."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.errors import StateValueError
from recovery.operational.values import dumps, loads, parse_json

BERLIN = ZoneInfo("Europe/Berlin")
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.dates() | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.timezones() | st.just(timezone(timedelta(hours=-3.5))))
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@settings(max_examples=40)
@given(values)
def test_a_value_comes_back_equal_and_of_its_type(value):
    """Whatever it is made of; a moment with its zone."""
    back = loads(dumps(value))
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, datetime):
        assert back.tzinfo == value.tzinfo
        assert back.utcoffset() == value.utcoffset()


def test_the_hour_that_comes_twice():
    """When clocks are put back, two moments have the same local time; they stay two."""
    first = datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)
    second = first.replace(fold=1)
    back = [loads(dumps(each)) for each in (first, second)]
    assert [each.utcoffset() for each in back] == [timedelta(hours=2), timedelta(hours=1)]


def test_not_a_number():
    """It is not JSON, and comes back all the same."""
    assert math.isnan(loads(dumps(math.nan)))
    assert loads(dumps([math.inf, -math.inf])) == [math.inf, -math.inf]
    assert "NaN" not in dumps(math.nan)


@pytest.mark.parametrize("text", ['{"a": NaN}', '"\\ud800"', '{"\\udfff": 1}', '{"a": 1, "a": 2}'])
def test_json_that_could_not_be_written_again(text):
    """Python reads it, and no other program would read what Python writes for it."""
    with pytest.raises(StateValueError, match="not JSON"):
        parse_json(text)


@pytest.mark.parametrize("text", ["1e999", "[-1e999]", "9" * 5000])
def test_a_number_that_is_too_large(text):
    """No float holds it, or Python reads no longer ones; the error says so, and the form that takes it does."""
    with pytest.raises(StateValueError, match=r"number -?[19e]+ is too large") as caught:
        parse_json(text)
    assert '{"$decimal": "1e400"}' in caught.value.remedy
    assert loads('{"$decimal": "1e400"}') == Decimal("1e400")


def test_numbers_of_numpy_stand_for_numbers_of_python():
    """What Spark or pandas hand out can be stored."""
    assert dumps([numpy.int64(5), numpy.float64(0.5), numpy.bool_(True)]) == "[5,0.5,true]"


class OddZone(tzinfo):
    def utcoffset(self, moment):
        return timedelta(hours=1)

    def dst(self, moment):
        return timedelta(0)


@pytest.mark.parametrize(
    "value",
    [object(), {1: 2}, (1, 2), {1}, "\ud800", {"\ud800": 1}, datetime(2024, 1, 1, tzinfo=OddZone()), 1 << 20_000,
     numpy.zeros(3)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_would_change_is_refused(value):
    """By an error that names it, never by storing something else."""
    with pytest.raises(StateValueError, match="cannot be stored"):
        dumps(value)


def test_a_bottomless_value_is_refused():
    """A list that holds itself ends in an error, not in the interpreter's stack."""
    value: list = []
    value.append(value)
    with pytest.raises(StateValueError, match="nested"):
        dumps(value)
    value = []
    for _ in range(2000):
        value = [value]
    with pytest.raises(StateValueError, match="nested"):
        dumps(value)


class Wordless:
    def __repr__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize("value", [Wordless(), [Wordless()], {1: 1 << 20_000}])
def test_what_cannot_be_shown_is_refused_all_the_same(value):
    """The error is about the value, not about its text."""
    with pytest.raises(StateValueError, match="cannot be stored"):
        dumps(value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "NaN", '{"a":1,"a":2}', '{"$date":5}', '{"$date":"x"}', '{"$what":1}', '{"$bytes":"%"}',
     '{"$decimal":"x"}', '{"$datetime":"2024-01-01","zone":"No/Where"}', '{"$date":"2024-01-01","b":1}', "[" * 100_000],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_text_that_is_no_value(text):
    """What people type is refused with what is wrong, whatever it is."""
    with pytest.raises(StateValueError):
        loads(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [('{"$date": "2024-02-30"}', "there is no day '2024-02-30': day is out of range for month"),
     ('[{"$datetime": "2024-01-01T25:00:00"}]', "there is no date and time '2024-01-01T25:00:00': hour must be"),
     ('{"$datetime": "2024-01-01T00:00:00", "zone": "Mars/North"}', "there is no time zone 'Mars/North'"),
     ('{"$datetime": "2024-01-01T00:00:00", "zone": "Europe"}', "there is no time zone 'Europe'"),
     ('{"$datetime": "2024-01-01T00:00:00", "zone": 5}', "there is no time zone 5"),
     ('{"$decimal": "x"}', "there is no decimal number 'x'")],
)  # fmt: skip
def test_dates_and_zones_that_do_not_exist(text, found):
    """A form that is known, of a day or a zone that does not exist: the error says so."""
    with pytest.raises(StateValueError) as caught:
        loads(text)
    assert caught.value.found.startswith(found)
    assert "Write it" in caught.value.remedy


def test_texts_of_the_types():
    """The forms that the documentation shows."""
    assert dumps(date(2013, 1, 31)) == '{"$date":"2013-01-31"}'
    assert dumps(Decimal("1.10")) == '{"$decimal":"1.10"}'
    assert dumps(b"ab") == '{"$bytes":"YWI="}'
    assert dumps({"$date": "x"}) == '{"$dict":{"$date":"x"}}'
    moment = datetime(2013, 1, 31, 5, 17, tzinfo=BERLIN)
    assert dumps(moment) == '{"$datetime":"2013-01-31T05:17:00+01:00","zone":"Europe/Berlin"}'
