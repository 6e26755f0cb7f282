"""Commands whose output nobody reads any more, as with `| head`: one exit code for all, and no message."""

from __future__ import annotations

import os

import click
import pytest

from recovery.cli import main
from recovery.cli.common import READER_GONE
from tests.backup.support import back_up, work
from tests.forks import run


def codes(commands: list[list[str]]) -> tuple[list[int], str]:
    """The exit codes of commands that write into a pipe that nobody reads, and what they said on standard error."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody:
        done = [run(["-m", "recovery", *words], stdout=nobody) for words in commands]
    return [each.returncode for each in done], "".join(each.stderr for each in done)


def all_commands(command: click.Command = main, words: tuple[str, ...] = ()) -> list[list[str]]:
    """Every command and every command of a group."""
    below = command.commands if isinstance(command, click.Group) else {}
    return [list(words), *(found for name, one in below.items() for found in all_commands(one, (*words, name)))]


@pytest.mark.long
def test_help_of_every_command():
    """Ends with 141, silently."""
    commands = [[*words, "--help"] for words in all_commands()] + [["--version"]]
    assert len(commands) > 30
    assert codes(commands) == ([READER_GONE] * len(commands), "")


def test_results(store_dir, tmp_path):
    """So do commands that have something to say, as text or as JSON, whatever it would have been."""
    work(store_dir, 3)
    back_up(store_dir, tmp_path / "backups")
    at, copies = str(store_dir), str(tmp_path / "backups")
    lists = [
        *([name, at] for name in ("status", "plan", "verify", "advise", "gc", "runs")),
        *(["hwm", "list", at], ["state", "backend", at], ["state", "list", at, "--step", "count"]),
        *(["state", "export", at, "--step", "count"], ["checkpoint", "show", at]),
        *(["backup", "--list", copies], ["backup", "--prune", "--keep", "1", copies]),
    ]
    as_json = [[*words, "--json"] for words in lists if "export" not in words]
    made = [["init", str(tmp_path / "new"), "2"], ["report", at, "-o", str(tmp_path / "page.html")],
            ["backup", at, copies], ["state", "get", at, "--step", "count", "--key", "k10"]]  # fmt: skip
    commands = [*lists, *as_json, *made]
    found, said = codes(commands)
    assert {tuple(words[:2]): code for words, code in zip(commands, found, strict=True) if code != READER_GONE} == {}
    assert [line for line in said.splitlines() if "stored" not in line] == []


@pytest.mark.parametrize("words", [["restore"], ["drill"]])
def test_results_after_what_is_printed_meanwhile(store_dir, tmp_path, words):
    """What is said on standard error stays there."""
    work(store_dir, 1)
    back_up(store_dir, tmp_path / "backups")
    more = [str(tmp_path / "new")] if words == ["restore"] else []
    found, said = codes([[*words, str(tmp_path / "backups"), *more]])
    assert found == [READER_GONE]
    assert "Traceback" not in said
    assert "Error" not in said


def test_an_error_keeps_its_code(tmp_path):
    """It goes to standard error, which is read."""
    found, said = codes([["status", str(tmp_path / "nowhere")]])
    assert found == [20]
    assert "there is no such directory" in said
