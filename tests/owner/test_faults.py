"""Partitions at several owners, without Spark: a kill at every numbered step, a driver that wakes up too late, and an
owner whose disk is full. In the end the state is that of a plain loop."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.backup.note import last_replica
from recovery.backup.repository import list_backups
from recovery.places.directory import DirectoryPlace
from tests.faults.minirun import FOLD_POINTS, wait
from tests.owner.histories import BATCHES, DRIVER_POINTS, OWNER_POINTS, UNHURRIED, History
from tests.shares import some
from tests.stores import query

LOGGED = {"close.2.logged", *FOLD_POINTS}
"""Steps of epochs that are logged first, which a backup interval rules out."""


@pytest.fixture
def history(make_store, tmp_path) -> Iterator[History]:
    """Four partitions at a driver and several owners; all runs are on the same input."""
    made = History(make_store(4), 4, 7, tmp_path)
    made.backup_interval = 3600
    yield made
    for each in made.owners:
        each.end()


def goes_on(history: History, root: Path) -> None:
    """The next run comes to the end of the input, and everything is exact."""
    for each in history.owners:
        each.start()
    code = wait(history.start_run(**UNHURRIED))
    assert code == 0, history.report.read_text() if history.report.exists() else code
    history.check(root)


@pytest.mark.parametrize("point", some(DRIVER_POINTS, "close.1"))
def test_a_driver_is_killed_at_every_step(history, tmp_path, point):
    for each in history.owners:
        each.start()
    assert wait(history.start_run(point)) == -signal.SIGKILL
    history.wait_until_free()
    goes_on(history, tmp_path)


@pytest.mark.parametrize("point", some(OWNER_POINTS, "close.2.committed", "fold.2.epochs"))
def test_an_owner_is_killed_at_every_step(history, tmp_path, point):
    """Of its partitions, the first or the last, and in the first epoch or a later one."""
    history.backup_interval = 0 if point in LOGGED else 3600
    victim = next(each for each in history.owners if each.has_partitions())
    hits = 0
    for visit in (1, 2, 5):
        victim.end(signal.SIGTERM)
        victim.start(point, visit)
        for each in history.owners:
            each.start()
        code = wait(history.start_run())
        history.ended(code)
        history.wait_until_free()
        hits += not victim.running()
    assert hits
    goes_on(history, tmp_path)


def test_an_owner_whose_disk_is_full(history, tmp_path):
    """The error names the file and begins with the owner's address. The epoch is not closed; with room, the next run
    goes on."""
    for each in history.owners:
        each.start()
    victim = next(each for each in history.owners if each.has_partitions())
    assert wait(history.start_run(contributors=(Fills(victim.pid),))) == 1
    name, text = json.loads(history.report.read_text())
    assert name == "StorageError"
    assert text.startswith(f"{victim.at}/"), text
    history.wait_until_free()
    closed = {epoch for place in history.places for path in place.glob("part-*.sqlite3")
              for (epoch,) in query(path, "SELECT max(epoch) FROM epochs")}  # fmt: skip
    assert min(closed) == FULL_FROM - 1
    resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    goes_on(history, tmp_path)


@pytest.mark.parametrize("sync", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_owner_that_dies_when_the_last_epoch_is_closed(history, tmp_path, sync):
    """The epoch is in all partitions, and can no longer be shipped. With sync the run fails and has not shown it.
    Without sync the run has shown it and ends well; what the directory says of its replica is true. The next run ships
    it."""
    replica, shown = tmp_path / "replica", tmp_path / "shown"
    history.expected = {"BackupTargetError"}
    for each in history.owners:
        each.start()
    victim = next(each for each in history.owners if each.has_partitions())
    replicates = {"replicate": replica, "replicate_sync": sync}
    # With a deadline of its own, the run waits for the shipping process as long as any run.
    code = wait(history.start_run(contributors=(Kills(victim.pid, shown),), owner_deadline=1.5, **replicates))
    history.ended(code)
    history.wait_until_free()
    assert victim.running() is False
    assert code == (1 if sync else 0)
    [closed] = {max(query(path, "SELECT epoch FROM epochs"))[0] for place in history.places
                for path in place.glob("part-*.sqlite3")}  # fmt: skip
    assert int(shown.read_text()) == (closed - 1 if sync else closed)
    said = last_replica(history.places[0])
    newest = list_backups(DirectoryPlace(replica)).newest
    assert said.epoch == (0 if newest is None else newest.epoch) < closed
    assert victim.at in said.problem
    for each in history.owners:
        each.start()
    assert wait(history.start_run(**UNHURRIED, **replicates)) == 0
    assert last_replica(history.places[0]).problem is None
    assert list_backups(DirectoryPlace(replica)).newest.epoch == closed
    history.check(tmp_path)


class Kills:
    """Takes part in closing epochs: it notes which ones are shown, and kills a process when the last one is closed."""

    def __init__(self, pid: int, shown: Path) -> None:
        self._pid = pid
        self._shown = shown

    def prepare(self, epoch: int, batch: int, floor: int) -> dict[str, dict[str, str]]:
        return {}

    def closed(self, batch: int) -> None:
        if batch == BATCHES - 1:
            os.kill(self._pid, signal.SIGKILL)

    def publish(self, epoch: int, batch: int, floor: int) -> None:
        self._shown.write_text(str(epoch))


FULL_FROM = 4
"""The first epoch that finds the disk full."""


class Fills:
    """Takes part in closing epochs: from one of them on, a process cannot write any more."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def prepare(self, epoch: int, batch: int, floor: int) -> dict[str, dict[str, str]]:
        if epoch == FULL_FROM:
            resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return {}

    def closed(self, batch: int) -> None:
        """Nothing to do."""

    def publish(self, epoch: int, batch: int, floor: int) -> None:
        """Nothing to do."""
