"""`status`, `advise` and `report` as a user types them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery.backup.drills import LastDrill
from recovery.backup.note import (
    LAG_NAME,
    LastBackup,
    LastReplica,
    last_backup,
    last_input_lag,
    note_backup,
    note_input_lag,
    note_last_drill,
    note_replica,
)
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.errors import NoPartitionsError
from recovery.planning.lag import InputLag, SourceLag
from tests.backup.support import work
from tests.report.support import clock, run_epochs
from tests.stores import alter, paths_of, query

AHEAD_S = 3 * 24 * 3600
"""So far ahead that the text is the same for minutes."""


def call(*arguments, env=None):
    """Run a command; its exit code and output."""
    result = CliRunner().invoke(main, [str(each) for each in arguments], env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.fixture
def store(make_store):
    """A directory with a history of six epochs."""
    directory = make_store(2)
    run_epochs(directory, 6, clock())
    return directory


def contents(directory):
    """All files, byte by byte."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_status_shows_health(store):
    """A line with each target, and the same for programs."""
    code, text = call("status", store)
    assert code == 0
    assert "health: ok: state size" in text
    assert "snapshot duration 1." in text
    _, text = call("status", store, "--json")
    facts = json.loads(text)
    assert facts["level"] == "ok"
    assert {each["target"] for each in facts["health"]} >= {"state-size", "memory", "backup-lag"}
    assert (
        facts["sizes"]["sessions"]["rows"]
        == sum(1 for each in facts["sizes"] if each == "sessions") * facts["sizes"]["sessions"]["rows"]
    )
    assert facts["last_epoch"]["epoch"] == facts["measured_epochs"] == 6


def test_thresholds_can_be_given(store):
    """As options, several of them, or in the environment; a wrong one is an error of usage."""
    _, text = call("status", store, "--threshold", "snapshot-duration=10ms/20ms", "--threshold", "memory=1MB/9GB")
    assert "health: critical" in text
    assert "(critical from 20 ms)" in text
    assert "(warning from 1.0 MB)" in text
    _, text = call("status", store, env={"RECOVERY_THRESHOLD": "snapshot-duration=10ms/1h memory=off"})
    assert "health: warning" in text
    assert "(warning from 10 ms)" in text
    for wrong in ("speed=1/2", "memory", "memory=2GB/1GB"):
        code, text = call("status", store, "--threshold", wrong)
        assert code == 2, text


def test_the_age_of_the_last_backup(store, tmp_path):
    """`backup` leaves a note; status knows it, and can watch it."""
    assert last_backup(store) is None
    code, _ = call("backup", store, tmp_path / "dest")
    assert code == 0
    noted = last_backup(store)
    assert (noted.epoch, noted.destination) == (6, str(tmp_path / "dest"))
    _, text = call("status", store, "--threshold", "backup-lag=1h/1d")
    assert "backup lag" in text
    note_backup(store, LastBackup(noted.finished_ms - 7_200_000, 5, "elsewhere"))
    _, text = call("status", store, "--threshold", "backup-lag=1h/1d")
    assert "(warning from 1 h)" in text
    (store / "last-backup.json").write_text("not JSON")
    assert last_backup(store) is None


def test_notes_of_a_clock_that_is_ahead(make_store, tmp_path):
    """Such notes hide no lag: `status` and the page say how far ahead the clock was."""
    store = make_store(2)
    run_epochs(store, 3, clock())
    ahead_ms = SystemClock().wall_ms() + AHEAD_S * 1000
    note_backup(store, LastBackup(ahead_ms, 3, "there"))
    note_replica(store, LastReplica("there", 3, 1, ahead_ms))
    note_last_drill(store, LastDrill(ahead_ms, "there", 3, 0.5, "", "host"))
    _, text = call("status", store, "--threshold", "backup-lag=1h/1d")
    assert "health: warning" in text
    assert "backup lag not known (warning: dated 3 d ahead of this host's clock)" in text
    assert re.search(r"replica at there: epoch 3, shipped .*, 3 d ahead of this host's clock", text)
    assert "by the clock of host, which is ahead" in text
    facts = json.loads(call("status", store, "--json")[1])
    for name in ("last_backup", "replica", "last_drill"):
        assert AHEAD_S - 300 < facts[name]["ahead_s"] <= AHEAD_S, name
    [lag] = [each for each in facts["health"] if each["target"] == "backup-lag"]
    assert (lag["text"], lag["level"]) == ("not known", "unknown")
    assert -AHEAD_S <= lag["value"] < 300 - AHEAD_S
    assert call("report", store, "-o", tmp_path / "page.html")[0] == 0
    assert "3 d ahead of this host" in (tmp_path / "page.html").read_text()


def test_epochs_of_a_clock_that_is_ahead(make_store):
    """`status` says how many a replica lacks, and that it does not know since when."""
    store = make_store(2)
    run_epochs(store, 3, clock(SystemClock().wall_ms() + AHEAD_S * 1000))
    note_replica(store, LastReplica("there", 1, 1, SystemClock().wall_ms()))
    _, text = call("status", store)
    assert re.search(r"; 2 epochs behind, the oldest of which is dated 3 d ahead of this host's clock\n", text)


def test_the_lag_that_a_run_has_seen(store, tmp_path):
    """`status`, `advise` and `report` say it, with its time and the way out; a note of an earlier execution, and one
    that somebody has broken, say nothing."""
    sources = (
        SourceLag(source="b:9092", topic="orders", unit="record", behind=1234, seconds=700.0, parts=3, most="2",
                  most_behind=1000),
        SourceLag(source="/data/<in>", unit="version", behind=1),
    )  # fmt: skip
    execution = json.loads(call("status", store, "--json")[1])["executions"][-1]["number"]
    lag = InputLag(execution=execution, epoch=6, seen_ms=1_700_000_000_000, sources=sources, group="recovery-f",
                   problem="not allowed")  # fmt: skip
    note_input_lag(store, lag)
    assert last_input_lag(store) == lag
    _, text = call("status", store)
    assert "source lag 11.7 min (warning from 10 min)" in text
    for line in (
        "source lag of epoch 6, seen 2023-11-1",
        "  orders 1,234 records, most in partition 2: 1,000, some of it seen 11.7 min before\n",
        "  /data/<in> 1 version\n",
        "  consumer group recovery-f does not show it: not allowed\n",
    ):
        assert line in text
    facts = json.loads(call("status", store, "--json")[1])
    assert facts["lag"]["sources"][0]["behind"] == 1234
    assert facts["lag"]["seconds"] == 700
    assert "maxOffsetsPerTrigger" in call("advise", store)[1]
    [found] = json.loads(call("advise", store, "--json")[1])["findings"]
    assert (found["target"], found["value"], found["level"]) == ("source-lag", 700, "warning")
    assert call("report", store, "-o", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    for words in ("orders", "1,234 records", "/data/&lt;in&gt;", "Consumer group recovery-f does not show"):
        assert words in page
    note_input_lag(store, InputLag(execution=execution + 1, epoch=7, seen_ms=0, sources=sources))
    assert json.loads(call("status", store, "--json")[1])["lag"] is None
    for broken in ("not JSON", '{"execution": 1, "epoch": -1, "seen_ms": 0}', "[" * 100_000):
        (store / LAG_NAME).write_text(broken)
        assert call("status", store)[0] == 0


def test_a_note_that_cannot_be_written(tmp_path):
    """Is left out: the backup counts all the same."""
    note_backup(tmp_path / "missing", LastBackup(1, 2, "x"))
    assert not (tmp_path / "missing").exists()


def test_advise(store):
    """An interval, partitions and a size, with the arithmetic; the same for programs."""
    code, text = call("advise", store, "--tolerate", "20s", "--cores", "2")
    assert code == 0
    assert "snapshot interval: -s" in text
    assert "of the stream's time" in text
    assert "proposed" in text
    assert "partitions: 2" in text
    _, text = call("advise", store, "--json", "--tolerate", "20s")
    advice = json.loads(text)
    assert advice["interval"]["proposed"]["recovery_s"] <= 20
    assert advice["size"]["keys"] > 0


def test_advise_without_measures(make_store):
    """Says plainly what is missing."""
    code, text = call("advise", make_store(2))
    assert code == 0
    assert "Not enough is measured yet for a snapshot interval: 0 epochs" in text
    assert "There is no state yet" in text


def test_report_writes_one_page(store, tmp_path):
    """It changes nothing in the directory, and replaces a page only with `--force`."""
    before = contents(store)
    output = tmp_path / "report.html"
    code, text = call("report", store, "-o", output)
    assert (code, text.startswith(f"wrote {output}")) == (0, True)
    assert output.read_text().startswith("<!doctype html>")
    assert contents(store) == before
    output.write_text("mine")
    code, text = call("report", store, "-o", output)
    assert (code, output.read_text()) == (11, "mine")
    code, text = call("report", store, "-o", output, "--force", "--json", "--keys", "0")
    assert (code, json.loads(text)["bytes"]) == (0, output.stat().st_size)
    assert "Biggest keys" not in output.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html"]


def test_report_of_a_damaged_store(store, tmp_path):
    """The page is made, and the command says what it did not read."""
    paths_of(store)[1].write_bytes(b"x" * 8192)
    code, text = call("report", store, "-o", tmp_path / "report.html")
    assert code == 0
    assert "not read: part-1.sqlite3" in text
    assert "It cannot be resumed" in (tmp_path / "report.html").read_text()


def test_status_names_the_file_that_is_damaged(store):
    """Whoever reads that it cannot be resumed has to know which file to put back."""
    damaged = paths_of(store)[1]
    damaged.write_bytes(damaged.read_bytes()[:5000])
    assert f"It cannot be resumed: {damaged}: " in call("status", store)[1]


def test_an_epoch_that_is_not_held_is_reported_with_the_directory(store):
    """As every error about one."""
    code, text = call("plan", store, "--resume-epoch", 99)
    assert (code, f"Error: {store}: a run cannot resume at epoch 99" in text) == (28, True)


def test_report_to_where_nothing_can_be_written(store, tmp_path):
    """An error with its code, and no page."""
    missing = tmp_path / "missing"
    for command in (("report", store, "-o"), ("state", "export", store, "--output-file")):
        code, text = call(*command, missing / "report.html")
        assert (code, f"there is no directory {missing}" in text) == (11, True)
        assert "disk" not in text
        code, text = call(*command, Path("/proc/version/x"))
        assert (code, "there is no directory /proc/version" in text) == (11, True)
        code, text = call(*command, tmp_path / ("x" * 256))
        assert (code, "File name too long" in text) == (12, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["advise", "report", "status"])
def test_no_directory(tmp_path, command):
    """The error of all commands."""
    assert call(command, tmp_path / "none")[0] == NoPartitionsError.exit_code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [("--metrics-port", "0"), ("--metrics-host", "::1"), ("--resume-epoch", "2"), ("--drop-step", "a"),
     ("--keep-step", "a"), ("--rename-step", "a=b")],
)  # fmt: skip
def test_options_of_a_run_that_need_a_directory(option, value):
    """Without one there is nothing that they could be about: an error of usage, before anything starts."""
    code, text = call("run", "flow.py", option, value)
    assert (code, f"{option} needs -r DIR" in text) == (2, True)


@pytest.mark.parametrize("option", ["-b", "-s", "--trigger"])
def test_an_interval_beyond_all_sense(store, option):
    """An error of usage, and not a setting that says something else than was meant."""
    code, text = call("run", "flow.py", "-r", store, option, "99999999999999d")
    assert (code, "longer than a thousand years" in " ".join(text.split())) == (2, True)


def test_variables_for_runs_with_a_directory():
    """They say nothing about one without: it begins, and finds no flow."""
    code, text = call("run", "flow.py", env={"RECOVERY_SNAPSHOT_INTERVAL": "1s", "RECOVERY_METRICS_PORT": "0"})
    assert (code, "there is no file flow.py" in text) == (34, True)


def test_commands_report_each_files_own_error(make_store):
    """verify and status give each file's own error, and its code; JSON has it as the problem."""
    newer, damaged, torn = (make_store(2) for _ in range(3))
    for store in (newer, damaged, torn):
        work(store, 2)
    alter(newer / "part-1.sqlite3", "PRAGMA user_version = 99")
    code, text = call("verify", newer, "--json")
    assert (code, json.loads(text)["problem"]["error"]) == (27, "UnsupportedVersionError")
    alter(damaged / "part-0.sqlite3", "UPDATE snaps SET ser_change = '666' WHERE step_id = 'count'")
    code, text = call("verify", damaged, "--json")
    assert (code, json.loads(text)["problem"]["error"]) == (23, "CorruptPartitionError")
    [(page,)] = query(torn / "part-0.sqlite3", "SELECT rootpage FROM sqlite_schema WHERE name = 'snaps'")
    with (torn / "part-0.sqlite3").open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(bytes(4096))
    code, text = call("status", torn, "--json")
    assert (code, json.loads(text)["problem"]["error"]) == (0, "CorruptPartitionError")
    for words in (["list"], ["get", "k"], ["set", "k", "1"]):
        assert call("hwm", words[0], torn, *words[1:])[0] == 23


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("report", "-o", "."), 11), (("report", "-o", "/"), 11), (("state", "export", "--output-file", "."), 11),
     (("report", "-o", "x" * 300), 12), (("state", "export", "--output-file", "x" * 300), 12)],
    ids=lambda each: " ".join(each)[:40] if isinstance(each, tuple) else str(each),
)  # fmt: skip
def test_what_is_no_file_to_write(make_store, words, expected):
    """A directory, or a name that no file system takes: said as what it is."""
    command, *rest = words
    where = [rest.pop(0)] if command == "state" else []
    force = ["--force"] if command == "report" else []
    code, _ = call(command, *where, make_store(1), *rest, *force)
    assert code == expected
