"""Which cases of a test run by default, which only among the long ones, and with which of these a run begins."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable, Iterator
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


def strided(every: int) -> pytest.MarkDecorator:
    """A parameter `every` for a test of numbered steps: one step in so many runs always, all of them among the long
    tests."""
    return pytest.mark.parametrize("every", some([every, 1], every), ids=["some", "all"])


def steps(every: int) -> Iterator[int]:
    """The numbers of the steps, from 1; of several, one in `every` from a random one on, which RECOVERY_TEST_SEED
    replays."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    if every > 1:
        print(f"replay with RECOVERY_TEST_SEED={seed}")
    return itertools.count(1 + seed % every, every)


def steps_up_to(count: int, every: int) -> Iterator[int]:
    """The numbers that `steps` gives, up to `count`."""
    return itertools.takewhile(lambda number: number <= count, steps(every))


TURNS = 11
"""How many runs begin with different files. A prime: runs that are any one number of commits apart have every turn."""


def by_turn(items: Iterable[pytest.Item], turn: int) -> list[pytest.Item]:
    """The tests, ordered by file: one file in `TURNS` comes first, another one for each turn, and then the files that
    come first at the next turns. Where the time ends before the tests do, every file has begun after so many turns."""
    tests = list(items)
    numbers = {path: number for number, path in enumerate(dict.fromkeys(each.path for each in tests))}
    return sorted(tests, key=lambda each: ((numbers[each.path] - turn) % TURNS, numbers[each.path]))
