"""Shipping epoch by epoch: every epoch that a place has got is restored as the run left it."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.backup.note import last_backup, last_replica
from recovery.backup.repository import list_backups, prune
from recovery.base.clock import SystemClock
from recovery.errors import BackupTargetError, ForeignPartitionError, LeaseLostError
from recovery.places.directory import DirectoryPlace
from recovery.places.protocol import Place
from recovery.planning.backups import KeepRule
from recovery.planning.replica import Shipped
from recovery.replication.shipper import PASSING, Shipper
from recovery.storage.scan import scan
from tests.backup.support import back_up, bring_back, in_memory, random_id, states
from tests.backup.test_faults import NOW_MS, FailingTarget, one_at_a_time  # noqa: F401
from tests.backup.test_incremental import History, assert_every_epoch_is_there, fill
from tests.backup.test_incremental_faults import change, objects
from tests.backup.test_lazy import begin as lazily_restored
from tests.backup.test_lazy import hydrate
from tests.shares import seeds
from tests.stores import Driver

NEVER = 1 << 40


@pytest.fixture
def tmp_path(tmp_path_factory) -> Iterator[Path]:
    """In memory where there is some."""
    with in_memory(lambda: tmp_path_factory.mktemp("replicas")) as path:
        yield path


@pytest.fixture
def store(make_store, monkeypatch) -> Path:
    """Two partitions with state. Chains are merged with every third link."""
    monkeypatch.setattr("recovery.planning.chains.FANOUT", 3)
    return make_store(2, fill)


def shipper(directory: Path, target: Place | Path, **options) -> Shipper:
    """One as the process makes it."""
    place = DirectoryPlace(target) if isinstance(target, Path) else target
    return Shipper(directory, place, clock=SystemClock(), random_id=random_id, **options)


class Replicated(History):
    """A history that is shipped epoch by epoch, by processes that end now and then; some epochs are missed."""

    def __init__(self, directory: Path, chance: random.Random, target: Place) -> None:
        super().__init__(directory, chance)
        self._target = target
        self._shipper = shipper(directory, target)
        self.whole = self.linked = 0

    def _note(self, run: Driver) -> None:
        super()._note(run)
        chance = self._chance
        if chance.random() < 0.1:
            self._shipper = shipper(self.directory, self._target)
        if chance.random() < 0.8:
            made = self._shipper.ship().made
            self.whole += made.stored
            self.linked += made.linked


@pytest.mark.parametrize("seed", seeds(20))
def test_every_epoch_of_a_random_history_is_in_the_replica(make_store, tmp_path, monkeypatch, seed):
    """Runs, crashes between two partitions, rewinds, folding, collecting, edits, operational state."""
    monkeypatch.setattr("recovery.planning.chains.FANOUT", 3)
    chance = random.Random(seed)
    directory = make_store(2, fill)
    target = DirectoryPlace(tmp_path / "dest")
    history = Replicated(directory, chance, target)
    for _ in range(15):
        history.go_on()
    assert history.linked > history.whole
    last = shipper(directory, target).ship()
    bring_back(target, tmp_path / "new", tmp_path)
    assert states(tmp_path / "new") == {
        epoch: state for epoch, state in states(directory).items() if epoch <= last.newest.epoch
    }
    shutil.rmtree(tmp_path / "new")
    assert_every_epoch_is_there(target, history, tmp_path, chance)


@pytest.mark.parametrize("lasting", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.usefixtures("one_at_a_time")
def test_a_shipping_cut_off_at_any_step_leaves_a_chain_that_restores(store, tmp_path, lasting):
    """The same process ships the next epoch, or another one does; also while changes files are merged."""
    # Every fifth operation by default; the other test of the pair, which is long, all of them.
    for k in itertools.count(1, 5 if lasting else 1):
        directory = Path(shutil.copytree(store, tmp_path / "db"))
        root = tmp_path / "dest"
        target = FailingTarget(DirectoryPlace(root), NEVER, lasting)
        ours = shipper(directory, target)
        for _ in range(3):
            ours.ship()
            change(directory)
        before = target.operations
        target._fail_at = before + k
        try:
            ours.ship()
        except BackupTargetError as error:
            noted = last_replica(directory)
            assert (noted.epoch, noted.problem) == (3, error.found)  # noqa: PT017 - it need not fail
            assert noted.since_ms is not None
        counted = target.operations - before
        target._fail_at = NEVER
        bring_back(root, tmp_path / "new", tmp_path)
        assert max(states(tmp_path / "new")) in (3, 4)
        shutil.rmtree(tmp_path / "new")
        change(directory)
        wanted = states(directory)
        (ours if k % 2 else shipper(directory, root)).ship()
        assert last_replica(directory).problem is None
        prune(DirectoryPlace(root), [KeepRule(count=1)], NOW_MS)
        [manifest] = list_backups(DirectoryPlace(root)).manifests
        assert {entry.name for entry in DirectoryPlace(root).entries("objects/")} == objects(manifest)
        bring_back(root, tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == wanted
        for path in (tmp_path / "new", root, directory):
            shutil.rmtree(path)
        if counted < k:
            break
    assert k > 10


def test_what_a_shipping_notes(store, tmp_path):
    """For `status`: the epoch and its execution; for runs, that incremental backups are made."""
    done = shipper(store, tmp_path / "dest").ship()
    assert done.newest == Shipped(1, 1)
    noted = last_replica(store)
    assert (noted.epoch, noted.execution, noted.destination) == (1, 1, str(tmp_path / "dest"))
    assert last_backup(store).incremental
    (store / "last-replica.json").write_text('{"epoch": -1}')
    assert last_replica(store) is None


def test_a_place_of_another_store_is_refused(store, make_store, tmp_path):
    """Before anything is shipped to it."""
    other = make_store(1)
    fill(other)
    shipper(other, tmp_path / "dest").ship()
    with pytest.raises(ForeignPartitionError):
        shipper(store, tmp_path / "dest").look("mine")
    with pytest.raises(ForeignPartitionError):
        shipper(store, tmp_path / "dest").ship()


def test_the_error_shows_what_the_place_has_in_addition(store, tmp_path):
    """A copy of the directory, or one that was restored while the run went on, lacks what was shipped since."""
    place = tmp_path / "dest"

    def lacks(directory: Path, target: Path = place) -> str | None:
        described = [file.description for file in scan(directory)]
        known = {each.id for found in described for each in found.executions}
        return shipper(directory, target).lacks(known, min(each.newest_epoch for each in described))

    ours = shipper(store, place)
    ours.ship()
    copy = Path(shutil.copytree(store, tmp_path / "copy"))
    assert lacks(copy) is None
    change(store)
    assert lacks(store) is None
    ours.ship()
    assert lacks(store) is None
    assert lacks(copy).startswith("it has epoch 2, closed by execution 2 on ")
    assert lacks(copy).endswith("and this directory ends at epoch 1")
    # It goes on by itself: now each has an epoch that the other one lacks, whatever their clocks say.
    change(copy)
    assert lacks(copy).startswith("it has epoch 2, closed by execution 2 on ")
    assert lacks(store) is None
    (tmp_path / "empty").mkdir()
    assert lacks(copy, tmp_path / "empty") is None


@pytest.mark.parametrize("passed", [2, 3])
def test_a_fence_that_is_down_stops_the_shipping(store, tmp_path, passed):
    """Before the manifest is written, and when it is there: then the epoch does not count as shipped."""
    fences = iter([*[0] * passed, LeaseLostError("taken over")])

    def fence() -> int:
        found = next(fences)
        if isinstance(found, LeaseLostError):
            raise found
        return found

    ours = shipper(store, tmp_path / "dest", fence=fence)
    ours.ship()
    change(store)
    with pytest.raises(LeaseLostError):
        ours.ship()
    assert len(list_backups(DirectoryPlace(tmp_path / "dest")).manifests) == passed - 1
    noted = last_replica(store)
    assert (noted.epoch, noted.problem) == (1, "taken over")


def test_older_backups_are_removed_from_time_to_time(store, tmp_path, monkeypatch):
    """By the rules of `backup --keep`; a failure to do so is reported with the epoch, which is shipped."""
    monkeypatch.setattr("recovery.replication.shipper.PRUNE_S", 0.0)
    target = DirectoryPlace(tmp_path / "dest")
    ours = shipper(store, target, keep=[KeepRule(count=2)])
    for _ in range(4):
        change(store)
        assert ours.ship().pruning_problem is None
    assert len(list_backups(target).manifests) == 2

    def refuse(*_: object) -> None:
        raise BackupTargetError("no answer for 60 s")

    monkeypatch.setattr("recovery.replication.shipper.prune", refuse)
    change(store)
    done = ours.ship()
    assert done.newest.epoch == 6
    assert done.pruning_problem.found == "no answer for 60 s"


def test_what_was_shipped_stays_although_the_clock_went_back(store, tmp_path, monkeypatch):
    """A backup comes after the newest at the place, whatever the clock says: so a rule that keeps one keeps what was
    just shipped, whose output may be shown."""
    monkeypatch.setattr("recovery.replication.shipper.PRUNE_S", 0.0)
    target, place = DirectoryPlace(tmp_path / "dest"), tmp_path / "dest"
    with monkeypatch.context() as ahead:
        now_ms = SystemClock.wall_ms
        ahead.setattr(SystemClock, "wall_ms", lambda clock: now_ms(clock) + 3_600_000)
        back_up(store, place)
    ours = shipper(store, target, keep=[KeepRule(count=1)])
    for _ in range(3):
        change(store)
        assert ours.ship().pruning_problem is None
        bring_back(place, tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == states(store)
        shutil.rmtree(tmp_path / "new")
    assert len(list_backups(target).manifests) == 1


def test_a_lazy_restore_under_way(store, tmp_path):
    """Nothing is shipped until all of it is fetched: then the next attempt ships all."""
    shipper(store, tmp_path / "place").ship()
    directory = lazily_restored(tmp_path / "place", tmp_path / "new")
    shipping = shipper(directory, tmp_path / "place")
    with pytest.raises(PASSING):
        shipping.ship()
    hydrate(directory)
    change(directory)
    assert shipping.ship().newest.epoch == max(states(directory))
