"""Which cases of a test run by default, and which only among the long ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def some(values: Iterable[object], *by_default: object) -> list[object]:
    """All values of one parameter for `parametrize`: those of `by_default` run always, the others are long."""
    return [value if value in by_default else pytest.param(value, marks=pytest.mark.long) for value in values]


def first(names: str | tuple[str, ...], values: Iterable[Any], count: int = 1, **options: Any) -> pytest.MarkDecorator:
    """`parametrize` of which the first values run always, as many as `count` says; the others are long."""
    several = not isinstance(names, str) or "," in names

    def case(value: Any, marks: list[pytest.MarkDecorator]) -> ParameterSet:
        if isinstance(value, ParameterSet):
            return pytest.param(*value.values, marks=[*value.marks, *marks], id=value.id)
        return pytest.param(*(value if several else [value]), marks=marks)

    cases = [case(value, [] if number < count else [pytest.mark.long]) for number, value in enumerate(values)]
    return pytest.mark.parametrize(names, cases, **options)


def one_in(share: int, *parameters: Iterable[object]) -> list[object]:
    """All combinations of these parameters' values for `parametrize`: one in so many runs always, and the others are
    long. Any two values of two parameters meet in these if the other parameters have enough values: with a share of 3,
    one more parameter of three values."""
    numbered = itertools.product(*(enumerate(values) for values in parameters))
    return [
        pytest.param(
            *(value for _, value in each), marks=[] if sum(n for n, _ in each) % share == 0 else pytest.mark.long
        )
        for each in numbered
    ]


def seeds(count: int) -> list[object]:
    """Seeds for `parametrize`: the first runs always, the others are long; RECOVERY_TEST_SEEDS bounds their number."""
    return some(range(min(count, int(os.environ.get("RECOVERY_TEST_SEEDS", count)))), 0)
