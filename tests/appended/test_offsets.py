"""The offsets that a stream goes on with are those that a restarted one reads back."""

from __future__ import annotations

import json
import random

import pytest

from recovery.appended.files import LocalFiles
from recovery.appended.options import parse_options
from recovery.appended.planner import Planner
from recovery.spark.tuning.appended_lines import JvmCallback
from tests.shares import seeds


@pytest.mark.parametrize("seed", seeds(20))
def test_a_stream_plans_as_one_that_was_restarted(tmp_path, seed):
    """Growth, rotation, new and removed files: the driver's answers, which remember offsets, against a planner that is
    new for every question and knows their texts only."""
    generator = random.Random(seed)
    options = {"path": f"{tmp_path}/*.log", "maxBytesPerTrigger": "200", "onMissing": "ignore", "onRewrite": "restart"}
    driver = JvmCallback()
    stream = driver._open(dict(options))
    at = driver._initial(stream)
    for _ in range(30):
        path = tmp_path / f"{generator.randrange(4)}.log"
        action = generator.random()
        if action < 0.6:
            with path.open("a") as file:
                file.write("".join(f"{generator.random()}\n" for _ in range(generator.randrange(1, 9))))
        elif action < 0.8 and path.exists():
            path.rename(path.with_suffix(".log.1"))
        elif path.exists():
            path.unlink()
        for _ in range(3):
            new = Planner(parse_options(options), LocalFiles(), 2)
            end = driver._latest(stream, at, True)
            assert json.loads(end) == new.latest(json.loads(at), 200)
            assert json.loads(driver._tasks(stream, at, end)) == json.loads(tasks_of(options, at, end))
            at = end


def tasks_of(options: dict[str, str], start: str, end: str) -> str:
    """What a driver that has just started answers."""
    driver = JvmCallback()
    stream = driver._open(options)
    return driver._tasks(stream, start, end)
