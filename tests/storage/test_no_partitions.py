"""Directories without recovery partitions: every command says what they are and what to type, and leaves them alone."""

from __future__ import annotations

import re
import shlex

import pytest
from click.testing import CliRunner

from recovery import ConfigurationError, ForeignPartitionError, NoPartitionsError, init_partitions
from recovery.cli import main
from tests.importing.theirs import Theirs

COMMANDS = (
    "status DIR", "plan DIR", "verify DIR", "gc DIR", "backup DIR NEW", "fork DIR NEW", "repartition DIR NEW 3",
    "repartition --in-place DIR 3", "run FLOW -r DIR", "state list DIR", "state set DIR a 1",
    "state set DIR --step s --key k 1 --yes", "hwm list DIR", "runs DIR", "checkpoint show DIR",
)  # fmt: skip
FLOW = "import recovery\nflow = recovery.Flow('w', lambda spark: spark.readStream.format('rate').load())\n"


def bytewax(directory):
    Theirs(directory)


def checkpoint(directory):
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    (directory / "metadata").write_text('{"id": "9f3c"}')


def other_files(directory):
    directory.mkdir()
    for name in ("a.txt", "b.csv", "c\x1b[31m.log", "d"):
        (directory / name).touch()


def nothing(directory):
    directory.mkdir()


def too_short(directory):
    directory.mkdir()
    init_partitions(directory / "db", 2)


CASES = [
    (bytewax, 24, "not a recovery partition", "import bytewax DIR NEW_DIR --rename-step OLD=NEW"),
    (checkpoint, 20, "the checkpoint of a Spark job", "checkpoint import DIR NEW_DIR --flow NAME"),
    (other_files, 20, "but 4 other files: a.txt, b.csv, c", "a directory of their own"),
    (nothing, 20, "it holds no recovery partition: it is empty", "python -m recovery init DIR N"),
    (too_short, 20, "but db, a directory in it, does", "Name that directory: DIR/db"),
]  # fmt: skip
IDS = [case[0].__name__ for case in CASES]


@pytest.fixture
def flow(tmp_path):
    (tmp_path / "flow.py").write_text(FLOW)
    return tmp_path / "flow.py"


def recovery(text, directory, tmp_path, number=0):
    """What a command ends with."""
    words = {"DIR": str(directory), "NEW": str(tmp_path / f"new-{number}"), "FLOW": str(tmp_path / "flow.py")}
    done = CliRunner().invoke(main, [words.get(word, word) for word in text.split()])
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def snapshot(directory):
    return {str(p.relative_to(directory)): p.read_bytes() if p.is_file() else None for p in directory.rglob("*")}


@pytest.mark.parametrize(("make", "code", "found", "way_out"), CASES, ids=IDS)
def test_every_command(flow, tmp_path, monkeypatch, make, code, found, way_out):
    """Each says the same, ends with the same code, and makes no file in a directory of somebody else."""
    monkeypatch.setattr("recovery.spark.jvm.session.prepare_environment", lambda *_, **__: None)
    directory = tmp_path / "my dir"
    make(directory)
    before = snapshot(directory)
    commands = [each for each in COMMANDS if make in (bytewax, checkpoint, nothing) or not each.startswith("run")]
    for number, text in enumerate(commands):
        done = recovery(text, directory, tmp_path, number)
        output = done.output.replace(shlex.quote(f"{directory}/db"), "DIR/db").replace(
            shlex.quote(str(directory)), "DIR")  # fmt: skip
        assert way_out in output, (text, done.output)
        assert found in done.output, (text, done.output)
        assert "\x1b" not in done.output
        assert done.exit_code == (0 if (text, make) == ("status DIR", bytewax) else code), (text, done.output)
        if make in (bytewax, checkpoint):
            assert snapshot(directory) == before, text


def test_one_partition_is_named(tmp_path):
    """Its directory is meant."""
    init_partitions(tmp_path / "db", 2)
    for command in ("status", "verify", "gc", "runs"):
        done = CliRunner().invoke(main, [command, str(tmp_path / "db/part-0.sqlite3")])
        assert done.exit_code == NoPartitionsError.exit_code
        assert f"Name the directory: {tmp_path}/db" in done.output


@pytest.mark.parametrize(("make", "code"), [(bytewax, 26), (checkpoint, ConfigurationError.exit_code)])
def test_init(tmp_path, make, code):
    """Partitions are not made among the files of another program."""
    make(tmp_path / "theirs")
    before = snapshot(tmp_path / "theirs")
    done = CliRunner().invoke(main, ["init", str(tmp_path / "theirs"), "2"])
    assert done.exit_code == code
    assert re.search(r"recovery (checkpoint import|import bytewax) .*theirs NEW_DIR", done.output)
    assert snapshot(tmp_path / "theirs") == before


@pytest.mark.parametrize("make", [bytewax, checkpoint])
def test_restoring_from_it(tmp_path, make):
    """It is no backup; the error names the command that takes it over."""
    make(tmp_path / "theirs")
    done = CliRunner().invoke(main, ["restore", str(tmp_path / "theirs"), str(tmp_path / "new")])
    assert done.exit_code == 61
    assert re.search(r"recovery (checkpoint import|import bytewax) .*theirs NEW_DIR", done.output)
    assert not (tmp_path / "new").exists()


def test_another_database_of_the_same_name(tmp_path):
    """It is not called Bytewax's."""
    Theirs(tmp_path / "db", 1).do(0, "DROP TABLE fronts")
    done = CliRunner().invoke(main, ["plan", str(tmp_path / "db")])
    assert done.exit_code == ForeignPartitionError.exit_code
    assert "Another program's file." in done.output
    assert "bytewax" not in done.output.lower()
