"""Settings and intervals."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery import RecoveryConfig
from recovery.base.intervals import format_interval, parse_interval
from recovery.config import given_backup_interval_s
from recovery.errors import ConfigurationError


class TestIntervals:
    """Numbers of seconds, timedeltas and texts with a unit."""

    @pytest.mark.parametrize(
        ("value", "seconds"),
        [
            (10, 10.0), (0, 0.0), (0.5, 0.5), ("10", 10.0), ("0.5", 0.5), (".5", 0.5), ("5.", 5.0), ("10s", 10.0),
            ("5m", 300.0), ("1h", 3600.0), ("2d", 172800.0), ("250ms", 0.25), (" 10 s ", 10.0), ("10 seconds", 10.0),
            (timedelta(minutes=1, milliseconds=5), 60.005),
        ],
    )  # fmt: skip
    def test_what_is_an_interval(self, value, seconds):
        """Every documented form means its number of seconds."""
        assert parse_interval(value) == pytest.approx(seconds)
        assert type(parse_interval(value)) is float

    @pytest.mark.parametrize(
        "value",
        [
            -1, -0.001, "-1", "", " ", "s", "10 second s", "10x", "1e3", "1h30", "1,5", "١٠", "inf", "nan", math.inf,
            math.nan, True, False, None, [], b"10", timedelta(seconds=-1), 10**400, "9" * 400, "10s\0",
            "99999999999999d", "366001d", 1e12, timedelta.max,
        ],
        ids=lambda value: repr(value)[:20],
    )  # fmt: skip
    def test_invalid_values(self, value):
        """Anything else is refused with an example of what would do."""
        with pytest.raises(ConfigurationError, match="not an interval") as raised:
            parse_interval(value)
        assert "5m" in raised.value.remedy
        assert isinstance(raised.value, ValueError)

    @given(number=st.integers(0, 36_600), unit=st.sampled_from(["ms", "s", "m", "h", "d"]))
    def test_units_agree_with_timedelta(self, number, unit):
        """A unit means what it means elsewhere."""
        names = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
        expected = timedelta(**{names[unit]: number}).total_seconds()
        assert parse_interval(f"{number}{unit}") == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0, "0 s"), (0.5, "0.5 s"), (10, "10 s"), (59.4, "59.4 s"), (60, "1 min"), (90, "1.5 min"),
            (3600, "1 h"), (86400, "1 d"), (86400 * 1234, "1234 d"),
        ],
    )  # fmt: skip
    def test_intervals_for_people(self, seconds, text):
        """Short, with the largest unit that fits."""
        assert format_interval(seconds) == text


class TestRecoveryConfig:
    """The settings of a run."""

    def test_intervals_are_seconds_afterwards(self):
        """Whatever form they were given in, they are floats, and equal settings are equal."""
        config = RecoveryConfig("db", snapshot_interval="5m", backup_interval=timedelta(hours=1))
        assert (config.snapshot_interval, config.backup_interval) == (300.0, 3600.0)
        assert (config.snapshot_interval_s, config.backup_interval_s) == (300.0, 3600.0)
        assert config == RecoveryConfig(Path("db"), snapshot_interval=300, backup_interval=3600.0)

    def test_defaults(self):
        """An epoch every ten seconds, nothing kept for older copies, resume at the newest."""
        config = RecoveryConfig("db")
        assert (config.snapshot_interval_s, config.backup_interval_s) == (10.0, 0.0)
        assert given_backup_interval_s(config) is None
        assert (config.resume_epoch, config.drop_steps, config.rename_steps) == (None, (), {})
        assert config.path == Path("db").absolute(), "the flow may go elsewhere while it runs"

    def test_it_cannot_be_changed(self):
        """A run's settings are those it was started with, also when the caller's own objects change."""
        renames = {"old": "new"}
        config = RecoveryConfig("db", rename_steps=renames)
        renames["more"] = "another"
        assert config.rename_steps == {"old": "new"}
        with pytest.raises(AttributeError):
            config.resume_epoch = 3

    @pytest.mark.parametrize(
        ("settings", "found"),
        [
            ({"snapshot_interval": -1}, "not an interval"),
            ({"backup_interval": "soon"}, "not an interval"),
            ({"resume_epoch": 0}, "resume epoch 0 does not exist"),
            ({"resume_epoch": -3}, "does not exist"),
            ({"resume_epoch": True}, "does not exist"),
            ({"resume_epoch": "3"}, "does not exist"),
            ({"drop_steps": "count"}, "not a sequence of step ids"),
            ({"rename_steps": {"a": "c", "b": "c"}}, "2 steps are to be renamed to 'c'"),
            ({"directory": ""}, "has no name"),
        ],
    )
    def test_settings_that_cannot_be_meant_are_refused(self, settings, found):
        """Immediately, before anything is opened."""
        with pytest.raises(ConfigurationError, match=found) as raised:
            RecoveryConfig(**{"directory": "db", **settings})
        assert raised.value.cause
        assert raised.value.remedy


def test_a_configuration_without_a_directory():
    """For a pipeline whose state is elsewhere; whatever needs the directory says so."""
    config = RecoveryConfig(state_backend="file:///srv/state")
    assert config.directory is None
    with pytest.raises(ConfigurationError, match="no recovery directory was named"):
        _ = config.path
