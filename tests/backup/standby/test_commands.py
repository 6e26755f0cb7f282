"""`follow`, `promote` and `run --takeover` as a person or a program calls them."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from recovery.backup import sources
from recovery.backup.conditional import open_documents
from recovery.backup.lease import Claimant, claim, read_term
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.errors import BackupTargetError, FlowFailedError, StandbyDirectoryError, TakenOverError
from recovery.places.directory import DirectoryPlace
from tests.backup.standby.support import assert_follows, newest_state, writer
from tests.backup.support import back_up, random_id
from tests.backup.test_commands import call
from tests.backup.test_incremental_faults import change, flip
from tests.faults.minirun import MiniRun
from tests.forks import Forked


def test_once(store, tmp_path):
    """What is said is what was done; nothing later is said as well; --json has the same."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    back_up(store, place, incremental=True)
    text = call("follow", place, standby, "--once")
    assert text.startswith("epoch 1, closed ")
    assert "2 partitions whole; 2 objects, " in text
    assert f"nothing later in {place}" in call("follow", place, standby, "--once")
    change(store)
    back_up(store, place, incremental=True)
    facts = json.loads(call("follow", place, standby, "--once", "--json"))
    assert (facts["epoch"], facts["linked"], facts["whole_because"], facts["objects"]) == (2, 2, {}, 2)
    assert (facts["changed"], facts["writer"], facts["missed"]) == (True, None, [])
    assert_follows(standby, store)


def test_status_shows_a_standby(store, tmp_path):
    """What it follows and how old it is; reading it changes nothing."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    back_up(store, place, incremental=True)
    call("follow", place, standby, "--once")
    assert f"a standby that follows {place}, as of epoch 1" in call("status", standby)
    facts = json.loads(call("status", standby, "--json"))["standby"]
    assert (facts["source"], facts["epoch"], facts["incomplete"]) == (str(place), 1, [])
    assert json.loads(call("status", store, "--json"))["standby"] is None
    call("verify", standby)
    assert json.loads(call("follow", place, standby, "--once", "--json"))["problems"] == []


def test_a_damaged_backup_ends_with_62(store, tmp_path):
    """After what could be reached was reached."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    back_up(store, place, incremental=True)
    change(store)
    made = back_up(store, place, incremental=True).manifest
    flip(place / made.copies[0].origin)
    result = CliRunner().invoke(main, ["follow", str(place), str(standby), "--once"])
    assert result.exit_code == 62
    assert "epoch 1, closed" in result.stdout
    assert made.copies[0].origin in result.stderr
    assert "epoch 2 is lost; what was closed after epoch 1" in call("promote", standby)


def test_promote(store, tmp_path):
    """It says what it did and what is lost; other commands refuse the directory before, and not after."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    back_up(store, place, incremental=True)
    call("follow", place, standby, "--once")
    result = CliRunner().invoke(main, ["fork", str(standby), str(tmp_path / "fork")])
    assert result.exit_code == 58
    assert f"it follows {place}" in result.stderr
    for command in (
        ["gc", standby],
        ["hwm", "set", standby, "orders", "5"],
        ["init", standby, "2"],
        ["repartition", standby, tmp_path / "new", "3", "--dry-run"],
        ["fork", standby, tmp_path / "new", "--dry-run"],
    ):
        assert CliRunner().invoke(main, [str(each) for each in command]).exit_code == 58, command
    facts = json.loads(call("promote", standby, "--json"))
    assert (facts["epoch"], facts["fenced"], facts["before"], facts["unseen"]) == (1, True, None, "unknown")
    assert facts["term"]["term"] == 1
    call("hwm", "set", standby, "orders", "5")
    again = json.loads(call("promote", standby, "--json"))
    assert (again["changed"], again["term"], again["epoch"]) == (False, facts["term"], 1)
    call("promote", tmp_path / "none", code=11)
    call("promote", tmp_path, code=11)


def test_a_run_refuses_a_standby_and_takes_over(store, tmp_path, monkeypatch):
    """--takeover promotes when the flow is loaded, and before it runs; without a standby it is refused."""
    place, standby, flow = tmp_path / "place", tmp_path / "standby", tmp_path / "flow.py"
    back_up(store, place, incremental=True)
    call("follow", place, standby, "--once")
    with pytest.raises(StandbyDirectoryError):
        MiniRun(standby, 1)
    ran = []

    def run(flow, config, **_) -> None:
        ran.append((config.path, (standby / "standby.json").exists()))
        raise FlowFailedError("it ran")

    monkeypatch.setattr("recovery.spark.run.blocking.run_query", run)

    def takeover(directory: Path) -> Result:
        return CliRunner().invoke(main, ["run", "--takeover", str(flow), "-r", str(directory)])

    flow.write_text("flow = None")
    assert takeover(standby).exit_code == 34
    flow.write_text("from recovery import Flow\nflow = Flow('flow', lambda spark: spark)\n")
    refused = takeover(store)
    assert refused.exit_code == 11
    assert "not a standby" in refused.stderr
    done = takeover(standby)
    assert done.exit_code == 35
    assert f"promoted {standby}: the state after epoch 1" in done.stderr
    assert "what was closed after epoch 1, and did not get into the place, is lost, if there was any" in done.stderr
    assert ran == [(standby, False)]
    without = CliRunner().invoke(main, ["run", "--takeover", str(flow)])
    assert without.exit_code == 2
    assert "--takeover needs -r DIR" in without.stderr


@pytest.fixture
def following(store, tmp_path):
    """`recovery follow` in a process of its own: its lines are JSON."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    place.mkdir()
    words = ["follow", place, standby, "--every", "50ms", "--json"]
    process = Forked(["-m", "recovery", *words], stdout=subprocess.PIPE, text=True)
    yield place, standby, process
    process.kill()
    process.communicate()


def test_it_follows_until_it_is_stopped(store, following):
    """From before the first backup on; SIGTERM ends it with 0 when what it does is done, SIGKILL at any moment."""
    place, standby, process = following
    assert json.loads(process.stdout.readline())["error"] == "NoBackupError"
    for epoch in range(1, 4):
        back_up(store, place, incremental=True)
        assert json.loads(process.stdout.readline())["epoch"] == epoch
        change(store)
    result = CliRunner().invoke(main, ["promote", str(standby)])
    assert result.exit_code == 40
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert newest_state(standby)[0] == 3


def test_a_run_from_a_backup_takes_over_before_it_reads_the_place(store, tmp_path, monkeypatch):
    """So what the other run publishes is in what is restored: once the backups are read, it is refused."""
    place, new, flow = tmp_path / "place", tmp_path / "new", tmp_path / "flow.py"
    old = writer(store, place, sync=True)
    back_up(store, place, incremental=True)
    flow.write_text("from recovery import Flow\nflow = Flow('flow', lambda spark: spark)\n")
    seen = []
    whole = sources.open_source

    def open_source(*arguments: object):
        with pytest.raises(TakenOverError, match="a takeover on"):
            old.check()
        seen.append(read_term(DirectoryPlace(place)).term)
        if len(seen) == 1:
            raise BackupTargetError("no answer")
        return whole(*arguments)

    monkeypatch.setattr(sources, "open_source", open_source)

    def run(flow, config, **_) -> None:
        seen.append(config.takeover)
        raise FlowFailedError("it ran")

    monkeypatch.setattr("recovery.spark.run.blocking.run_query", run)
    command = ["run", str(flow), "-r", str(new), "--from", str(place), "--replicate", str(place)]
    assert CliRunner().invoke(main, command).exit_code == 59
    assert not any(new.glob("part-*"))
    command.append("--takeover")
    assert CliRunner().invoke(main, [*command, "--resume"]).exit_code == 2
    old.check()
    assert CliRunner().invoke(main, command).exit_code == 60
    done = CliRunner().invoke(main, command)
    assert (done.exit_code, seen) == (35, [2, 2, True]), done.output
    claimant = Claimant(new, old.term.store_id, "flow x", 1, 2)
    assert claim(open_documents(str(place)), claimant, SystemClock(), random_id).term.term == 3


def test_usage_is_refused_before_a_store_is_taken_over(store, tmp_path):
    """Nobody can undo that."""
    place, standby, pipeline = tmp_path / "place", tmp_path / "standby", tmp_path / "pipeline.py"
    back_up(store, place, incremental=True)
    call("follow", place, standby, "--once")
    pipeline.write_text("from recovery import Pipeline\npipeline = Pipeline('p', [])\n")
    command = ["run", str(pipeline), "-r", str(standby), "--takeover"]
    for wrong in (["--no-output"], ["--metrics-port", "0"]):
        result = CliRunner().invoke(main, [*command, *wrong])
        assert result.exit_code == 2, result.output
        assert (standby / "standby.json").exists()
