"""A driver that was frozen, and was replaced meanwhile: whatever it tries when it wakes up, it says that a later run
has begun. Runs without Spark; all partitions are at owners, and the successor has a directory of its own."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.errors import DirectoryLockedError, LeaseLostError, OwnerUnreachableError
from recovery.owner.holding import why_not_held
from recovery.storage.owned import OwnerPartitions
from recovery.storage.scan import scan
from recovery.wire import run_client, server
from recovery.wire.calls import BegunExecution, PartitionCalls
from recovery.wire.client import OwnerTaskStore
from tests.faults.minirun import STARTS, MiniRun, child, killed_afterwards, wait, wait_until_frozen
from tests.owner.histories import BATCHES, PATIENCE_S, UNHURRIED, History
from tests.owner.served import TOKEN
from tests.shares import some
from tests.stores import Driver
from tests.waiting import wait_until

FROZEN_AT: dict[str, tuple[type, str]] = {
    "a task reads": (OwnerTaskStore, "read"),
    "a task applies": (OwnerTaskStore, "apply"),
    "a micro-batch is opened": (PartitionCalls, "open"),
    "an epoch is sealed": (PartitionCalls, "seal"),
    "an epoch is closed": (OwnerPartitions, "close"),
    "the owners are asked": (PartitionCalls, "check"),
}
"""What a driver is about to do when it is frozen."""
FROZEN = "frozen"
"""The file that says that the first driver is frozen."""
FROZEN_IN = 3
"""The micro-batch in which it does that."""
SUCCESSORS = ["runs", "has ended", "was killed", "has ended, and the owners were started again"]


@pytest.fixture
def history(make_store, tmp_path, monkeypatch) -> Iterator[History]:
    """Four partitions at owners that let the first driver go when it is frozen, and no other driver: on a busy machine,
    each may be silent for long."""
    frozen, let_go = tmp_path / FROZEN, []

    def is_silent(session: server.Session) -> bool:
        holds = session._run is not None and session._run.holds
        if holds and not let_go and frozen.exists():
            let_go.append(session)
        return session in let_go

    monkeypatch.setattr(server.Session, "is_silent", is_silent)
    monkeypatch.setattr(server, "PROGRESS_S", 0.05)
    monkeypatch.setattr(run_client, "STILL_S", 0.1)
    made = History(make_store(4), 4, 7, tmp_path)
    made.backup_interval = 3600
    for path in made.places[0].glob("part-*"):
        path.rename(made.places[1] / path.name)
    for each in made.owners:
        each.start()
    yield made
    for each in made.owners:
        each.end()


class Drivers:
    """Two drivers on two hosts. Each has a directory without partitions, in which it leaves the error that ends it."""

    def __init__(self, history: History, root: Path) -> None:
        self.history = history
        self.first, self.successor = root / "first", root / "successor"
        for place in (self.first, self.successor):
            place.mkdir()

    def run(self, directory: Path, work: Callable[[MiniRun], None]) -> int:
        """Start a driver, which begins when the owners let it, and calls `work` before each micro-batch; return its
        process."""

        def begun() -> MiniRun:
            until_s = time.monotonic() + PATIENCE_S
            while True:
                try:
                    return MiniRun(directory, self.history.seed, **self.history.settings() | UNHURRIED)
                except DirectoryLockedError:
                    assert time.monotonic() < until_s
                    time.sleep(0.05)

        def whole() -> None:
            run = begun()
            try:
                while run.next_batch < BATCHES:
                    work(run)
                    run.batch(run_choices)
            except BaseException as error:
                (directory / "error").write_text(repr(run.why(error)))
                run.release()
                raise
            run.finish()

        run_choices = random.Random(self.history.seed)
        return child(whole)

    def wait_until_frozen(self, pid: int) -> None:
        """Wait until this process, the first driver, is frozen; then the owners let it go."""
        wait_until_frozen(pid)
        (self.first.parent / FROZEN).touch()

    def wake(self, pid: int) -> None:
        """Let the first driver go on, to the error that ends it."""
        os.kill(pid, signal.SIGCONT)
        assert wait(pid) == 1
        error = (self.first / "error").read_text()
        assert error.startswith("LeaseLostError("), error
        assert "execution 1 may not write any more: execution 2 began here" in error


def freeze(owner: type, call: str) -> None:
    """Have this process stop before this call, which may be one that `OwnerPartitions.ask` makes."""
    place, method = (OwnerPartitions, "ask") if owner is PartitionCalls else (owner, call)
    work = getattr(place, method)

    def stopped(self, *arguments, **named):
        if method == call or arguments[0] is getattr(owner, call):
            setattr(place, method, work)
            os.kill(os.getpid(), signal.SIGSTOP)
        return work(self, *arguments, **named)

    setattr(place, method, stopped)


@pytest.mark.parametrize("successor", some(SUCCESSORS, "has ended"))
@pytest.mark.parametrize("point", some(FROZEN_AT, "a task reads", "an epoch is closed"))
def test_every_call_of_a_driver_that_was_replaced(history, tmp_path, point, successor):
    """Frozen before it makes a call, it ends with LeaseLostError, whatever has become of its successor by then."""
    drivers = Drivers(history, tmp_path)

    def to_be_frozen(run: MiniRun) -> None:
        if run.next_batch == FROZEN_IN:
            freeze(*FROZEN_AT[point])
            if point == "the owners are asked":
                run.store.check(run.lease)

    def to_be_waited_for(run: MiniRun) -> None:
        if run.next_batch == BATCHES - 1:
            (tmp_path / "near").touch()
            if successor == "runs":
                wait_until((drivers.first / "error").exists, 4 * PATIENCE_S)
            elif successor == "was killed":
                os.kill(os.getpid(), signal.SIGKILL)

    frozen = drivers.run(drivers.first, to_be_frozen)
    with killed_afterwards(frozen):
        drivers.wait_until_frozen(frozen)
        begun = drivers.run(drivers.successor, to_be_waited_for)
        with killed_afterwards(begun):
            wait_until((tmp_path / "near").exists, 4 * PATIENCE_S)
            if successor != "runs":
                assert wait(begun) == (-signal.SIGKILL if successor == "was killed" else 0)
            if "started again" in successor:
                for each in history.owners:
                    each.end(signal.SIGTERM)
                    each.start()
            drivers.wake(frozen)
            if successor == "runs":
                assert wait(begun) == 0
    if successor == "was killed":
        history.wait_until_free()
        assert wait(drivers.run(drivers.successor, lambda run: None)) == 0
    shutil.copyfile(drivers.successor / STARTS, history.places[0] / STARTS)
    history.check(tmp_path)


@pytest.mark.parametrize("seed", some(range(8), 0))
def test_a_driver_that_wakes_up_too_late(history, tmp_path, seed):
    """The same, frozen at any moment; the successor comes to the end of the input."""
    drivers = Drivers(history, tmp_path)
    moment_s = random.Random(seed).random() * 0.4

    def to_be_frozen(run: MiniRun) -> None:
        if run.next_batch == seed % 4:
            threading.Timer(moment_s, os.kill, (os.getpid(), signal.SIGSTOP)).start()
        time.sleep(0.1)

    def wait_for_the_first(run: MiniRun) -> None:
        if run.next_batch >= BATCHES - 1:
            (tmp_path / "near").touch()
            wait_until((drivers.first / "error").exists, 4 * PATIENCE_S)

    frozen = drivers.run(drivers.first, to_be_frozen)
    with killed_afterwards(frozen):
        drivers.wait_until_frozen(frozen)
        begun = drivers.run(drivers.successor, wait_for_the_first)
        with killed_afterwards(begun):
            wait_until((tmp_path / "near").exists, 4 * PATIENCE_S)
            drivers.wake(frozen)
            assert wait(begun) == 0
    shutil.copyfile(drivers.successor / STARTS, history.places[0] / STARTS)
    history.check(tmp_path)


class Other:
    """Another run that holds the directory."""

    purpose = "flow words on h2"


LATER = "execution 1 may not write any more: execution 2 began here"
HELD = "the partitions are held by flow words on h2 now"
NOBODY = "the owner holds no partitions for this run any more"
OTHER_STORE = "the owner serves partitions of another store now"


@pytest.mark.parametrize(
    ("begun", "there", "holder", "kind", "said"),
    [
        ("one", 2, None, LeaseLostError, LATER),
        ("one", 2, Other, LeaseLostError, LATER),
        ("one", 1, Other, LeaseLostError, HELD),
        ("one", 1, None, OwnerUnreachableError, NOBODY),
        ("no partition", 1, Other, LeaseLostError, HELD),
        ("no partition", 1, None, OwnerUnreachableError, NOBODY),
        ("another one of this number", 1, None, LeaseLostError, "execution 1 began here"),
        ("nothing", 2, None, OwnerUnreachableError, NOBODY),
        ("nothing", 2, Other, LeaseLostError, HELD),
        ("in another store", 2, None, OwnerUnreachableError, OTHER_STORE),
        ("in another store", 2, Other, OwnerUnreachableError, OTHER_STORE),
    ],
)
def test_why_an_owner_does_not_know_a_run_any_more(make_store, begun, there, holder, kind, said):
    """By what the run has begun, how many executions the partitions know, and who holds them."""
    directory = make_store(2)
    leases = []
    for _ in range(there):
        with Driver(directory) as run:
            leases.append(run.lease)
    found = [each.description for each in scan(directory)]
    of = {
        "one": BegunExecution(found[0].store_id, leases[0]),
        "no partition": BegunExecution(found[0].store_id, leases[0]),
        "another one of this number": BegunExecution(found[0].store_id, replace(leases[0], id="other")),
        "nothing": None,
        "in another store": BegunExecution("other", leases[0]),
    }
    error = why_not_held(of[begun], [] if begun == "no partition" else found, holder, directory)
    assert (type(error), error.exit_code) == (kind, 41 if kind is LeaseLostError else 47)
    assert said in error.found


def test_another_token_than_before(history, tmp_path):
    """Owners that were started again with another token cannot prove to the driver that a later run has begun: it says
    that they refuse its token."""
    drivers = Drivers(history, tmp_path)

    def to_be_frozen(run: MiniRun) -> None:
        if run.next_batch == FROZEN_IN:
            freeze(PartitionCalls, "seal")

    frozen = drivers.run(drivers.first, to_be_frozen)
    with killed_afterwards(frozen):
        drivers.wait_until_frozen(frozen)
        for each in history.owners:
            # With SIGTERM it would wait until the frozen driver has closed its epoch.
            each.end()
        others = tmp_path / "others"
        others.write_text(TOKEN[::-1])
        for each in history.owners:
            each._token = others
            each.start()
        os.kill(frozen, signal.SIGCONT)
        assert wait(frozen) == 1
    error = (drivers.first / "error").read_text()
    assert error.startswith("OwnerRefusedError("), error
    assert "the owner refused the token" in error
