"""The process beside a run: it ships what is closed, however often it dies or the place is away."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery.backup.lease import read_term
from recovery.backup.repository import list_backups
from recovery.base.clock import SystemClock
from recovery.base.ids import Epoch
from recovery.cli import main
from recovery.epochs.execution import new_execution
from recovery.errors import (
    BackupTargetError,
    ForeignPartitionError,
    StaleDirectoryError,
    StateNotFoundError,
    TakenOverError,
)
from recovery.places.directory import DirectoryPlace
from recovery.planning.replica import ReplicaLag, Shipped
from recovery.planning.resume import plan_resume
from recovery.replication.messages import Answer
from recovery.replication.process import Replication
from recovery.replication.shipper import Shipper, newest_of
from recovery.spark.run.parts.replicating import ReplicatedClosing
from recovery.storage.hydration import hydrating
from recovery.storage.scan import scan
from tests.backup.standby.support import followed, promoted
from tests.backup.support import back_up, bring_back, states
from tests.backup.test_incremental import fill
from tests.backup.test_incremental_faults import change
from tests.backup.test_lazy import begin as lazily_restored
from tests.operational.person import traces
from tests.stores import ROOT, Driver
from tests.waiting import wait_until


@pytest.fixture
def store(make_store) -> Path:
    """Two partitions with state."""
    return make_store(2, fill)


@pytest.fixture
def begin(store, tmp_path) -> Iterator[Callable[..., Replication]]:
    """Begins to replicate the store; ends it afterwards."""
    begun: list[Replication] = []

    def begin(place: Path | str = "", **options) -> Replication:
        plan = plan_resume(scan(store))
        place = str(place or tmp_path / "dest")
        began = [each.id for each in plan.partitions[0].executions]
        known = {"began": began, "epoch": plan.resume_epoch - 1}
        store_id = plan.partitions[0].store_id
        begun.append(Replication(store, store_id, place, tmp_path, clock=SystemClock(), **known, **options))
        return begun[-1]

    yield begin
    for each in begun:
        each.stop()


def closes(store: Path, replication: Replication, epochs: int = 1) -> None:
    """Close epochs, and say so."""
    for _ in range(epochs):
        change(store)
        replication.closed()


def test_epochs_that_are_dated_ahead_count_from_the_beginning_of_the_run(begin):
    """Their lag is not 0 s until this host's clock has come to their dates."""
    replication = begin(lag=ReplicaLag(1, -3600.0))
    wait_until(lambda: replication.state.lag.seconds > 0)
    assert replication.state.lag.seconds < 3600


def test_every_closed_epoch_is_shipped(store, begin, tmp_path):
    """Fewer shippings than epochs where it is slower; the end waits for the last one."""
    replication = begin(lag=ReplicaLag(1, 5.0))
    replication.ready(60)
    replication.closed(0)
    assert replication.state.lag.epochs == 1
    assert replication.state.lag.seconds >= 5
    closes(store, replication, 12)
    replication.end()
    state = replication.state
    assert state.shipped == Shipped(13, 13)
    assert state.lag == (0, 0.0)
    assert state.problem is None
    assert 2 <= state.shippings <= 13
    assert state.shipped_bytes > 0
    bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
    assert states(tmp_path / "new") == states(store)


def test_a_place_that_is_away(store, begin, tmp_path, monkeypatch):
    """Only counts grow; one shipping covers all that was closed meanwhile. Its beginning and end are reported."""
    monkeypatch.setattr("recovery.planning.replica.FIRST_PAUSE_S", 0.05)
    (tmp_path / "away").write_text("a file")
    replication = begin(tmp_path / "away" / "dest")
    reported = []
    replication.on_change = reported.append
    replication.ready(60)
    closes(store, replication, 6)
    wait_until(lambda: replication.state.failures > 2)
    state = replication.state
    assert (state.lag.epochs, state.shipped.epoch, state.shippings) == (6, 0, 0)
    assert "not a directory" in state.problem
    (tmp_path / "away").unlink()
    wait_until(lambda: replication.state.lag.epochs == 0)
    assert replication.state.problem is None
    assert replication.state.shippings == 1
    replication.end()
    bring_back(tmp_path / "away" / "dest", tmp_path / "new", tmp_path)
    assert states(tmp_path / "new") == states(store)
    assert reported[-1].problem is None
    assert [each.problem is None for each in reported] in ([True], [False, True])


def test_a_process_that_was_killed_is_started_again(store, begin, tmp_path, monkeypatch):
    """While it waits, and while it ships; what it was shipping is shipped again."""
    monkeypatch.setattr("recovery.planning.replica.FIRST_PAUSE_S", 0.05)
    replication = begin()
    replication.ready(60)
    for _ in range(2):
        os.kill(replication._process.pid, signal.SIGKILL)
        closes(store, replication)
        wait_until(lambda: replication.state.lag.epochs == 0, 60)
    closes(store, replication)
    os.kill(replication._process.pid, signal.SIGKILL)
    wait_until(lambda: replication.state.lag.epochs == 0, 60)
    replication.end()
    bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
    assert states(tmp_path / "new") == states(store)


def test_a_place_of_another_store_ends_the_run(store, make_store, begin, tmp_path):
    """It is refused at the start, and the end of the run does not wait for it."""
    back_up(make_store(1, fill), tmp_path / "dest")
    replication = begin()
    with pytest.raises(ForeignPartitionError):
        replication.ready(60)
    with pytest.raises(ForeignPartitionError):
        replication.check()
    replication.closed()
    replication.end()
    assert replication.state.shippings == 0


def test_nobody_reads_what_it_says(store, begin, monkeypatch):
    """It ships on."""
    monkeypatch.setattr("recovery.replication.process._answer", lambda *_: Answer(epoch=1, pruning_problem="no answer"))

    def closed(text: str) -> None:
        raise BrokenPipeError(text)

    replication = begin(log=closed)
    for shippings in (1, 2):
        replication.closed()
        replication.wait(lambda: False)
        assert replication.state.shippings == shippings


class TestSync:
    """An epoch counts when it is shipped."""

    def test_waiting_ends_when_it_is(self, store, begin, tmp_path):
        """What a restore has then."""
        replication = begin(sync=True)
        replication.ready(60)
        closes(store, replication)
        replication.wait(lambda: False)
        assert replication.state.lag.epochs == 0
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == states(store)

    def test_a_place_that_is_away_is_waited_for_until_the_run_ends(self, store, begin, tmp_path, monkeypatch):
        """Then the error says that the output of the epoch is not shown; a start does not wait for it."""
        monkeypatch.setattr("recovery.replication.process.END_S", 0.3)
        monkeypatch.setattr("recovery.planning.replica.FIRST_PAUSE_S", 0.05)
        replication = begin(sync=True)
        replication.ready(60)
        (tmp_path / "dest").rename(tmp_path / "moved")
        (tmp_path / "dest").write_text("away")
        closes(store, replication)
        with pytest.raises(BackupTargetError, match="its output is not shown"):
            replication.wait(lambda: replication.state.failures > 1)
        with pytest.raises(BackupTargetError, match="not a directory"):
            replication.wait(lambda: False, once=True)
        with pytest.raises(BackupTargetError):
            replication.ready(60)

    def test_a_start_fetches_the_rest_of_a_lazy_restore(self, store, begin, tmp_path):
        """Nothing could be shipped before, and so nothing shown."""
        back_up(store, tmp_path / "dest")
        wanted = states(store)
        shutil.rmtree(store)
        lazily_restored(tmp_path / "dest", store)
        assert hydrating(store)
        logged = []
        replication = begin(sync=True, log=logged.append)
        ReplicatedClosing(replication).begun(new_execution(plan_resume(scan(store)), "flow", SystemClock()))
        assert hydrating(store) == []
        assert (replication.state.shippings, replication.state.problem) == (1, None)
        assert logged == ["recovery: --replicate-sync: fetching the rest of the lazy restore first"]
        assert states(store) == wanted


DRIVER = """
import sys, time
from pathlib import Path
from recovery.base.clock import SystemClock
from recovery.replication.messages import Answer
from recovery.replication.process import Replication
replication = Replication(Path(sys.argv[1]), "id", sys.argv[2], Path(sys.argv[3]), clock=SystemClock())
replication.ready(60)
print(replication._process.pid, flush=True)
time.sleep(600)
"""


def test_an_end_that_lacks_an_epoch_can_be_an_error(store, begin, tmp_path):
    """The place went away before the last epoch: the error says how many it lacks, and why. Nothing is lost: the next
    run ships them."""
    replication = begin()
    closes(store, replication)
    replication.wait(lambda: False)
    replication.check_complete()
    (tmp_path / "dest").rename(tmp_path / "away")
    (tmp_path / "dest").write_text("no directory")
    closes(store, replication)
    replication.end()
    with pytest.raises(BackupTargetError, match=r"at the end of the run, it lacks 1 closed epoch: .*dest"):
        replication.check_complete()
    (tmp_path / "dest").unlink()
    (tmp_path / "away").rename(tmp_path / "dest")
    again = begin(execution=2)
    again.closed(0)
    again.wait(lambda: False)
    again.end()
    again.check_complete()


def test_it_ends_with_a_driver_that_was_killed(store, tmp_path):
    """No process is left."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(store), str(tmp_path / "dest"), str(tmp_path)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    pid = int(driver.stdout.readline())
    driver.kill()
    driver.communicate()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text())


class TestTakenOver:
    """The run's replica belongs to another directory now."""

    @pytest.mark.parametrize("sync", [False, True])
    def test_it_is_refused_at_its_next_close(self, store, begin, tmp_path, sync):
        """And a later run on this directory at its start; the error names who took over."""
        replication = begin(sync=sync, execution=1)
        replication.ready(60)
        closes(store, replication)
        replication.wait(lambda: False)
        assert followed(tmp_path / "dest", tmp_path / "standby").missed == ()
        done = promoted(tmp_path / "standby")
        assert (done.before.execution, done.before.sync, done.before.ended) == (1, sync, None)
        assert done.unseen == ("unpublished" if sync else "unknown")
        closes(store, replication)
        with pytest.raises(TakenOverError, match="a promotion on"):
            replication.wait(lambda: False)
        with pytest.raises(TakenOverError):
            replication.check()
        assert newest_of(list_backups(DirectoryPlace(tmp_path / "dest")).newest).epoch == 2
        replication.end()
        again = begin(sync=sync, execution=3)
        with pytest.raises(TakenOverError, match="a promotion on"):
            again.ready(60)

    def test_what_the_writer_before_stores_too_late(self, store, begin, tmp_path):
        """A host that was suspended between its look at the lease and its last write: the directory that was promoted
        meanwhile is not behind for that, and what it ships is the latest."""
        replication = begin(execution=1)
        closes(store, replication)
        replication.wait(lambda: False)
        replication.stop()
        followed(tmp_path / "dest", tmp_path / "standby")
        promoted(tmp_path / "standby")
        change(store)
        target = DirectoryPlace(tmp_path / "dest")
        Shipper(store, target, clock=SystemClock(), random_id=lambda: "ab", fence=lambda: 1).ship()
        assert list_backups(target).newest.epoch == 3
        shutil.rmtree(store)
        shutil.move(tmp_path / "standby", store)
        again = begin(execution=2)
        again.ready(60)
        closes(store, again)
        again.end()
        newest = list_backups(target).newest
        assert (newest.term, newest.epoch, newest.copies[0].description.executions[-1].number) == (3, 3, 3)

    def test_an_end_is_recorded(self, store, begin, tmp_path):
        """So a standby that is promoted later knows that nothing is lost; the directory itself goes on."""
        replication = begin(execution=1)
        closes(store, replication)
        replication.end()
        followed(tmp_path / "dest", tmp_path / "standby")
        again = begin(execution=2)
        again.ready(60)
        closes(store, again)
        again.end()
        followed(tmp_path / "dest", tmp_path / "standby")
        done = promoted(tmp_path / "standby")
        assert (done.before.execution, done.before.ended, done.unseen) == (2, 3, "nothing")
        assert states(tmp_path / "standby") == states(store)

    def test_an_older_copy_of_the_directory_is_refused(self, store, begin, tmp_path):
        """A snapshot of the disk has the term too; what was shipped since shows that it is one. The directory itself
        goes on, also when it has gone back since."""
        replication = begin(execution=1)
        closes(store, replication)
        replication.wait(lambda: False)
        copy = Path(shutil.copytree(store, tmp_path / "copy"))
        closes(store, replication)
        replication.end()
        writer = read_term(DirectoryPlace(tmp_path / "dest"))
        shutil.move(store, tmp_path / "newer")
        shutil.move(copy, store)
        with pytest.raises(StaleDirectoryError, match="ends at epoch 2"):
            begin(execution=2).ready(60)
        assert read_term(DirectoryPlace(tmp_path / "dest")) == writer
        shutil.move(store, copy)
        shutil.move(tmp_path / "newer", store)
        with Driver(store, resume_epoch=Epoch(2)) as run:
            run.apply(run.epoch * 1000, {"old1": "again"})
            run.close(run.epoch * 1000)
        again = begin(execution=2)
        again.ready(60)
        again.closed()
        again.wait(lambda: False)
        newest = list_backups(DirectoryPlace(tmp_path / "dest")).newest
        assert (newest.term, newest_of(newest).epoch) == (2, 2)

    def test_a_restored_directory_replaces_the_writer_on_request(self, store, begin, tmp_path):
        """Without that it is refused: the other one may still run. Also with it, if that has shipped more since the
        restore; whoever writes is not disturbed by that. If it may be lost, it is said what is."""
        replication = begin()
        closes(store, replication)
        replication.wait(lambda: False)
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        closes(store, replication)
        replication.end()
        shutil.rmtree(store)
        shutil.move(tmp_path / "new", store)
        with pytest.raises(TakenOverError, match="--takeover"):
            begin(execution=2).ready(60)
        writer = read_term(DirectoryPlace(tmp_path / "dest"))
        with pytest.raises(StaleDirectoryError, match=r"it has epoch 3, closed by execution .* ends at epoch 2"):
            begin(execution=2, takeover=True).ready(60)
        assert read_term(DirectoryPlace(tmp_path / "dest")) == writer
        logged = []
        again = begin(execution=2, takeover=True, lose_epochs=True, log=logged.append)
        again.ready(60)
        closes(store, again)
        again.end()
        assert again.state.problem is None
        [lacks] = logged
        assert lacks.startswith(f"recovery: {tmp_path / 'dest'}: it has epoch 3, closed by execution ")
        assert lacks.endswith("epochs that only this place has are lost")


def test_a_replica_goes_on_after_an_erasure(store, begin, tmp_path):
    """The place that a run filled loses the key by the command, and later runs ship on, without it."""

    def ships() -> None:
        replication = begin()
        replication.ready(60)
        closes(store, replication, 3)
        replication.end()

    place, secret = tmp_path / "dest", "their-street-4d"
    with Driver(store, backup_interval_s=3600.0) as run:
        run.apply(900, {"person-81c7": f'"{secret}"'})
        run.close(900)
    ships()
    words = ["erase", str(store), "--key", "person-81c7", "--place", str(place), "--yes", "--json"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    [copy] = json.loads(done.stdout)["copies"]
    assert copy["removed"]
    assert copy["left"] == []
    ships()
    assert CliRunner().invoke(main, words).exit_code == StateNotFoundError.exit_code
    bring_back(place, tmp_path / "new", tmp_path)
    assert states(tmp_path / "new") == states(store)
    assert traces(tmp_path / "new", secret) == traces(store, secret) == []
