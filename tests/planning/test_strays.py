"""Files that are none of a directory's partitions, or have a wrong name: every command says the same, and its commands
work."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from recovery import (
    CorruptPartitionError,
    DuplicatePartitionError,
    ForeignPartitionError,
    MissingPartitionsError,
    RecoveryError,
    init_partitions,
)
from recovery.cli import main
from recovery.planning.copies import Location, choose_copies
from recovery.planning.resume import plan_resume
from recovery.storage.scan import scan
from tests.stores import Driver

COMMANDS = (
    ("plan",), ("verify",), ("status",), ("gc", "-b", "0"), ("backup",), ("fork",), ("diff",), ("report",),
    ("state", "set", "--step", "sum", "--key", "a", "--yes"), ("checkpoint", "show"),
)  # fmt: skip


def renamed(directory):
    (directory / "part-1.sqlite3").rename(directory / "part-2.sqlite3")


def swapped(directory):
    (directory / "part-1.sqlite3").rename(directory / "kept")
    (directory / "part-0.sqlite3").rename(directory / "part-1.sqlite3")
    (directory / "kept").rename(directory / "part-0.sqlite3")


def shifted(directory):
    for index in (1, 0):
        (directory / f"part-{index}.sqlite3").rename(directory / f"part-{index + 1}.sqlite3")


def copied(directory):
    shutil.copy(directory / "part-1.sqlite3", directory / "part-2.sqlite3")


def copied_by_hand(directory):
    shutil.copy(directory / "part-1.sqlite3", directory / "part-1 (copy).sqlite3")


def empty(directory):
    (directory / "part-7.sqlite3").touch()


def empty_in_place(directory):
    renamed(directory)
    (directory / "part-1.sqlite3").touch()


def other_store(directory):
    init_partitions(directory / "other", 1)
    (directory / "other/part-0.sqlite3").rename(directory / "part-5.sqlite3")
    (directory / "other").rmdir()


CASES = [
    (renamed, DuplicatePartitionError, "by its content this file is part-1.sqlite3", "Rename the file back: mv -n"),
    (swapped, DuplicatePartitionError, "by its content this file is part-1.sqlite3", "Rename the file back: mv -n"),
    (shifted, DuplicatePartitionError, "by its content this file is part-0.sqlite3", "Rename the file back: mv -n"),
    (copied, DuplicatePartitionError, "this file is a second part-1.sqlite3", "Move the extra file away: mv -n"),
    (copied_by_hand, DuplicatePartitionError, "is a second part-1.sqlite3", "Move the extra file away: mv -n"),
    (empty, ForeignPartitionError, "none of the 2 partitions of this store", "Move the extra file away: mv -n"),
    (empty_in_place, CorruptPartitionError, "by its content part-2.sqlite3 is part-1.sqlite3", "Rename the file back"),
    (other_store, ForeignPartitionError, "it belongs to store", "Move the extra file away: mv -n"),
]  # fmt: skip
IDS = [case[0].__name__ for case in CASES]


@pytest.fixture
def store(tmp_path):
    """A store of two partitions, whose path the shell would divide at its space."""
    directory = tmp_path / "my db"
    init_partitions(directory, 2)
    with Driver(directory) as run:
        run.apply(0, {"a": "1", "b": "2"})
        run.close(0)
    return directory


def refused(directory) -> RecoveryError:
    with pytest.raises(RecoveryError) as error:
        plan_resume(scan(directory))
    return error.value


@pytest.mark.parametrize(("change", "kind", "found", "remedy"), CASES, ids=IDS)
def test_the_commands_it_names_put_the_directory_right(store, change, kind, found, remedy):
    """A shell runs them, one error after another, until a run could resume where it would have before."""
    before = plan_resume(scan(store)).resume_epoch
    change(store)
    error = refused(store)
    assert type(error) is kind
    assert found in error.found
    assert error.remedy.startswith(remedy)
    for _ in range(3):
        commands = re.search(r": (mv -n .*?)(?:\. Rename the log|$)", error.remedy)
        subprocess.run(commands[1], shell=True, check=True)
        try:
            assert plan_resume(scan(store)).resume_epoch == before
            return
        except RecoveryError as another:
            error = another
    raise error


@pytest.mark.parametrize(("change", "kind", "found", "remedy"), CASES, ids=IDS)
def test_no_command_that_it_names_overwrites_a_file(store, change, kind, found, remedy):
    """Files that were moved away before, with their logs, stay; so does every file when a command is repeated."""
    change(store)
    kept = {}
    for path in list(store.glob("*.sqlite3")):
        for name in (f"{path.name}.aside", f"{path.name}.aside-2-wal"):
            kept[store / name] = f"kept: {name}"
    for path, text in kept.items():
        path.write_text(text)
    contents = sorted(path.read_bytes() for path in store.iterdir())
    for _ in range(3):
        try:
            plan_resume(scan(store))
            break
        except RecoveryError as error:
            commands = re.search(r": (mv -n .*?)(?:\. Rename the log|$)", error.remedy)[1]
        subprocess.run(commands, shell=True, check=True)
        assert sorted(path.read_bytes() for path in store.iterdir()) == contents
    plan_resume(scan(store))
    subprocess.run(commands, shell=True, check=False, stderr=subprocess.DEVNULL)
    assert sorted(path.read_bytes() for path in store.iterdir()) == contents
    assert {path: path.read_text() for path in kept} == kept


@pytest.mark.parametrize(("change", "kind", "found", "remedy"), CASES, ids=IDS)
def test_every_command_says_the_same(store, tmp_path, change, kind, found, remedy):
    """And none of them changes a byte of the directory."""
    change(store)
    before = {path.name: path.read_bytes() for path in store.glob("*.sqlite3*")}
    page = tmp_path / "page.html"
    for number, words in enumerate(COMMANDS):
        at = 2 if words[0] in ("state", "checkpoint") else 1
        more = {"backup": [tmp_path / f"copies-{number}"], "fork": [tmp_path / f"fork-{number}"], "diff": [store]}
        more |= {"report": ["-o", page], "state": ["1"]}
        done = CliRunner().invoke(main, [*words[:at], str(store), *map(str, more.get(words[0], [])), *words[at:]])
        assert "Traceback" not in done.output, words
        shown = html.unescape(page.read_text("utf-8")) if words[0] == "report" else done.output
        assert found in shown, (words, done.output)
        if words[0] not in ("status", "report"):
            assert done.exit_code == kind.exit_code, (words, done.output)
    assert before == {path.name: path.read_bytes() for path in store.glob("*.sqlite3*")}


def test_plan_of_a_renamed_file_asks_for_no_copy(store):
    """The missing partition is there, under another name."""
    renamed(store)
    done = CliRunner().invoke(main, ["plan", str(store), "--json"])
    files = {each["file"]: each for each in json.loads(done.output)["files"]}
    assert files["part-1.sqlite3"]["role"] == "missing"
    assert files["part-1.sqlite3"]["fix"] == ""
    assert "part-2.sqlite3 is it" in files["part-1.sqlite3"]["note"]
    assert files["part-2.sqlite3"]["fix"].startswith("Rename the file back: mv -n")
    empty(store)
    files = {each["file"]: each for each in json.loads(CliRunner().invoke(
        main, ["plan", str(store), "--json"]).output)["files"]}  # fmt: skip
    assert files["part-7.sqlite3"]["fix"].startswith("Move the extra file away: mv -n")


def test_the_newer_of_two_copies_is_not_called_the_extra_one(store):
    """Moving it away would lose its epochs."""
    shutil.copy(store / "part-1.sqlite3", store / "old")
    with Driver(store) as run:
        run.apply(1, {"a": "3", "b": "4"})
        run.close(1)
    (store / "part-1.sqlite3").rename(store / "part-1-new.sqlite3")
    (store / "old").rename(store / "part-1.sqlite3")
    error = refused(store)
    assert "newer than the file of that name: it ends at epoch 2, part-1.sqlite3 at epoch 1" in error.found
    assert error.remedy.startswith("Keep one of them. This one: mv -n ")


def test_of_two_renamed_copies_the_newer_one_is_renamed_back(store):
    """The older one is the extra file."""
    shutil.copy(store / "part-1.sqlite3", store / "old")
    with Driver(store) as run:
        run.apply(1, {"a": "3", "b": "4"})
        run.close(1)
    (store / "old").rename(store / "part-8.sqlite3")
    (store / "part-1.sqlite3").rename(store / "part-9.sqlite3")
    error = refused(store)
    assert error.path == str(store / "part-8.sqlite3")
    assert "a second part-1.sqlite3, beside part-9.sqlite3, and older: it ends at epoch 1" in error.found


def test_the_home_of_operational_state(store):
    """Commands that read part-0 only say which command shows more."""
    swapped(store)
    done = CliRunner().invoke(main, ["runs", str(store)])
    assert done.exit_code == DuplicatePartitionError.exit_code
    assert "python -m recovery plan" in done.output
    swapped(store)
    (store / "part-0.sqlite3").rename(store / "part-2.sqlite3")
    done = CliRunner().invoke(main, ["runs", str(store)])
    assert done.exit_code == MissingPartitionsError.exit_code
    assert "python -m recovery plan" in done.output


def test_at_an_owner(store):
    """The command is for the owner's directory, whose path is not known here."""
    renamed(store)
    partitions = tuple(file.description for file in scan(store))
    with pytest.raises(DuplicatePartitionError) as error:
        choose_copies([Location("h2:7000", partitions)])
    assert error.value.remedy.startswith(
        "In the directory of h2:7000: Rename the file back: mv -n part-2.sqlite3 part-1.sqlite3"
    )


def test_bytes_of_a_run_of_the_program(store):
    """As a user types it, in a process of its own."""
    renamed(store)
    command = [sys.executable, "-m", "recovery", "verify", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 25
    assert f"mv -n '{store}/part-2.sqlite3' '{store}/part-1.sqlite3'" in done.stderr
