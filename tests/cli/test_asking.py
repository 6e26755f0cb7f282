"""What asks, asks where somebody can answer; elsewhere the error names the option that answers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from recovery import ConfigurationError, HistoryLossError, RecoveryConfig, init_partitions
from recovery.cli import main
from recovery.cli.run import asking
from tests.forks import run
from tests.shares import first
from tests.stores import Driver


class Terminal(io.StringIO):
    """What a person sees and types at."""

    def isatty(self):
        return True


def attempt(config):
    """A run that discards history only when it may."""
    if not config.discard_history:
        raise HistoryLossError("a backup interval of 0 s discards snapshots")
    return "ran"


@pytest.mark.parametrize("answer", [True, False])
def test_on_a_terminal(monkeypatch, answer):
    """It says what is discarded, and discards it when the answer is yes."""
    seen = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stderr", seen)
    monkeypatch.setattr(click, "confirm", lambda *_, **__: answer)
    if answer:
        assert asking(attempt, RecoveryConfig("db")) == "ran"
    else:
        with pytest.raises(HistoryLossError):
            asking(attempt, RecoveryConfig("db"))
    assert "discards snapshots" in seen.getvalue()


def test_elsewhere_it_is_an_error(monkeypatch):
    """Nobody can answer."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(HistoryLossError):
        asking(attempt, RecoveryConfig("db"))
    assert asking(attempt, RecoveryConfig("db", discard_history=True)) == "ran"


ASKED = [
    ["state", "set", "DIR", "x", "2"],
    ["state", "merge", "DIR", "x", '{"b": 2}'],
    ["state", "clear", "DIR", "x"],
    ["state", "clear", "DIR", "--all"],
    ["state", "copy", "DIR", "x", "y"],
    ["state", "set", "DIR", "--step", "new", "--key", "k", "1"],
    ["state", "import", "DIR", "states.jsonl"],
]


def call(*words, **options):
    return CliRunner().invoke(main, list(map(str, words)), **options)


def content(db, name):
    """The content of a state."""
    return json.loads(call("state", "get", db, name).stdout)


@pytest.fixture
def db(tmp_path, monkeypatch):
    """A store with two states, and an export that differs from it."""
    monkeypatch.chdir(tmp_path)
    init_partitions(tmp_path / "db", 2)
    with Driver(tmp_path / "db") as run:
        run.apply(0, {"a": "1"})
        run.close(0)
    assert call("state", "set", "db", "x", '{"a": 5}').exit_code == 0
    (tmp_path / "states.jsonl").write_text(call("state", "export", "db").stdout)
    assert call("state", "set", "db", "x", '{"a": 1}', "--yes").exit_code == 0
    assert call("state", "set", "db", "y", "2").exit_code == 0
    return tmp_path / "db"


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
@first("as_json", [False, True])
def test_nobody_can_answer(db, words, as_json):
    """The error names the option that answers, also in JSON, and nothing changed; with the option the command works."""
    before = content(db, "x"), content(db, "y")
    words = [str(db) if word == "DIR" else word for word in words]
    done = run(["-m", "recovery", *words, *(["--json"] if as_json else [])], stdin=subprocess.DEVNULL)
    assert done.returncode == ConfigurationError.exit_code, done.stderr
    assert "Aborted" not in done.stderr
    remedy = json.loads(done.stdout)["remedy"] if as_json else done.stderr
    assert "add --yes to the same command" in remedy
    assert (content(db, "x"), content(db, "y")) == before
    assert call(*words, "--yes").exit_code == 0


def test_an_answer_in_a_pipe_counts(db):
    """As `yes | recovery …` gives it; no ends the command without an error."""
    assert call("state", "set", db, "x", "2", input="n\n").exit_code == 1
    assert call("state", "set", db, "x", "2", input="y\n").exit_code == 0
    assert content(db, "x") == 2


def test_a_process_without_standard_input(db):
    """A command whose standard input is closed names the option that answers, too."""
    words = [sys.executable, "-m", "recovery", "state", "clear", str(db), "x"]
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == ConfigurationError.exit_code
    assert "add --yes" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_editor_needs_a_terminal(db, monkeypatch):
    """Without one, and without a named editor, the error names the commands for scripts."""
    environment = {name: value for name, value in os.environ.items() if name not in ("EDITOR", "VISUAL")}
    command = ["-m", "recovery", "state", "edit", db, "x"]
    done = run(command, stdin=subprocess.DEVNULL, env=environment)
    assert done.returncode == ConfigurationError.exit_code
    assert "`state get` and `state set`" in done.stderr
    done = run(command, stdin=subprocess.DEVNULL, env={**environment, "EDITOR": "sed -i s/1/7/"})
    assert done.returncode == 0, done.stderr
    assert content(db, "x") == {"a": 7}
