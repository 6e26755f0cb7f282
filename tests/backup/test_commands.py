"""`backup` and `restore` as a person or a program calls them."""

from __future__ import annotations

import importlib
import json
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery.backup.repository import list_backups
from recovery.cli import main
from recovery.cli.common import format_size
from recovery.errors import BackupTargetError, UnsupportedVersionError
from recovery.places.directory import DirectoryPlace
from tests.backup.support import states, work
from tests.backup.test_incremental import fill
from tests.forks import Forked, run_code
from tests.stores import Driver


def call(*arguments: object, code: int = 0) -> str:
    """Standard output of a command; its exit code is checked."""
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


@pytest.fixture
def store(make_store) -> Path:
    """Three partitions with five epochs."""
    return make_store(3, work, 5)


def test_back_and_forth(store, tmp_path):
    """What the commands say is what they did."""
    made = json.loads(call("backup", store, tmp_path / "dest", "--json"))
    assert (made["epoch"], made["stored"], made["unchanged"]) == (5, 3, 0)
    listed = json.loads(call("backup", tmp_path / "dest", "--list", "--json"))
    assert [each["id"] for each in listed["backups"]] == [made["id"]]
    planned = json.loads(call("restore", tmp_path / "dest", tmp_path / "new", "--dry-run", "--json", "--epoch", 3))
    assert (planned["epoch"], planned["lost_epochs"], planned["dry_run"]) == (3, 2, True)
    assert not (tmp_path / "new").exists()
    done = json.loads(call("restore", tmp_path / "dest", tmp_path / "new", "--json"))
    assert (done["epoch"], done["lost_epochs"], done["resume_epoch"]) == (5, 0, 6)
    assert states(tmp_path / "new") == states(store)


def test_for_people(store, tmp_path):
    """The texts name the backup, the epoch and what is lost."""
    assert "of epoch 5: 3 partitions stored" in call("backup", store, tmp_path / "dest")
    assert "3 unchanged" in call("backup", store, tmp_path / "dest")
    assert len(call("backup", "--list", tmp_path / "dest").splitlines()) == 3
    result = CliRunner().invoke(main, ["restore", str(tmp_path / "dest"), str(tmp_path / "new"), "--epoch", "2"])
    assert result.stdout.splitlines()[-1].endswith("the next run resumes at epoch 3")
    assert "will be lost: 3 epochs" in result.stderr
    assert result.stderr.index("will be lost") < result.stderr.index("fetched and checked")


def test_incremental(store, tmp_path):
    """The output says what was stored, and why not only the changes; a drill and a dry run know chains."""
    first = call("backup", store, tmp_path / "dest", "--incremental")
    assert "stored whole: there is no earlier copy to continue" in first
    work(store, 1)
    made = json.loads(call("backup", store, tmp_path / "dest", "--incremental", "--json"))
    assert (made["stored"], made["changes_stored"], made["whole_because"]) == (0, 3, {})
    assert len(made["objects"]) == 6
    head, *rows = call("backup", "--list", tmp_path / "dest").splitlines()
    assert [row.split()[head.split().index("chain") + 1] for row in rows] == ["1", "2"]
    assert "it would read 6 files" in call("restore", tmp_path / "dest", tmp_path / "new", "--dry-run")
    planned = json.loads(call("restore", tmp_path / "dest", tmp_path / "new", "--dry-run", "--json"))
    assert [each["name"] for each in planned["objects"]] == made["objects"]
    sizes = [each["bytes"] for each in planned["objects"]]
    assert planned["read_bytes"] == planned["read_bytes_before_start"] == sum(sizes)
    call("drill", tmp_path / "dest")
    last = json.loads(call("status", store, "--json"))["last_backup"]
    assert (last["incremental"], last["chain"], last["epoch"]) == (True, 2, 6)
    call("backup", store, tmp_path / "dest")
    assert json.loads(call("status", store, "--json"))["last_backup"]["incremental"] is False


def test_a_dry_run_says_what_would_be_read(store, tmp_path):
    """Each object with its size; of a lazy restore, what of it before the start and what meanwhile."""
    place, new = tmp_path / "dest", tmp_path / "new"
    call("backup", store, place, "--incremental")
    work(store, 1)
    made = json.loads(call("backup", store, place, "--incremental", "--json"))
    text = call("restore", place, new, "--dry-run")
    assert all(name in text for name in made["objects"])
    assert "in the background" not in text
    text = call("restore", place, new, "--dry-run", "--lazy")
    planned = json.loads(call("restore", place, new, "--dry-run", "--lazy", "--json"))
    manifest = list_backups(DirectoryPlace(place)).newest
    before = sum(copy.index_bytes + sum(each.stored_bytes for each in copy.changes) for copy in manifest.copies)
    assert planned["read_bytes_before_start"] == before < planned["read_bytes"]
    assert planned["read_bytes"] == sum((place / name).stat().st_size for name in made["objects"])
    assert f"at least {format_size(before)}" in text
    assert f"up to {format_size(planned['read_bytes'] - before)}, in the background" in text
    assert not new.exists()


def test_a_place_of_backups_is_read_like_a_directory(make_store, tmp_path):
    """`history` and `diff`, with all epochs of the chain, also those that the partitions collected; nothing is left."""
    store = make_store(3)
    fill(store)
    call("backup", store, tmp_path / "dest", "--incremental")
    for _ in range(6):
        work(store, 1, floor=100)
        call("backup", store, tmp_path / "dest", "--incremental")
    held = json.loads(call("history", store, "--step", "count", "--key", "k1", "--json"))
    whole = json.loads(call("history", tmp_path / "dest", "--step", "count", "--key", "k1", "--json"))
    assert held["oldest_epoch"] == 6
    assert (whole["oldest_epoch"], whole["newest_epoch"], whole["directory"]) == (0, 7, str(tmp_path / "dest"))
    assert ([each["epoch"] for each in whole["versions"]], len(held["versions"])) == ([4, 7], 2)
    assert "A and B are at the same position" in call("diff", store, tmp_path / "dest")
    differences = json.loads(call("diff", tmp_path / "dest", tmp_path / "dest", "--epoch-a", 3, "--json", code=1))
    assert (differences["a"]["epoch"], differences["b"]["epoch"]) == (3, 7)
    assert list(Path(tempfile.gettempdir()).glob("recovery-read-*")) == []
    # A damaged object is reported, and what lies before it is read.
    [newest, *_] = sorted((tmp_path / "dest" / "objects" / "part-0").glob("*.changes.zst"), reverse=True)
    newest.write_bytes(b"")
    result = CliRunner().invoke(main, ["diff", str(tmp_path / "dest"), str(store)])
    assert newest.name in result.stderr
    assert (result.exit_code, "epoch 6" in result.stdout) == (1, True)


def test_errors_have_their_codes(store, tmp_path):
    """Each mistake ends with the code that the documentation lists."""
    call("backup", store, tmp_path / "dest")
    call("backup", tmp_path / "none", tmp_path / "dest", code=20)
    call("backup", store, "ftp://host/x", code=11)
    call("backup", store, "s3://", code=11)
    call("backup", store, "s3://[x", code=11)
    call("backup", store, "file://[::x/y", code=11)
    call("backup", store, "", code=11)
    call("backup", store, "gs://b/p?colour=red", code=11)
    for place in ("s3://b/words#2?region=us-east-1", "gs://b/words#", "abfs://c@a.dfs.core.windows.net/words#2"):
        assert "%23" in CliRunner().invoke(main, ["backup", str(store), place]).output
        call("backup", store, place, code=11)
    for odd in ("file://dest", "file://host/dest", "file://", "file:///dest?a=b"):
        call("backup", store, odd, code=11)
    call("backup", store, f"file://{tmp_path}/by-address")
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        output = CliRunner().invoke(main, ["backup", str(store), str(place)]).output
        assert f"Error: {place}: it is not a directory" in output
        assert "disk" not in output
        call("backup", store, place, code=60)
    call("backup", "--list", tmp_path / "nowhere", code=61)
    listed = CliRunner().invoke(main, ["backup", "--list", str(tmp_path / "file")])
    assert (listed.exit_code, "it is not a directory" in listed.output) == (61, True)
    call("backup", "--list", store, code=61)
    (tmp_path / "empty").mkdir()
    assert "no finished backup" in call("backup", "--list", tmp_path / "empty")
    assert json.loads(call("backup", "--list", tmp_path / "empty", "--json"))["backups"] == []
    call("restore", tmp_path / "nothing", tmp_path / "new", code=61)
    call("restore", tmp_path / "dest", store, code=26)
    call("restore", tmp_path / "dest", tmp_path / "new", "--epoch", 9, code=28)
    for spelling in ("--timestamp", "--at"):
        call("restore", tmp_path / "dest", tmp_path / "new", spelling, "1969-01-01", code=28)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("words", [["restore"], ["restore", "--dry-run"], ["drill"]])
def test_the_error_names_the_copies_that_do_not_fit(store, tmp_path, words):
    """And where they lie, not that a file which is there would be missing."""
    copies = tmp_path / "copies"
    shutil.copytree(store, copies)
    path = copies / "part-1.sqlite3"
    path.write_bytes(path.read_bytes()[:100])
    target = [tmp_path / "new"] if words[0] == "restore" else []
    output = json.loads(call(*words[:1], copies, *target, *words[1:], "--json", code=21))
    assert output["path"] == str(copies)
    assert "part-1.sqlite3 of 3 partitions missing; not used: part-1.sqlite3: " in output["found"]


def test_a_key_with_a_slash_is_not_shown(store):
    """It ends the part of an address that holds credentials, so it is refused, and neither asked for nor printed."""
    result = CliRunner().invoke(main, ["backup", str(store), "s3://AKIA:abc/SECRET@bucket/p?region=us-east-1"])
    assert result.exit_code == 11
    assert "SECRET" not in result.output
    assert "abc" not in result.output
    assert "%2F" in result.output


def test_mistakes_on_the_command_line(store, tmp_path):
    """They are usage errors, and nothing is done."""
    call("backup", tmp_path / "dest", code=2)
    call("backup", store, tmp_path / "dest", "--list", "--prune", code=2)
    call("backup", tmp_path / "dest", "--prune", code=2)
    call("backup", store, tmp_path / "dest", "--keep", "some", code=2)
    call("backup", store, tmp_path / "dest", "--every", "0", code=2)
    call("backup", "--prune", tmp_path / "dest", "--keep", "9" * 5000)
    call("drill", tmp_path / "dest", "--scratch", tmp_path / "nowhere", code=2)
    call("restore", tmp_path / "dest", tmp_path / "new", "--timestamp", "yesterday", code=2)
    call("restore", tmp_path / "dest", tmp_path / "new", "--timestamp", "2026-01-01", "--epoch", 1, code=2)
    assert not (tmp_path / "dest").exists()


@pytest.mark.parametrize("place", ["{0}", "file://{0}", "{0}/../{1}"])
@pytest.mark.parametrize("command", ["backup {0} {place}", "restore {place} {0}", "follow {place} {0} --once"])
def test_a_directory_is_no_place_for_itself(store, command, place):
    """However the place is written: the lease of the place would overwrite the lease of the directory."""
    before = {path: path.read_bytes() for path in store.iterdir()}
    named = place.format(store, store.name)
    result = CliRunner().invoke(main, command.format(store, place=named).split())
    assert result.exit_code == 11, result.output
    assert "the recovery directory would be its own" in result.output
    assert {path: path.read_bytes() for path in store.iterdir()} == before


def test_keep_removes_older_backups(store, tmp_path):
    """With the backup, or on its own; what is left can be restored."""
    for _ in range(3):
        work(store, 1)
        call("backup", store, tmp_path / "dest", "--keep", 2)
    assert len(json.loads(call("backup", "--list", tmp_path / "dest", "--json"))["backups"]) == 2
    done = json.loads(call("backup", "--prune", tmp_path / "dest", "--keep", 1, "--json"))
    assert (len(done["removed"]), done["objects"]) == (1, 3)
    call("restore", tmp_path / "dest", tmp_path / "new")
    assert states(tmp_path / "new") == states(store)


def test_a_backup_whose_pruning_fails_was_made(store, tmp_path, monkeypatch):
    """It is said first, and counts; what kept older ones from being removed is the command's error."""

    def refuse(*_: object):
        raise BackupTargetError("no answer for 60 s", path="dest")

    monkeypatch.setattr("recovery.backup.repository.prune", refuse)
    result = CliRunner().invoke(main, ["backup", str(store), str(tmp_path / "dest"), "--keep", "2"])
    assert result.exit_code == 60
    assert "of epoch 5: 3 partitions stored" in result.stdout
    assert "the backup counts, but older ones could not be removed: dest: no answer" in result.stderr
    made = json.loads(call("backup", store, tmp_path / "dest", "--keep", 2, "--json", code=60))
    assert (made["epoch"], made["removed"], made["pruning_problem"]["error"]) == (5, [], "BackupTargetError")
    listed = json.loads(call("backup", "--list", tmp_path / "dest", "--json"))["backups"]
    assert [each["id"] for each in listed][-1] == made["id"]
    assert len(listed) == 2


def test_a_pruning_that_fails_is_tried_again(store, tmp_path, monkeypatch):
    """With --every it ends nothing, unless it cannot pass."""
    problems = [BackupTargetError("no answer"), BackupTargetError("no answer"), UnsupportedVersionError("format 2")]

    def refuse(*_: object):
        raise problems.pop(0)

    monkeypatch.setattr("recovery.backup.repository.prune", refuse)
    arguments = ["backup", str(store), str(tmp_path / "dest"), "--every", "0.01", "--keep", "2"]
    monkeypatch.setattr(importlib.import_module("recovery.cli.backup"), "StopSignals", NoSignals)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == UnsupportedVersionError.exit_code
    assert result.stdout.count("of epoch 5") == 3
    assert result.stderr.count("older ones could not be removed, it will be retried: no answer") == 2


class NoSignals:
    """None comes."""

    def came_within(self, _: float) -> bool:
        return False


def test_the_directory_from_the_environment(store, tmp_path, monkeypatch):
    """RECOVERY_DIRECTORY replaces DIR in both commands."""
    monkeypatch.setenv("RECOVERY_DIRECTORY", str(store))
    call("backup", tmp_path / "dest")
    monkeypatch.setenv("RECOVERY_DIRECTORY", str(tmp_path / "new"))
    call("restore", tmp_path / "dest")
    assert states(tmp_path / "new") == states(store)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_every_repeats_until_a_signal(store, tmp_path, number):
    """A backup after each interval, a line of JSON each; a signal ends it with code 0. Each stores what has changed,
    and one may be made between two partitions' commits."""
    words = ["backup", store, tmp_path / "dest", "--every", "0.05", "--json"]
    process = Forked(["-m", "recovery", *words], stdout=subprocess.PIPE, text=True)
    try:
        first = json.loads(process.stdout.readline())
        with Driver(store) as run:
            run.apply(900, {"k": "1"})
            run.close(900)
            later = []
            while not later or later[-1]["epoch"] < 6:
                later.append(json.loads(process.stdout.readline()))
        process.send_signal(number)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert (first["epoch"], first["stored"]) == (5, 3)
    assert sum(made["stored"] for made in later) >= 3
    call("restore", tmp_path / "dest", tmp_path / "new")
    assert states(tmp_path / "new") == states(store)


def test_a_signal_is_heard_at_any_moment_of_the_wait():
    """Also at those in which the wait is just beginning or over: none is lost, and none makes it hang. Other signals do
    not count."""
    code = """
import faulthandler, os, random, signal
from recovery.host import signals as module
faulthandler.dump_traceback_later(50, exit=True)
generator = random.Random(1)
signals = module.StopSignals()
signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGTERM))
os.kill(os.getpid(), signal.SIGALRM)
assert not signals.came_within(0)
module.STOPPING_NUMBERS |= {signal.SIGALRM}
for _ in range(5_000):
    signal.setitimer(signal.ITIMER_REAL, generator.uniform(2e-6, 6e-5))
    assert signals.came_within(3600)
    signals._came = False
for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(os.getpid(), number)
    assert signals.came_within(3600)
"""
    done = run_code(code)
    assert done.returncode == 0, done.stderr
