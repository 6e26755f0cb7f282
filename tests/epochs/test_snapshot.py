"""The requests that close an epoch, and what it may collect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery.base.clock import BOOT_KEY
from recovery.base.reserved import CHECKPOINT_STEP, CLOCK_STEP, EPOCH_STEP
from recovery.epochs.snapshot import SharedEpochs
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.planning.values import FoundFile
from recovery.values.keys import home_of, partition_of
from tests.planning.test_resume import N, Sketch, describe


class Clock:
    """A clock without uptime, whose elapsed time the test sets."""

    now_s = 0.0

    def wall_ms(self) -> int:
        return 3_000 + int(self.now_s * 1000)

    def elapsed_s(self) -> float:
        return self.now_s

    def uptime(self) -> None:
        return None


class Store:
    """The parts of a store that `SharedEpochs` uses."""

    partition_count = N

    def driver_values(self, step: str) -> dict[str, str]:
        assert step == CLOCK_STEP
        return {}


def plan(collected: int = 0) -> ResumePlan:
    """A plan for partitions that all hold epochs 1 to 3, closed after 1, 2 and 3 seconds."""
    found = [describe(Sketch(i, {1: "x", 2: "x", 3: "x"}, collected)) for i in range(N)]
    return plan_resume([FoundFile(each.path, each) for each in found])


def epochs(backup_interval_s: float = 0.0, collected: int = 0) -> tuple[SharedEpochs, Clock]:
    """The epochs of that plan, and the clock, which shows the moment when epoch 3 was closed."""
    clock = Clock()
    return SharedEpochs(Store(), plan(collected), clock, backup_interval_s=backup_interval_s), clock


def test_the_floor_follows_the_clock():
    """The floor is the newest epoch that was closed one backup interval ago."""
    shared, clock = epochs(backup_interval_s=1.5)
    assert shared.time() == (3_000, 1)
    clock.now_s = 0.5
    assert shared.time() == (3_500, 2)
    clock.now_s = 2
    assert shared.time() == (5_000, 3)


def test_an_epoch_ages_from_when_it_was_closed():
    """Not from when its writing began; and it is never above the floor of its own requests."""
    shared, clock = epochs(backup_interval_s=1)
    time = shared.time()
    assert time.floor == 2
    clock.now_s = 5
    shared.add(4, time)
    assert shared.time() == (8_000, 3)
    clock.now_s = 6
    assert shared.time() == (9_000, 4)


def test_an_epoch_that_collects_nothing_keeps_the_last_floor():
    """As a logged epoch does: the floor stays where the partitions have it until one collects, or all are folded."""
    shared, _ = epochs(collected=1)
    assert shared.time().floor == 3
    logged = shared.time(collects=False)
    assert logged.floor == 1
    shared.add(4, logged, collected=False)
    assert shared.time(collects=False).floor == 1
    shared.collected(4)
    assert shared.time(collects=False).floor == 4
    shared.add(5, shared.time()._replace(floor=5))
    assert shared.time(collects=False).floor == 5


def test_the_history_of_a_rewind_ends_before_the_resume_epoch():
    """Epochs that the execution abandons are not counted as closed."""
    clock = Clock()
    rewound = replace(plan(), resume_epoch=2)
    assert SharedEpochs(Store(), rewound, clock, backup_interval_s=0).time().floor == 1


@pytest.mark.parametrize("logged", [False, True])
def test_each_partition_gets_the_rows_it_holds(logged):
    """A row is in the request of exactly one partition; a partition gets no step of which it holds no key."""
    shared, _ = epochs()
    files = {f"offsets/{number}": "v1" for number in range(20)}
    marks = {"a": "1", "b": "2"}
    time = shared.time()
    requests = shared.requests(4, 7, time, {CHECKPOINT_STEP: files, EPOCH_STEP: marks, "$none": {}}, logged=logged)
    assert [(r.epoch, r.batch, r.clock_ms, r.floor, r.logged) for r in requests] == [(4, 7, 3_000, 3, logged)] * N
    for index, request in enumerate(requests):
        held = {key for key in files if partition_of(key, N) == index}
        assert dict(request.driver_rows.get(CHECKPOINT_STEP, {})) == {key: files[key] for key in held}
        assert dict(request.driver_rows.get(EPOCH_STEP, {})) == (marks if index == 0 else {})
        assert dict(request.driver_rows.get(CLOCK_STEP, {})) == (
            {BOOT_KEY: None} if home_of(CLOCK_STEP, N, BOOT_KEY) == index else {}
        )
        assert all(request.driver_rows.values())
        assert request.state_rows == {}


def test_states_are_divided_like_rows_of_the_driver():
    """Each edited state, with its timeout, goes to the partition of its key."""
    shared, _ = epochs()
    states = {"totals": {f"key{number}": (str(number), None) for number in range(20)}, "gone": {"x": (None, None)}}
    requests = shared.requests(4, 7, shared.time(), {}, state_rows=states)
    found = [(step, key, *state, index) for index, r in enumerate(requests)
             for step, rows in r.state_rows.items() for key, state in rows.items()]  # fmt: skip
    assert sorted(found) == sorted(
        (step, key, *state, partition_of(key, N)) for step, rows in states.items() for key, state in rows.items()
    )


def test_a_value_is_read_when_its_partition_is_written():
    """Requests hold views: a value that fits in memory only alone is read by the partition that stores it."""
    shared, _ = epochs()
    read: list[str] = []

    class Files(dict):
        def __getitem__(self, key: str) -> str:
            read.append(key)
            return super().__getitem__(key)

    requests = shared.requests(4, 7, shared.time(), {CHECKPOINT_STEP: Files({"a": "1", "b": "2", "c": "3"})})
    assert read == []
    for request in requests:
        dict(request.driver_rows.get(CHECKPOINT_STEP, {}))
    assert sorted(read) == ["a", "b", "c"]
