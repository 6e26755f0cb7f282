"""Which cases of a test run by default, and which only among the long ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable

import pytest


def some(values: Iterable[object], *by_default: object) -> list[object]:
    """All values of one parameter for `parametrize`: those of `by_default` run always, the others are long."""
    return [value if value in by_default else pytest.param(value, marks=pytest.mark.long) for value in values]


def a_third(*parameters: Iterable[object]) -> list[object]:
    """All combinations of these parameters' values for `parametrize`: a third of them runs always, in which any two
    values of two parameters meet if there are three or more parameters; the others are long."""
    numbered = itertools.product(*(enumerate(values) for values in parameters))
    return [
        pytest.param(*(value for _, value in each), marks=[] if sum(n for n, _ in each) % 3 == 0 else pytest.mark.long)
        for each in numbered
    ]


def seeds(count: int) -> list[object]:
    """Seeds for `parametrize`: the first runs always, the others are long; RECOVERY_TEST_SEEDS bounds their number."""
    return some(range(min(count, int(os.environ.get("RECOVERY_TEST_SEEDS", count)))), 0)
