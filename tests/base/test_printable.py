"""Text of strangers on terminals: whatever a key, a name or a path holds, commands print it and a terminal obeys none
of it."""

from __future__ import annotations

import json
import re
import shutil
import unicodedata
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery.base.printable import columns, fitted, one_line, printable
from recovery.cli import main
from recovery.cli.common import style, tell_error
from recovery.cli.tables import table
from recovery.errors import ConfigurationError, RecoveryError
from recovery.operational.manager import StateManager
from recovery.sinks.plain import ConsoleSink
from recovery.storage.initialize import init_partitions
from tests import stores

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\r\nError: all is lost\x7f\u202eabc\u2066\u2028\u200b\ufeff\U000e0041\ufdd1"
ODD = "\u202e\u2066\u2028\u200b\ufeff\U000e0041\ufdd1\ud800"
KEPT = "äß日本 é\u0301 🙂 \u200d\u200c نص a\xa0b"


def obeyed(text: str) -> set[str]:
    """The characters of a text that a terminal obeys, or that cannot be seen; line ends are ours."""
    harmless = "\n\u200c\u200d"
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in harmless}


@pytest.mark.parametrize("character", [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *ODD])
def test_escapes_are_those_of_json(character):
    """Nothing is left of a character that is obeyed, and JSON reads it back from its escape."""
    assert re.fullmatch(r"(\\u[0-9a-f]{4}|\\[nrt]){1,2}", one_line(character))
    assert json.loads(f'"{one_line(character)}"') == character
    assert printable(character) == (character if character in "\n\t" else one_line(character))


def test_other_text_stays():
    """Letters of all scripts, joiners and pictures."""
    assert one_line(KEPT) == KEPT


def test_columns():
    """Wide characters take two, combining ones none; a line that is cut fits."""
    assert [columns(text) for text in ("abc", "日本", "é\u0301", "🙂")] == [3, 4, 1, 2]
    assert fitted("日本語", 5) == "日本"
    assert fitted("abc", 5) == "abc"


def test_a_table_stays_one():
    """A cell is on one line, and columns begin below each other."""
    lines = table(("key", "state"), [("日本", "x"), ("a\nb", "y"), ("\x1b[31m", "z")]).split("\n")
    assert len(lines) == 4
    assert [columns(line.partition(mark)[0]) for line, mark in zip(lines[1:], "xyz", strict=True)] == [12, 12, 12]


def test_a_text_is_no_style():
    """The characters by which a style is marked are escaped in the text of others."""
    assert obeyed(style(EVIL, "bold")) == set()
    assert style("\ufdd1", "bold").count("\ufdd1") == 0


def test_an_error_has_one_cause(capsys):
    """Further lines of what was found are set in: none looks like another part of the message."""
    tell_error(RecoveryError("found\nWhat to do: rm -rf /\x1b[2J", path="a\nb", cause="why", remedy="this"))
    lines = capsys.readouterr().err.rstrip().split("\n")
    assert lines == [
        "Error: a\\nb: found",
        "  What to do: rm -rf /\\u001b[2J",
        "Probable cause: why",
        "What to do: this",
    ]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """A directory of odd name, with a flow, a step, keys, states, marks and runs of odd names."""
    directory = tmp_path_factory.mktemp("evil") / EVIL.replace("/", "")
    init_partitions(directory, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "new_execution", partial(stores.new_execution, flow_id=f"flow {EVIL}"))
        with stores.Driver(directory, ["count", f"step {EVIL}"]) as run:
            run.apply(0, {EVIL: json.dumps(EVIL), "b": '{"n": 1}'})
            run.apply(0, {"c": "1"}, step=f"step {EVIL}")
            run.close(0)
    state = StateManager(directory)
    state.set_hwm(f"mark {EVIL}", EVIL)
    state.process_state("n", "state").set({"value": EVIL})
    state.history.begin(f"flow {EVIL}", "flow").end(ValueError(EVIL))
    return directory


@pytest.fixture
def evil_store(prepared, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(prepared, tmp_path / prepared.name))


COMMANDS = [
    ["status"], ["plan"], ["verify"], ["advise"], ["gc"], ["runs"], ["hwm", "list"], ["state", "list"],
    ["state", "list", "--step", "count"], ["state", "export", "--step", "count"], ["state", "export"],
    ["state", "get", "--step", "count", "--key", EVIL], ["hwm", "get", "@", f"mark {EVIL}"],
    ["state", "clear", "--step", "count", "--pattern", "*", "--yes"], ["hwm", "rm", "@", f"mark {EVIL}"],
    ["state", "set", "@", EVIL, "1", "--yes"], ["state", "get", "@", f"none {EVIL}"],
    ["state", "list", "--step", f"none {EVIL}"], ["checkpoint", "show"], ["checkpoint", "export", "@", f"to{EVIL}"],
    ["backup", "@", f"to{EVIL}"], ["backup", "--list"], ["restore"], ["drill"], ["init"],
    ["hwm", "get", "@", f"none {EVIL}"], ["report", "-o", f"page{EVIL}"], ["run", f"flow{EVIL}.py"],
    ["state", "import", "@", f"none{EVIL}"],
    [f"none{EVIL}"], ["status", f"--none{EVIL}"],
    ["gc", "@", EVIL], ["run", "x", "--conf", EVIL], ["status", "--threshold", EVIL],
    ["advise", "--tolerate", EVIL],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:30].encode("unicode_escape").decode())
def test_every_command(evil_store, words, monkeypatch):
    """Whether it works or fails, and as JSON."""
    monkeypatch.chdir(evil_store.parent)
    given = [evil_store.name if word == "@" else word for word in words]
    if "@" not in words and not words[0].startswith(("none", "run")):
        at = next((i for i, word in enumerate(given) if word.startswith("-")), len(given))
        given.insert(at, evil_store.name)
    found = CliRunner().invoke(main, given, input="n\n")
    assert obeyed(found.output) == set()
    assert not any(line.startswith("Error: all is lost") for line in found.output.splitlines())
    if words[:2] == ["state", "export"]:
        return
    as_json = CliRunner().invoke(main, [*given, "--json"])
    assert obeyed(as_json.stdout) == set()
    if as_json.exit_code != 2 and as_json.stdout.startswith(("{", "[")):
        json.loads(as_json.stdout)


def test_exported_text_comes_back(evil_store):
    """An export reads as what was exported, and holds no character that a terminal obeys."""
    found = CliRunner().invoke(main, ["state", "export", str(evil_store), "--step", "count"])
    keys = [json.loads(line).get("key") for line in found.stdout.splitlines()]
    assert EVIL in keys


def test_the_console_sink(capsys):
    """A row is a line."""

    class Batch:
        columns = ("a", "b")

        def take(self, _rows):
            return [(EVIL, 1)]

    ConsoleSink().write(Batch(), 0)
    printed = capsys.readouterr().out
    assert obeyed(printed) == set()
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("truncate", "shown"), [(False, "x" * 30), (True, "x" * 17 + "..."), (6, "xxx..."), (2, "xx"), (30, "x" * 30)]
)
def test_the_console_sink_shortens_values(capsys, truncate, shown):
    """Like Spark's console sink, with `truncate`."""

    class Batch:
        columns = ("a", "b")

        def take(self, _rows):
            return [("x" * 30, 1)]

    ConsoleSink(truncate=truncate).write(Batch(), 0)
    assert capsys.readouterr().out == f"a={shown}  b=1\n"


@pytest.mark.parametrize("truncate", ["false", -1, 1.5])
def test_a_console_sink_that_is_told_something_else(truncate):
    """Spark's option is a text; here it is a number."""
    with pytest.raises(ConfigurationError, match="truncate"):
        ConsoleSink(truncate=truncate)


def test_commands_print_by_one_function():
    """None of them writes to the terminal by itself."""
    package = Path(main.callback.__code__.co_filename).parent
    for path in package.glob("*.py"):
        if path.name != "common.py":
            assert re.findall(r"click\.(?:s?echo|style)|\bprint\(|std(?:out|err)\.write", path.read_text()) == [], path
