"""A run that replicates: what a lost disk costs, and output that appears only when it cannot be lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery import (
    BackupTargetError,
    ConfigurationError,
    FileSink,
    ForeignPartitionError,
    RecoveryConfig,
    StaleDirectoryError,
    TakenOverError,
)
from recovery.backup.note import last_replica
from recovery.cli import main
from recovery.spark.run.parts.replicating import REPLICATED_KEEPS_S, replicated
from recovery.spark.run.reporting.events import BatchDone, ReplicaChanged
from recovery.storage.scan import scan
from tests.backup.standby.support import followed, promoted
from tests.backup.support import assert_sound, back_up, bring_back, is_marked, work
from tests.shares import first
from tests.spark.support import run_to_end, states, totals_step
from tests.spark.test_sinks import running_totals
from tests.waiting import wait_until

pytestmark = pytest.mark.any_spark


def test_a_run_goes_on_from_its_replica(spark, feed, tmp_path):
    """The directory is lost: the replica has every epoch. A run that goes back is followed."""
    for seed in range(3):
        feed.add_random(seed, count=100)
    frame = feed.frame(spark).transform(totals_step())
    directory, place = tmp_path / "db", tmp_path / "dest"
    summary = run_to_end(frame, directory, replicate=place)
    assert summary.replica["epoch"] == summary.last_epoch == 3
    assert (summary.replica["lag_epochs"], summary.replica["problem"]) == (0, None)
    kept = {file.description.executions[-1].backup_interval_s for file in scan(directory)}
    assert kept == {REPLICATED_KEEPS_S}
    status = json.loads(CliRunner().invoke(main, ["status", str(directory), "--json"]).stdout)["replica"]
    assert (status["epoch"], status["lag_epochs"], status["destination"]) == (3, 0, str(place))
    assert f"replica at {place}: epoch 3" in CliRunner().invoke(main, ["status", str(directory)]).stdout
    shutil.rmtree(directory)
    bring_back(place, directory, tmp_path)
    assert_sound(directory)
    feed.add_random(3, count=100)
    # A directory that was restored has to say that the other one is gone.
    with pytest.raises(TakenOverError, match="--takeover"):
        run_to_end(frame, directory, replicate=place, resume_after=2)
    summary = run_to_end(frame, directory, replicate=place, resume_after=2, takeover=True)
    assert summary.replica["epoch"] == summary.last_epoch == 4
    before = states(directory, "totals")
    assert before == feed.totals()
    shutil.rmtree(directory)
    bring_back(place, directory, tmp_path)
    assert states(directory, "totals") == before


@pytest.mark.long
def test_a_directory_that_was_taken_over_shows_nothing(spark, feed, tmp_path, capfd):
    """The old host's directory starts again after a promotion elsewhere, and both write to one target. Without a lease
    it is refused too, before it writes anything. A restored directory may take the output over, at its first run within
    a day, and says so; a copy of it or any other directory on the user's word."""
    for seed in range(2):
        feed.add_random(seed, count=30)
    frame = feed.frame(spark).transform(totals_step())
    old, place, standby, output = tmp_path / "db", tmp_path / "dest", tmp_path / "standby", tmp_path / "out"
    run_to_end(frame, old, FileSink(output, "json"), replicate=place)
    followed(place, standby)
    promoted(standby)
    feed.add_random(2, count=30)
    run_to_end(frame, standby, FileSink(output, "json"))
    assert not is_marked(standby)

    def contents(directory):
        return {
            path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and "scratch" not in path.parts
        }

    shown, before = contents(output), [file.description for file in scan(old)]
    backend = f"file://{tmp_path}/state?create=1"
    for options in ({}, {"resume_after": 1}, {"state_backend": backend}):
        with pytest.raises(
            StaleDirectoryError, match=r"execution 2 \(.*up to epoch 3; .* begin execution 2 at"
        ) as caught:
            run_to_end(frame, old, FileSink(output, "json"), **options)
        assert caught.value.path == str(output)
    assert contents(output) == shown
    assert [file.description for file in scan(old)] == before
    assert contents(tmp_path / "state") == {}
    run_to_end(frame, standby, FileSink(output, "json"))
    restored = tmp_path / "restored"
    bring_back(place, restored, tmp_path)
    shutil.copytree(restored, tmp_path / "copy")
    now_s, shown = time.time(), contents(output)
    os.utime(restored / "restored.json", (now_s, now_s - 3 * 86_400))
    for directory, why in ((tmp_path / "copy", "it is a copy of a"), (restored, "or promoted 72 h ago")):
        with pytest.raises(StaleDirectoryError) as caught:
            run_to_end(frame, directory, FileSink(output, "json"))
        assert why in caught.value.cause
    assert contents(output) == shown
    os.utime(restored / "restored.json", (now_s, now_s))
    assert "taken back" not in capfd.readouterr().err
    run_to_end(frame, restored, FileSink(output, "json"))
    [said] = [line for line in capfd.readouterr().err.splitlines() if "taken back" in line]
    assert said.startswith(f"recovery: {output}: execution 3 (")
    with pytest.raises(StaleDirectoryError):
        run_to_end(frame, standby, FileSink(output, "json"))
    run_to_end(frame, old, FileSink(output, "json"), lose_epochs=True)
    for directory in (restored, standby):
        with pytest.raises(StaleDirectoryError):
            run_to_end(frame, directory, FileSink(output, "json"))
    assert states(old, "totals") == feed.totals()
    entries = FileSink(output, "json").entries()
    assert [entry.epoch for entry in entries] == [1, 2, 3]
    assert {file.name for entry in entries for file in entry.files} == {path.name for path in output.glob("epoch-*")}


@first("complete", [True, False])
def test_a_run_that_ends_behind_says_so(spark, feed, tmp_path, monkeypatch, complete):
    """By its summary, and by its exit code if that was asked for. The next run ships the epoch."""
    monkeypatch.setattr("recovery.replication.process.END_S", 1.0)
    for seed in range(2):
        feed.add_random(seed, count=30)
    frame = feed.frame(spark).transform(totals_step())
    directory, place, output = tmp_path / "db", tmp_path / "dest", tmp_path / "out"
    config = {"replicate": place, "replicate_complete": complete}

    def away(event) -> None:
        if isinstance(event, BatchDone) and event.batch == 1:
            wait_until(lambda: last_replica(directory) is not None)
            place.rename(tmp_path / "aside")
            place.write_text("away")

    if complete:
        with pytest.raises(BackupTargetError, match="at the end of the run, it lacks") as caught:
            run_to_end(frame, directory, FileSink(output, "json"), observer=away, **config)
        assert caught.value.exit_code == 60
    else:
        summary = run_to_end(frame, directory, FileSink(output, "json"), observer=away, **config)
        assert summary.replica["lag_epochs"] >= 1
    place.unlink()
    (tmp_path / "aside").rename(place)
    assert run_to_end(frame, directory, FileSink(output, "json"), **config).replica["lag_epochs"] == 0
    bring_back(place, tmp_path / "new", tmp_path)
    assert states(tmp_path / "new", "totals") == feed.totals()


@pytest.mark.long
def test_sync_shows_only_what_cannot_be_lost(spark, feed, tmp_path, monkeypatch):
    """The place falls away: the epoch that it lacks is closed and not shown, until a run has shipped it."""
    monkeypatch.setattr("recovery.replication.process.END_S", 1.0)
    for seed in range(4):
        feed.add_random(seed, count=50)
    frame = feed.frame(spark).transform(totals_step())
    directory, place, output = tmp_path / "db", tmp_path / "dest", tmp_path / "out"
    told = []

    def away(event) -> None:
        if isinstance(event, BatchDone) and event.batch == 2:
            # Otherwise the run, which does not end then, would wait for the place with the epoch before.
            wait_until(lambda: len(FileSink(output, "json").entries()) == 2)
            place.rename(tmp_path / "aside")
            place.write_text("away")
        if isinstance(event, ReplicaChanged):
            told.append(event.replica)

    def shown() -> int:
        return spark.read.format("json").schema(frame.schema).load(str(output)).count() if output.exists() else 0

    config = {"replicate": place, "replicate_sync": True}
    with pytest.raises(BackupTargetError, match="its output is not shown"):
        run_to_end(frame, directory, FileSink(output, "json"), observer=away, **config)
    assert [each.problem is None for each in told] == [False]
    # The first two epochs are shown; epoch 3 is closed.
    assert {file.description.newest_epoch for file in scan(directory)} == {3}
    after_two = shown()
    assert after_two > 0
    bring_back(tmp_path / "aside", tmp_path / "copy", tmp_path)
    assert {file.description.newest_epoch for file in scan(tmp_path / "copy")} == {2}
    with pytest.raises(BackupTargetError):
        run_to_end(frame, directory, FileSink(output, "json"), **config)
    assert shown() == after_two
    place.unlink()
    (tmp_path / "aside").rename(place)
    summary = run_to_end(frame, directory, FileSink(output, "json"), **config)
    assert (summary.last_epoch, summary.replica["lag_epochs"]) == (4, 0)
    assert shown() > after_two
    assert states(directory, "totals") == feed.totals()


def test_a_standby_takes_over(spark, feed, tmp_path):
    """While the run goes on: the run is refused at its next close, and its output is what the standby goes on from."""
    for seed in range(5):
        feed.add_random(seed, count=50)
    frame = feed.frame(spark).transform(totals_step())
    directory, place, standby, output = (tmp_path / name for name in ("db", "dest", "standby", "out"))
    config = {"replicate": place, "replicate_sync": True}
    done = []

    def take_over(event) -> None:
        if isinstance(event, BatchDone) and event.batch in (1, 3):
            followed(place, standby)
            if event.batch == 3:
                done.append(promoted(standby))

    def shown() -> list:
        rows = spark.read.format("json").schema(frame.schema).load(str(output)).collect()
        return sorted(tuple(row) for row in rows)

    with pytest.raises(TakenOverError, match="a promotion"):
        run_to_end(frame, directory, FileSink(output, "json"), observer=take_over, **config)
    assert (done[0].unseen, done[0].lost_epochs) == ("unpublished", None)
    before = shown()
    with pytest.raises(TakenOverError):
        run_to_end(frame, directory, FileSink(output, "json"), **config)
    assert shown() == before
    assert run_to_end(frame, standby, FileSink(output, "json"), **config).last_epoch == 5
    assert states(standby, "totals") == feed.totals()
    assert shown() == sorted(running_totals(feed.rows, 50))


def test_a_place_of_another_store_is_refused_before_anything_is_written(spark, feed, make_store, tmp_path):
    """The directory stays as it was."""
    other = make_store(1)
    work(other, 1)
    back_up(other, tmp_path / "dest")
    feed.add_random(0)
    with pytest.raises(ForeignPartitionError):
        run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", replicate=tmp_path / "dest")
    assert {len(file.description.executions) for file in scan(tmp_path / "db")} == {0}


class TestSettings:
    """What cannot be is refused by name."""

    @pytest.mark.parametrize(
        ("given", "found"),
        [
            ({"backup_interval": 0}, "needs a backup interval"),
            ({"backup_interval": "0s"}, "needs a backup interval"),
            ({"replicate": "../db/../dest/../db"}, "its own replica"),
            ({"replicate": f"file://{Path('../db').resolve()}"}, "its own replica"),
            ({"replicate_keep": "0"}, "0 backups"),
        ],
    )
    def test_of_replication(self, given, found):
        """Before anything is opened."""
        with pytest.raises(ConfigurationError, match=found):
            RecoveryConfig("../db", **{"replicate": "dest", **given})

    @pytest.mark.parametrize(
        "given", [{"replicate_sync": True}, {"replicate_complete": True}, {"replicate_keep": ("1",)}]
    )
    def test_without_a_place(self, given):
        """They would have no effect."""
        with pytest.raises(ConfigurationError, match="without replicate"):
            RecoveryConfig("db", **given)

    def test_as_an_argument_of_run(self, tmp_path):
        """It is the setting of the same name; a run without recovery has nothing to ship."""
        config = RecoveryConfig(tmp_path)
        assert replicated(config, None) is config
        assert replicated(config, "s3://bucket/x").replicate == "s3://bucket/x"
        assert replicated(config, tmp_path / "x").replicate == str(tmp_path / "x")
        with pytest.raises(ConfigurationError, match="no recovery directory"):
            replicated(None, "dest")


def test_the_command_needs_a_directory(tmp_path):
    """As other options of recovery do."""
    done = subprocess.run(
        [sys.executable, "-m", "recovery", "run", "flow.py", "--replicate", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--replicate needs -r DIR" in done.stderr
