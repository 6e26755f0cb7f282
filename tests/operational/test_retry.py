"""Waiting for other writers."""

from __future__ import annotations

import pytest

from recovery.errors import ConfigurationError
from recovery.operational.backends.retry import Busy, RetryPolicy


def attempts(failures: int, error: type[Exception] = Busy):
    """An attempt that fails so many times, and counts."""
    seen = []

    def attempt() -> str:
        seen.append(1)
        if len(seen) <= failures:
            raise error("not now")
        return f"done at {len(seen)}"

    return attempt, seen


def test_the_pauses_double_up_to_sixteen_seconds_with_jitter():
    """1, 2, 4, 8, 16 s and up to a second each by chance; then the last error is raised."""
    slept: list[float] = []
    attempt, seen = attempts(99)
    with pytest.raises(Busy):
        RetryPolicy().run(attempt, sleep=slept.append, draw=lambda: 0.5)
    assert slept == [1.5, 2.5, 4.5, 8.5, 16.5]
    assert len(seen) == 6


def test_it_ends_when_an_attempt_succeeds():
    """And what the attempt returned is returned."""
    slept: list[float] = []
    attempt, _ = attempts(2)
    assert RetryPolicy(jitter=0).run(attempt, sleep=slept.append) == "done at 3"
    assert slept == [1, 2]


def test_a_permanent_error_is_not_tried_again():
    """Only being busy passes by itself."""
    attempt, seen = attempts(99, ValueError)
    with pytest.raises(ValueError, match="not now"):
        RetryPolicy().run(attempt, sleep=lambda _: pytest.fail("it slept"))
    assert len(seen) == 1


def test_the_longest_wait_is_known():
    """All attempts, pauses and jitter together."""
    assert RetryPolicy().longest_s == 6 * 5 + 31 + 5
    assert RetryPolicy(busy="1s", delays=(), jitter=0).longest_s == 1


@pytest.mark.parametrize("settings", [{"busy": -1}, {"delays": "12"}, {"delays": (-1,)}, {"jitter": "x"}])
def test_invalid_settings(settings):
    """Refused when given, not when needed."""
    with pytest.raises(ConfigurationError):
        RetryPolicy(**settings)
