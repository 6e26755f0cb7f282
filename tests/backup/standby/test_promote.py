"""Taking over: the standby has what was published, the run before is refused, and what is lost is said."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from recovery.backup.conditional import open_documents
from recovery.backup.lease import Claimant, PublishingLease, claim, read_term
from recovery.backup.make import make_backup
from recovery.backup.manifest import manifest_name
from recovery.backup.repository import list_backups, prune
from recovery.backup.standby.follow import Follower
from recovery.backup.standby.promote import promote
from recovery.base.clock import SystemClock
from recovery.base.ids import Epoch
from recovery.errors import (
    BackupDamagedError,
    BackupTargetError,
    NoBackupError,
    RecoveryError,
    StandbyDirectoryError,
    TakenOverError,
)
from recovery.places.directory import DirectoryDocuments, DirectoryPlace
from recovery.planning.backups import KeepRule
from recovery.planning.resume import plan_resume
from recovery.storage.lock import DirectoryLock
from recovery.storage.scan import scan
from tests.backup.standby.support import assert_follows, followed, newest_state, promoted, writer
from tests.backup.support import back_up, bring_back, random_id
from tests.backup.test_incremental import History, fill
from tests.backup.test_incremental_faults import change, flip
from tests.faults.minirun import MiniRun, child, die_at, states, totals
from tests.shares import seeds, some
from tests.stores import Driver, problems


def test_it_is_an_ordinary_directory_then(store, tmp_path):
    """With all that is in the place, also what it had not followed yet; the run before is refused."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    lease = writer(store, place)
    back_up(store, place, incremental=True)
    followed(place, standby)
    change(store)
    made = back_up(store, place, incremental=True).manifest
    with pytest.raises(StandbyDirectoryError):
        DirectoryLock(standby, SystemClock(), "a run").acquire()
    done = promoted(standby)
    assert (done.backup, done.before, done.term.term, done.missed) == (made.id, lease.term, 2, ())
    assert (done.lost_epochs, done.unseen) == (None, "unknown")
    assert done.resume.resume_epoch == plan_resume(scan(standby)).resume_epoch
    assert_follows(standby, store)
    with pytest.raises(TakenOverError, match="a promotion"):
        lease.check()
    again = promoted(standby)
    assert (again.changed, again.term, again.resume.resume_epoch) == (False, done.term, done.resume.resume_epoch)
    writer(standby, place).check()
    change(standby)
    back_up(standby, place, incremental=True)
    assert followed(place, tmp_path / "another").followed.epoch == newest_state(standby)[0]


def test_promote_reports_what_is_lost(store, tmp_path):
    """Nothing after a run that ended; only what was not published after one that waits; which epochs, if known."""
    place, first = tmp_path / "place", tmp_path / "first"
    lease = writer(store, place, sync=True)
    back_up(store, place, incremental=True)
    followed(place, first)
    for _ in range(2):
        change(store)
        made = back_up(store, place, incremental=True).manifest

    def at(name: str) -> tuple[Path, Path]:
        here = Path(shutil.copytree(place, tmp_path / f"place {name}"))
        there = Path(shutil.copytree(first, tmp_path / f"standby {name}"))
        followed(here, there)
        return here, there

    assert promoted(at("waits")[1]).unseen == "unpublished"
    here, there = tmp_path / "place torn", Path(shutil.copytree(first, tmp_path / "standby torn"))
    shutil.copytree(place, here)
    flip(here / made.copies[0].origin)
    followed(here, there)
    done = promoted(there)
    assert done.lost_epochs == (3, 3)
    assert made.copies[0].origin in done.missed[0].why
    lease.end(3)
    assert promoted(at("ended")[1]).unseen == "nothing"


def test_another_writer_than_the_one_it_saw_is_not_ended(store, tmp_path):
    """The run was started again, or another standby was faster: it looks once more, and may then."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    writer(store, place)
    back_up(store, place, incremental=True)
    followed(place, standby)
    other = Path(shutil.copytree(standby, tmp_path / "other"))
    again = writer(store, place)
    with pytest.raises(TakenOverError, match="execution"):
        promoted(standby)
    again.check()
    followed(place, standby)
    followed(place, other)
    promoted(other)
    with pytest.raises(TakenOverError, match="a promotion"):
        promoted(standby)
    followed(place, standby)
    promoted(standby)


def test_unfenced_asks_nobody(store, tmp_path):
    """The place is gone: the directory is what it was; and a promotion that is fenced says why it fails."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    back_up(store, place, incremental=True)
    followed(place, standby)
    shutil.rmtree(place)
    with pytest.raises(BackupTargetError, match="no such directory"):
        promoted(standby)
    done = promoted(standby, unfenced=True)
    assert (done.term, done.unseen) == (None, "unknown")
    assert_follows(standby, store)


def test_what_cannot_be_promoted(store, tmp_path):
    """A standby without a backup, or with a partition that is gone and cannot be fetched."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    place.mkdir()
    with pytest.raises(NoBackupError):
        followed(place, standby)
    with pytest.raises(NoBackupError, match="nothing was fetched"):
        promoted(standby)
    back_up(store, place, incremental=True)
    followed(place, standby)
    (standby / "part-1.sqlite3").unlink()
    with pytest.raises(BackupDamagedError, match="part-1"):
        promoted(standby, unfenced=True)
    promoted(standby)
    assert_follows(standby, store)


def one_behind(store: Path, place: Path, standby: Path) -> PublishingLease:
    """A store with a writer, whose lease is returned, and a standby that lacks its last backup."""
    lease = writer(store, place, sync=True)
    back_up(store, place, incremental=True)
    followed(place, standby)
    change(store)
    back_up(store, place, incremental=True)
    return lease


POINTS = [
    "follow.1",
    "follow.3",
    "follow.4",
    "follow.5.partition",
    "follow.5",
    "follow.6",
    "promote.2",
    "promote.3",
    "promote.5",
]


@pytest.mark.parametrize("point", some(POINTS, "follow.5.partition", "follow.6", "promote.3"))
def test_killed_at_a_crash_point_it_is_repeated(store, tmp_path, point):
    """It keeps the term that it claimed, and still knows whom it replaced."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    lease = one_behind(store, place, standby)

    def killed() -> None:
        die_at(point)
        promote(standby, SystemClock(), random_id)

    pid = child(killed)
    assert os.waitpid(pid, 0)[1] == 9
    if point != "promote.5":
        done = promoted(standby)
        assert (done.before, done.term.term, done.unseen) == (lease.term, 2, "unpublished")
    assert_follows(standby, store)
    with pytest.raises(TakenOverError):
        lease.check()


class Cut:
    """A connection to the place that is cut at the k-th operation, and stays so: before it, or after its work is done.
    Operations are those on documents and on objects."""

    def __init__(self, monkeypatch, at: int, done: bool) -> None:
        self.operations, self._at, self._done = 0, at, done
        for kind, names in ((DirectoryDocuments, ("get", "put")), (DirectoryPlace, ("read", "entries"))):
            for name in names:
                monkeypatch.setattr(kind, name, self._through(getattr(kind, name)))

    def _through(self, work):
        def operation(*given):
            self.operations += 1
            if self.operations > self._at or (self.operations == self._at and not self._done):
                raise BackupTargetError("cut", path="place")
            found = work(*given)
            if self.operations == self._at:
                raise BackupTargetError("cut", path="place")
            return found

        return operation


@pytest.mark.parametrize("stride", some([7, 1], 7))
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_cut_at_any_operation_of_taking_over(store, tmp_path, done, stride):
    """The old run may go on as long as nobody has its place, and then no more; the promotion is repeated, and has all
    that was published. RECOVERY_TEST_TAKEOVER_STRIDE says how many operations lie between two cuts."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    lease = one_behind(store, place, standby)
    stride = stride if stride > 1 else int(os.environ.get("RECOVERY_TEST_TAKEOVER_STRIDE", "1"))
    whole = 0
    for at in itertools.count(1, stride):
        here = tmp_path / f"{at}"
        shutil.copytree(place, here / "place")
        shutil.copytree(standby, here / "standby")
        # It follows the copy of the place.
        with Follower(here / "standby", str(here / "place"), SystemClock()) as follower:
            assert follower.document.writer == lease.term.nonce
        with pytest.MonkeyPatch.context() as patch:
            cut = Cut(patch, at, done)
            try:
                promoted(here / "standby")
                whole = at
            except BackupTargetError:
                pass
        documents = open_documents(str(here / "place"))
        old = PublishingLease(documents, lease.term, None)
        if read_term(DirectoryPlace(here / "place")) == lease.term:
            old.check()
        if not whole:
            result = promoted(here / "standby")
            assert (result.before, result.term.term, result.unseen) == (lease.term, 2, "unpublished")
        with pytest.raises(TakenOverError, match="a promotion"):
            old.check()
        assert_follows(here / "standby", store)
        claim(documents, Claimant(here / "standby", lease.term.store_id, "flow x", 1, 9), SystemClock(), random_id)
        shutil.rmtree(here)
        if whole:
            assert cut.operations < at
            assert at > 2
            break


class Ahead(SystemClock):
    """The clock of a host that is a day ahead."""

    def wall_ms(self) -> int:
        return super().wall_ms() + 86_400_000


@pytest.mark.parametrize("skewed", ["old", "new"])
def test_of_two_holders_the_later_term_counts(store, tmp_path, skewed):
    """Both begin an execution of the same number, and the clock of either is a day ahead. A backup of the old one comes
    late. Who follows, restores, prunes or backs up goes on from the new one."""
    place, standby, target = tmp_path / "place", tmp_path / "standby", DirectoryPlace(tmp_path / "place")
    clocks = {"old": SystemClock(), "new": SystemClock(), skewed: Ahead()}
    writer(store, place)
    first = back_up(store, place, incremental=True).manifest
    followed(place, standby)
    promoted(standby)

    def goes_on(directory: Path, name: str, term: int) -> str:
        with Driver(directory, started_ms=clocks[name].wall_ms()) as run:
            for _ in range(2):
                run.apply(run.epoch * 1000, {"old1": f"of {name} {run.epoch}"})
                run.close(run.epoch * 1000)
            clock = clocks[name]
            options = {"incremental": True, "random_id": random_id, "may_count": lambda: term}
            return make_backup(directory, target, clock=clock, base=first, **options).manifest.id

    made = {"new": goes_on(standby, "new", 2), "old": goes_on(store, "old", 1)}
    numbers = {file.description.executions[-1].number for path in (store, standby) for file in scan(path)}
    assert len(numbers) == 1
    assert [each.term for each in list_backups(target).manifests] == [1, 1, 2]
    assert list_backups(target).newest.id == made["new"]

    def check(name: str) -> None:
        followed(place, tmp_path / f"watcher {name}")
        bring_back(place, tmp_path / f"restored {name}", tmp_path)
        for directory in (tmp_path / f"watcher {name}", tmp_path / f"restored {name}"):
            assert newest_state(directory) == newest_state(standby)
            assert problems(directory) == []

    check("then")
    kept = prune(target, [KeepRule(count=1)], clocks["old"].wall_ms()).kept
    assert made["new"] in kept
    check("pruned")
    # A backup by hand has the term of the place, and continues the new one's chain.
    change(standby)
    by_hand = back_up(standby, place, incremental=True)
    assert (by_hand.manifest.term, by_hand.whole_because) == (2, {})
    check("by hand")


def test_manifests_without_a_term_are_read(store, tmp_path):
    """Older versions wrote none; they count as older than those with one."""
    place = tmp_path / "place"
    old = back_up(store, place, incremental=True).manifest
    path = place / manifest_name(old.id)
    content = json.loads(gzip.decompress(path.read_bytes()))
    assert content.pop("term") == 0
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    [found] = list_backups(DirectoryPlace(place)).manifests
    assert (found.id, found.term, found.epoch) == (old.id, 0, old.epoch)
    lease = writer(store, place)
    assert back_up(store, place, incremental=True).manifest.term == lease.term.term == 1
    assert [each.term for each in list_backups(DirectoryPlace(place)).manifests] == [0, 1]
    # A lease that was removed begins behind the terms of the backups.
    (place / "lease.json").unlink()
    (store / "lease.json").unlink()
    claimant = Claimant(store, old.store_id, "flow x", 1, 9, least=1)
    assert claim(open_documents(str(place)), claimant, SystemClock(), random_id).term.term == 2


class Replicating:
    """What a run with --replicate-sync does with each epoch: store it, check the lease, then publish.

    `pause` is called with the epoch and the number of the step that comes next. published: epochs, each with the
    execution that closed it.
    """

    def __init__(self, directory: Path, place: Path, published: list, pause) -> None:
        self.directory, self.place, self.published, self._pause = directory, place, published, pause
        self.lease: PublishingLease | None = None
        self.execution = ""

    def prepare(self, epoch, batch, floor):
        self._epoch = epoch
        self._pause(epoch, 1)
        return {}

    def closed(self, batch) -> None:
        self._pause(self._epoch, 2)

    def publish(self, epoch: Epoch, batch, floor) -> None:
        back_up(self.directory, self.place, incremental=True)
        self._pause(epoch, 3)
        self.lease.check()
        self._pause(epoch, 4)
        self.published.append((int(epoch), self.execution))
        self._pause(epoch, 5)


def running(directory: Path, place: Path, published: list, pause=lambda *_: None) -> MiniRun:
    """A run of the package's own protocol that replicates. As sinks do, it first publishes what was closed before."""
    replicating = Replicating(directory, place, published, pause)
    run = MiniRun(directory, 5, contributors=(replicating,), backup_interval="1h")
    description = run.store.describe()[0]
    replicating.execution = description.executions[-1].id
    claimant = Claimant(directory, description.store_id, "flow", 1, description.executions[-1].number, sync=True)
    place.mkdir(exist_ok=True)
    replicating.lease = claim(open_documents(str(place)), claimant, SystemClock(), random_id)
    published += [(int(each.epoch), each.execution.id) for each in description.epochs]
    return run


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_two_runs_never_both_publish_an_epoch(store_dir, tmp_path, step):
    """A standby takes over while the run is at any step of closing an epoch. What is published of an epoch is by one
    execution, which is the one that the state goes on from."""
    place, standby, published = tmp_path / "place", tmp_path / "standby", []
    taken: list = []

    def pause(epoch: int, now: int) -> None:
        if (epoch, now) == (3, step) and not taken:
            taken.append(promoted(standby))
            successor = running(standby, place, published)
            for _ in range(2):
                successor.batch()
            successor.finish()

    run = running(store_dir, place, published, pause)
    refused = None
    try:
        for number in range(5):
            run.batch()
            if number == 1:
                run.closer.wait()
                followed(place, standby)
    except RecoveryError as error:
        refused = error
    try:
        run.finish() if refused is None else run.release()
    except RecoveryError as error:
        refused = error
    assert isinstance(refused, TakenOverError)
    kept = {(int(each.epoch), each.execution.id) for each in plan_resume(scan(standby)).partitions[0].epochs}
    assert set(published) == kept
    assert (taken[0].unseen, taken[0].lost_epochs) == ("unpublished", None)
    assert taken[0].resume.resume_epoch == (3 if step < 3 else 4)
    assert problems(standby) == []
    assert states(standby) == totals(5, plan_resume(scan(standby)).snapshot.batch_id + 1)


@pytest.mark.parametrize("seed", seeds(20))
def test_a_store_moves_from_host_to_host(make_store, tmp_path, monkeypatch, seed):
    """Random histories, and a takeover while a run goes on, which closes and backs up another epoch afterwards: what
    goes on is what the successor found, and everybody who follows the place follows the successor."""
    monkeypatch.setattr("recovery.planning.chains.FANOUT", 3)
    chance, started = random.Random(seed), itertools.count(1)
    monkeypatch.setattr(
        "tests.backup.test_incremental.Driver", lambda *given, **more: Driver(*given, started_ms=next(started), **more)
    )
    directory, place, watcher = make_store(2), tmp_path / "place", tmp_path / "watcher"
    fill(directory)
    history = History(directory, chance)
    for move in range(4):
        successor = tmp_path / f"host {move}"
        for _ in range(chance.randint(1, 3)):
            history.go_on()
            back_up(history.directory, place, incremental=True)
            if chance.random() < 0.5:
                followed(place, successor)
        with Driver(history.directory, started_ms=next(started)) as run:
            run.apply(run.epoch * 1000, {"old1": f"of {move}"})
            run.close(run.epoch * 1000)
            back_up(history.directory, place, incremental=True)
            followed(place, successor)
            expected = newest_state(history.directory)
            promoted(successor)
            assert newest_state(successor) == expected
            late = chance.random() < 0.7
            if late:
                run.apply(run.epoch * 1000, {"old1": "too late"})
                run.close(run.epoch * 1000)
                with pytest.raises(TakenOverError):
                    back_up(history.directory, place, incremental=True)
        history = History(successor, chance)
        history.go_on()
        back_up(successor, place, incremental=True)
        assert followed(place, watcher).missed == ()
        assert newest_state(watcher) == newest_state(successor)
        assert problems(watcher) == []
