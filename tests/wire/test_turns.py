"""Turns of tasks: how many calls work at a time, and which directory is next."""

from __future__ import annotations

import random
import threading

import pytest

from recovery.wire.turns import TurnPool, Turns
from tests.waiting import wait_until


class Worker:
    """A call that has a turn until it is let go."""

    def __init__(self, turns: Turns) -> None:
        self.works, self._end = threading.Event(), threading.Event()
        self._turns = turns
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._turns.taken():
            self.works.set()
            self._end.wait(30)

    def end(self) -> None:
        self._end.set()
        self._thread.join(30)


def asked(turns: Turns, number: int) -> list[Worker]:
    """Calls that have begun, or wait."""
    before = turns.waiting + turns.running
    made = [Worker(turns) for _ in range(number)]
    wait_until(lambda: turns.waiting + turns.running == before + number)
    return made


def test_a_directory_alone_has_all_turns():
    turns = Turns(TurnPool(3))
    calls = asked(turns, 5)
    assert (turns.running, turns.waiting) == (3, 2)
    next(each for each in calls if each.works.is_set()).end()
    wait_until(lambda: (turns.running, turns.waiting) == (3, 1))
    for each in calls:
        each.end()
    assert (turns.running, turns.waiting) == (0, 0)


@pytest.mark.parametrize("others", [1, 5])
def test_a_directory_whose_calls_hang_stops_no_other(others):
    """As when its disk does not answer: each of the others may always have one call."""
    pool = TurnPool(2)
    hangs = Turns(pool)
    calls = asked(hangs, 20)
    for turns in [Turns(pool) for _ in range(others)]:
        for _ in range(3):
            [call] = asked(turns, 1)
            assert call.works.wait(30)
            call.end()
    assert (hangs.running, hangs.waiting) == (2, 18)
    for each in calls:
        each.end()


def test_a_turn_goes_to_who_has_the_fewest():
    """A flood of one directory is not served before what another one asks for later."""
    pool = TurnPool(4)
    flood, other = Turns(pool), Turns(pool)
    flooding = asked(flood, 30)
    few = asked(other, 3)
    assert (flood.running, other.running) == (4, 1)
    for _ in range(3):
        next(each for each in flooding if each.works.is_set() and not each._end.is_set()).end()
    wait_until(lambda: other.running == 2)
    for each in [*few, *flooding]:
        each.end()
    assert (flood.running, other.running) == (0, 0)


def test_no_call_is_forgotten():
    """Many calls of several directories, in any order; an error ends a turn as well."""
    pool = TurnPool(3)
    directories = [Turns(pool) for _ in range(4)]
    most, done = [0], [0]
    lock = threading.Lock()
    chance = random.Random(1)
    plan = [chance.choices(directories, k=50) for _ in range(16)]

    def work(some: list[Turns]) -> None:
        for turns in some:
            try:
                with turns.taken():
                    with lock:
                        most[0] = max(most[0], sum(each.running for each in directories))
                        done[0] += 1
                    raise ValueError
            except ValueError:
                pass

    threads = [threading.Thread(target=work, args=(each,)) for each in plan]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert done == [16 * 50]
    assert most[0] <= 3 + len(directories) - 1
    assert all((each.running, each.waiting) == (0, 0) for each in directories)
