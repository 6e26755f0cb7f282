"""An owner that is frozen while others get its partitions: whatever it still does when it wakes up does not count. Runs
without Spark."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery import RecoveryConfig
from recovery.base.clock import SystemClock
from recovery.base.credentials.task_key import task_key
from recovery.errors import OwnerUnreachableError, RecoveryError
from recovery.spark.run.prepare import Prepared
from recovery.storage.reach import reach
from recovery.storage.seam import BatchCount, Changes
from recovery.wire.calls import OwnerCalls, PartitionCalls
from recovery.wire.line import Line
from recovery.wire.run_client import Owner
from tests.faults.minirun import FLOW, STEP, MiniRun, freeze
from tests.owner.histories import BATCHES, UNHURRIED, ForkedOwner, age_of
from tests.owner.replacing import SILENCE_S, ReplacingHistory, patient_for
from tests.stores import query

FROZEN_IN = 3
"""The micro-batch in which the owner is frozen."""


class Fleet:
    """Four partitions at two owners, half at each; the second one will be frozen."""

    def __init__(self, made: Path, root: Path) -> None:
        self.history = ReplacingHistory(made, 4, 7, root)
        self.history.sync = True
        for index, place in enumerate((1, 1, 2, 2)):
            [path] = [p for each in self.history.places for p in each.glob(f"part-{index}.sqlite3")]
            path.rename(self.history.places[place] / path.name)
        self.owners = self.history.owners[:2]
        for each in self.owners:
            each.start()

    @property
    def frozen(self) -> ForkedOwner:
        return self.owners[1]

    def run(self) -> MiniRun:
        settings = self.history.settings() | {"owners": tuple(at for each in self.owners for at in each.addresses)}
        return MiniRun(self.history.places[0], self.history.seed, **settings | UNHURRIED)

    def freeze(self) -> None:
        freeze(self.frozen.pid)

    def wake(self) -> None:
        os.kill(self.frozen.pid, signal.SIGCONT)

    def lost_copies(self) -> list[Path]:
        return [self.history.places[2] / f"part-{index}.sqlite3" for index in (2, 3)]


@pytest.fixture
def fleet(make_store, tmp_path) -> Iterator[Fleet]:
    patient_for(SILENCE_S)
    made = Fleet(make_store(4), tmp_path)
    try:
        yield made
    finally:
        for each in made.history.owners:
            if each.running():
                os.kill(each.pid, signal.SIGCONT)
            each.end()
        patient_for(20.0)


def run_to_the_end(run: MiniRun) -> None:
    while run.next_batch < BATCHES:
        run.batch()


@pytest.mark.parametrize("doing", [pytest.param("a seal", marks=pytest.mark.long), "a close"])
def test_a_frozen_owner_wakes_up(fleet, tmp_path, monkeypatch, doing):
    """An owner is frozen with a call before it. Awake, the owner does what was asked, and tasks of the old execution
    may reach that owner: all of that is in copies that do not count, during the run and later."""
    run = fleet.run()
    chance = random.Random(7)
    while run.next_batch < FROZEN_IN:
        run.batch(chance)
    old_address = run.store.address(run.lease)
    old_task, _ = reach(old_address, task_key=task_key())
    old_task.read(STEP, run.next_batch, {2: ("key1",)})
    # A call to be sent has its connection already: a frozen owner accepts no other one.
    on, asked_for = Owner._on, OwnerCalls.close if doing == "a close" else PartitionCalls.seal

    def sent(self: Owner, line: Line, call: object, *arguments: object, **named: object) -> object:
        if self.location == fleet.frozen.at and call is asked_for:
            fleet.freeze()
        return on(self, line, call, *arguments, **named)

    monkeypatch.setattr(Owner, "_on", sent)
    with pytest.raises(OwnerUnreachableError):
        run_to_the_end(run)
    run.release()
    monkeypatch.undo()

    run = fleet.run()
    assert run.prepared.replaced.lost == (fleet.frozen.at,)
    assert run.prepared.replaced.owner_of == {2: fleet.owners[0].at, 3: fleet.owners[0].at}
    assert run.lease.number == 2
    while run.next_batch < BATCHES - 2:
        run.batch(chance)
    stale = [age_of(path) for path in fleet.lost_copies()]
    fleet.wake()
    if doing == "a close":
        # What the first execution had sent is closed now, in copies that do not count; or it is refused, where the
        # owner saw first that the connection by which the run held the directory had ended.
        fleet.history.wait_until_free([fleet.frozen])
        assert all(age_of(path) >= age for path, age in zip(fleet.lost_copies(), stale, strict=True))
    try:
        old_task.apply(STEP, run.next_batch, {2: [Changes(("99\x1fkey1",), False)]}, BatchCount(1, 1))
    except RecoveryError:
        pass
    finally:
        old_task.release()
    assert {number for path in fleet.lost_copies() for (number,) in query(path, "SELECT ex_num FROM exs")} == {1}
    while run.next_batch < BATCHES - 1:
        run.batch(chance)
    run.finish()

    run = fleet.run()
    assert run.prepared.replaced is None
    assert sum("older copy of" in note for note in run.prepared.places.notes) == 2
    while run.next_batch < BATCHES:
        run.batch(chance)
    run.finish()
    fleet.history.check(tmp_path)


@pytest.mark.long
def test_a_signal_ends_the_wait_for_an_owner(fleet):
    """A run that starts again after a loss ends with 47, without waiting for the limit."""
    fleet.frozen.end()
    settings = fleet.history.settings() | {"owners": tuple(each.at for each in fleet.owners), "replace_after": "1h"}
    del settings["contributors"]
    config = RecoveryConfig(fleet.history.places[0], **settings)
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(OwnerUnreachableError, match=f"while it waited for its owners: {fleet.frozen.at}"):
        Prepared(config, FLOW, SystemClock(), stopping)


@pytest.mark.long
def test_an_owner_that_is_back_within_the_limit(fleet, capfd):
    """A start says whom it waits for, and uses the owner's own partitions."""
    fleet.run().finish()
    fleet.frozen.end()
    settings = fleet.history.settings() | {"owners": tuple(each.at for each in fleet.owners), "replace_after": "1h"}
    comes_back = threading.Timer(3.0, fleet.frozen.start)
    comes_back.start()
    try:
        run = MiniRun(fleet.history.places[0], fleet.history.seed, **settings | UNHURRIED)
    finally:
        comes_back.join()
    assert run.prepared.replaced is None
    run.finish()
    assert f"recovery: not reached: {fleet.frozen.at}; waiting for 1 h" in capfd.readouterr().err


@pytest.mark.long
def test_no_owner_is_left(fleet):
    """The run ends with 47, and nothing has changed when they are back."""
    fleet.run().finish()
    for each in fleet.owners:
        each.end()
    with pytest.raises(OwnerUnreachableError, match="no owner is left"):
        fleet.run()
    for each in fleet.owners:
        each.start()
    run = fleet.run()
    run_to_the_end(run)
    run.finish()
