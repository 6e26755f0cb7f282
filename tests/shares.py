"""Which cases of a test run by default, and which only among the long ones."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest


def some(values: Iterable[object], *by_default: object) -> list[object]:
    """All values of one parameter for `parametrize`: those of `by_default` run always, the others are long."""
    return [value if value in by_default else pytest.param(value, marks=pytest.mark.long) for value in values]


def seeds(count: int) -> list[object]:
    """Seeds for `parametrize`: the first runs always, the others are long; RECOVERY_TEST_SEEDS bounds their number."""
    return some(range(min(count, int(os.environ.get("RECOVERY_TEST_SEEDS", count)))), 0)
