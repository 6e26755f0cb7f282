"""Clocks that jump, stand still or change to summer time: what is resumed and what is collected stays the same."""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from recovery.base.clock import Uptime
from recovery.planning.folding import FoldLimits
from recovery.planning.resume import plan_resume
from recovery.storage.scan import scan
from tests.faults.minirun import MiniRun, states, totals
from tests.shares import some
from tests.stores import problems

DAY_MS = 24 * 3600 * 1000
HOUR_MS = 3600 * 1000
START_MS = 1_800_000_000_000
BACKUP_S = 100
BATCHES = 24
EVERY_S = 20


@dataclass
class FakeClock:
    """A machine's clocks: `elapsed` goes on by itself, and `shift` is what somebody does to the wall clock."""

    now_s: float = 0.0
    shift_ms: int = 0
    frozen_ms: int | None = None
    boot: str | None = "boot"

    def wall_ms(self) -> int:
        if self.frozen_ms is not None:
            return self.frozen_ms
        return START_MS + int(self.now_s * 1000) + self.shift_ms

    def elapsed_s(self) -> float:
        return self.now_s

    def uptime(self) -> Uptime | None:
        return None if self.boot is None else Uptime(self.boot, int(self.now_s * 1000))


def nothing(clock: FakeClock, batch: int) -> None:
    """The clock goes right."""


def forth_and_back(clock: FakeClock, batch: int) -> None:
    clock.shift_ms = 400 * DAY_MS if batch % 3 == 1 else 0


def back_and_forth(clock: FakeClock, batch: int) -> None:
    clock.shift_ms = -400 * DAY_MS if batch % 3 == 1 else 0


def forth_for_good(clock: FakeClock, batch: int) -> None:
    clock.shift_ms = 400 * DAY_MS if batch % 8 > 3 else clock.shift_ms


def back_for_good(clock: FakeClock, batch: int) -> None:
    clock.shift_ms = -400 * DAY_MS if batch > 4 else 0


def frozen(clock: FakeClock, batch: int) -> None:
    clock.frozen_ms = START_MS


def summer_time(clock: FakeClock, batch: int) -> None:
    """The wall clock is put forward by an hour, and later back, as by somebody without time zones."""
    clock.shift_ms = HOUR_MS if 5 <= batch < 17 else 0


def decisions(directory: Path, disturb, between: bool, restarts: bool = False) -> list[tuple]:
    """Runs over one input; after each micro-batch, the epochs that can be resumed after. `disturb` is done to the clock
    in the middle of runs, or between two of them as well; `restarts`: the machine is restarted between them."""
    clock = FakeClock()
    found: list[tuple] = []
    batch = 0
    while batch < BATCHES:
        if restarts:
            clock.boot = f"boot {batch}"
        if between:
            disturb(clock, batch)
        run = MiniRun(directory, 1, clock=clock, backup_interval=BACKUP_S)
        # Collection comes with folding.
        run.closer.limits = FoldLimits()
        found.append(("resumed", run.prepared.plan.resume_epoch))
        for number in range(8):
            assert run.next_batch == batch
            if number:
                disturb(clock, batch)
            run.batch()
            batch += 1
            clock.now_s += EVERY_S
            found.append(("window", plan_resume(scan(directory)).window))
        if not between:
            # The run ends and the next one starts with a clock that is right, as after any repair.
            clock.shift_ms, clock.frozen_ms = 0, None
        run.finish()
    assert states(directory) == totals(1, BATCHES)
    assert problems(directory) == []
    return found


@pytest.fixture(scope="module")
def right(store_maker):
    """What is decided with a clock that goes right, between runs or not, with restarts or without."""

    @functools.cache
    def of(between: bool, restarts: bool = False) -> list[tuple]:
        return decisions(store_maker(2), nothing, between, restarts=restarts)

    return of


DISTURBANCES = [forth_and_back, back_and_forth, forth_for_good, back_for_good, frozen, summer_time]


@pytest.mark.parametrize("disturb", some(DISTURBANCES, back_and_forth, frozen), ids=lambda each: each.__name__)
def test_a_clock_that_jumps_under_a_run_changes_nothing(make_store, right, disturb):
    """The same epochs are resumed and collected as with a clock that goes right."""
    assert decisions(make_store(2), disturb, False) == right(False)


@pytest.mark.parametrize("disturb", some(DISTURBANCES, back_and_forth, frozen), ids=lambda each: each.__name__)
def test_a_clock_that_jumps_between_runs_changes_nothing(make_store, right, disturb):
    """The machine's uptime says how long it was away, whatever its clock says."""
    assert decisions(make_store(2), disturb, True) == right(True)


def test_time_away_counts_when_the_machine_was_restarted(right):
    """With a clock that goes right, the same is resumed and collected as without restarts."""
    assert right(True, True) == right(True)


@pytest.mark.parametrize(
    "disturb", some([back_for_good, back_and_forth, frozen], frozen), ids=lambda each: each.__name__
)
def test_a_clock_that_went_back_with_a_restart_collects_nothing_early(make_store, right, disturb):
    """The same epochs are resumed; of what the right clock would keep, nothing is collected."""
    disturbed = decisions(make_store(2), disturb, True, restarts=True)
    for (what, found), (_, wanted) in zip(disturbed, right(True, True), strict=True):
        if what == "resumed":
            assert found == wanted
        else:
            assert set(found) >= set(wanted)


@pytest.mark.parametrize("boot", ["unknown", "another"])
def test_a_clock_that_went_forward_with_a_restart_counts_as_time_away(make_store, right, boot):
    """That is all it can be taken for: what is resumed is the same, and the newest epoch is never collected."""

    def forward(clock: FakeClock, batch: int) -> None:
        if boot == "unknown":
            clock.boot = None
        if batch and batch % 8 == 0:
            clock.shift_ms += 400 * DAY_MS

    disturbed = decisions(make_store(2), forward, True, restarts=True)
    for (what, found), (_, wanted) in zip(disturbed, right(True, True), strict=True):
        assert found == wanted if what == "resumed" else (set(found) <= set(wanted) and found[-1] == wanted[-1])
    assert disturbed != right(True, True)


def test_the_right_clock_collects(right):
    """The tests above compare windows that move: without collection they would all be equal."""
    windows = [found for what, found in right(False) if what == "window"]
    assert windows[0][0] == 0
    assert windows[-1][0] > 10
    assert all(window[-1] - window[0] <= BACKUP_S / EVERY_S + 2 for window in windows[10:])


@pytest.mark.parametrize("zone", some(["Pacific/Kiritimati", "America/New_York", "UTC"], "America/New_York"))
def test_time_zones_do_not_matter(make_store, monkeypatch, right, zone):
    """Nor does the local rule for summer time: times are counted in milliseconds of no place."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert decisions(make_store(2), nothing, True) == right(True)
        assert decisions(make_store(2), summer_time, False) == right(True)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert os.environ.get("TZ") != zone or zone == "UTC"
