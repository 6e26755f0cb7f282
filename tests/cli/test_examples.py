"""The example at the end of each command's help: each works as it is printed, in a directory with what it names."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from recovery.cli import COMMANDS, main
from recovery.cli.examples import EXAMPLES
from recovery.storage.initialize import init_partitions
from tests.backup.support import work
from tests.cli.reference import below
from tests.cli.test_quarantine import written
from tests.forks import Forked
from tests.importing.theirs import word_count
from tests.operators.support import write_job
from tests.stores import ROOT, SpreadDirectory

WIDTH = 80
BEFORE = {
    "restore": "backup db/ backups/",
    "drill": "backup db/ backups/",
    "follow": "backup db/ backups/",
    "promote": "backup db/ backups/; follow backups/ standby/ --once",
    "checkpoint export": "checkpoint import job/ native-db/ --flow orders",
    "checkpoint show": "checkpoint import job/ native-db/ --flow orders",
    "state import": "state export db/ --output-file states.jsonl",
}
"""What a user has done before the example of these commands."""
ASKS = ("erase", "quarantine drop", "state clear", "state merge")
"""These show what they would do, and ask."""
SPARK = {"run": "epoch 1 closed", "warmup": "Made ", "demo": "demo"}
"""What these, which start Spark, print."""
SERVE = {"serve": "serving part", "ui": "http://", "follow": "epoch 5"}
"""What these, which work until a signal, print when they work."""
FLOW = """
from recovery import Flow

flow = Flow("orders", lambda spark: spark.readStream.format("appended").load("orders/"), sink=print)
"""


def words_of(command: str) -> list[str]:
    """The example in the help that a command prints on a terminal."""
    done = CliRunner().invoke(main, [*command.split(), "--help"], terminal_width=WIDTH)
    [line] = re.findall(r"^  Example:\n    recovery (.*)$", done.output, re.MULTILINE)
    assert len(line) <= WIDTH - len("    recovery ")
    assert done.output.rstrip().endswith(line)
    return shlex.split(line)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the examples name."""
    root = tmp_path_factory.mktemp("examples")
    with contextlib.chdir(root):
        init_partitions("db", 2)
        init_partitions("new-db", 2)
        init_partitions("native-db", 2)
        work(Path("db"), 5)
        written(root / "bad-db")
        write_job(Path("job"), batch=4)
        word_count(Path("theirs"), {"to": 2})
        Path("words.txt").write_text("to\nbe\n")
        Path("token").write_text("0123456789abcdef")
        Path("token").chmod(0o600)
        Path("states").mkdir()
        Path("orders").mkdir()
        Path("orders/monday").write_text("1\n")
        Path("orders.py").write_text(FLOW)
        for words in (["hwm", "set", "db/", "orders.id", "200"], ["state", "set", "db/", "notes/first", "{}"]):
            assert CliRunner().invoke(main, words).exit_code == 0
    return root


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that directory, which is the working directory."""
    monkeypatch.setenv("EDITOR", "true")
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(made, tmp_path, dirs_exist_ok=True))


def test_each_command_has_one() -> None:
    """In the order of the commands, and for no other."""
    assert list(EXAMPLES) == [f"{name} {each}".strip() for name in COMMANDS for each in below(name)]
    assert all(isinstance(each, click.Command) for each in main.commands.values())


ALONE = [each for each in EXAMPLES if each not in SPARK and each not in SERVE and not each.startswith("owners")]


@pytest.mark.parametrize("command", ALONE)
def test_it_works(here: Path, command: str) -> None:
    """The examples that need no Spark, no owner and no signal."""
    if command == "init":
        shutil.rmtree("db")
    words = [each.replace("/srv/states", str(here / "states")) for each in words_of(command)]
    for before in filter(None, BEFORE.get(command, "").split("; ")):
        assert CliRunner().invoke(main, before.split()).exit_code == 0
    done = CliRunner().invoke(main, words, input="y\n" if command in ASKS else None)
    assert done.exit_code == (1 if command == "diff" else 0), (done.output, done.exception)


@pytest.mark.parametrize("command", [each for each in EXAMPLES if each.startswith("owners")])
def test_it_works_with_owners(make_store, command: str) -> None:
    """The hosts of the example are two owners that run here."""
    spread = SpreadDirectory(make_store(2))
    try:
        with contextlib.chdir(spread.places[0]):
            shutil.copyfile(spread.token, "token")
            names = dict(zip(("h1:7077", "h2:7077"), (each.at for each in spread.services), strict=True))
            done = CliRunner().invoke(main, [names.get(each, each) for each in words_of(command)])
            assert done.exit_code == 0, (done.output, done.exception)
    finally:
        spread.close()


@pytest.mark.parametrize("command", SERVE)
def test_it_works_until_a_signal(here: Path, command: str) -> None:
    """At any free port."""
    for before in filter(None, BEFORE.get(command, "").split("; ")):
        assert CliRunner().invoke(main, before.split()).exit_code == 0
    init_partitions("part", 2)
    words = [re.sub(r"^:\d+$", ":0", each) for each in words_of(command)]
    with Forked(["-m", "recovery", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            assert any(SERVE[command] in line.replace(f"{here}/", "") for line in process.stdout)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert process.returncode == 0
        finally:
            process.kill()


@pytest.mark.long
@pytest.mark.parametrize("command", SPARK)
def test_it_works_with_spark(here: Path, command: str) -> None:
    """As a user types it."""
    if command == "run":
        shutil.rmtree("db")
        init_partitions("db", 2)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RECOVERY_CACHE": str(here / "cache"), "HOME": str(here)}
    done = subprocess.run(
        [sys.executable, "-m", "recovery", *words_of(command)], env=environment, capture_output=True, text=True,
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert SPARK[command] in done.stdout + done.stderr
