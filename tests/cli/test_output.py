"""Where commands write: full disks, pipes, devices, terminals of another encoding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from recovery.cli import SECTIONS, main
from tests.forks import run, run_code
from tests.stores import Driver

FULL = Path("/dev/full")


@pytest.fixture
def ran(store_dir) -> Path:
    """A directory on which a flow closed an epoch."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1", "b": "2"})
        run.close(0)
    return store_dir


def recovery(*words: object, **options) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    done = run(["-m", "recovery", *words], **options)
    assert "Traceback" not in (done.stderr or "")
    assert "Exception ignored" not in (done.stderr or "")
    return done


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["gc"], ["state", "export", "--step", "count"]])
def test_standard_output_on_a_full_disk(ran, words):
    """Its own exit code, and a word on what became of the work."""
    at = 2 if words[0] == "state" else 1
    with FULL.open("w") as full:
        done = recovery(*words[:at], ran, *words[at:], stdout=full)
    assert done.returncode == 12
    if "--json" not in words:
        assert "its output cannot be written: [Errno 28]" in done.stderr
        assert "did its work up to here" in done.stderr


def test_an_error_on_a_full_disk(tmp_path):
    """It keeps its code."""
    for words in (["status"], ["status", "--json"]):
        with FULL.open("w") as full:
            assert recovery(*words, tmp_path / "nowhere", stdout=full).returncode == 20
            assert recovery(*words, tmp_path / "nowhere", stdout=full, stderr=full).returncode == 20


def test_standard_error_on_a_full_disk(ran, tmp_path):
    """Words about the work end none of it, and an error keeps its code."""
    with FULL.open("w") as full:
        done = recovery("backup", ran, tmp_path / "backups", stderr=full)
        assert (done.returncode, done.stdout.split()[0]) == (0, "backup")
        assert recovery("restore", tmp_path / "backups", tmp_path / "new", stderr=full).returncode == 0
        assert recovery("status", tmp_path / "nowhere", stderr=full).returncode == 20
    assert recovery("status", tmp_path / "new").returncode == 0


def test_a_process_without_standard_streams(ran, tmp_path):
    """As a supervisor may start one: it does its work, and its exit code says how that went."""
    for words, expected in ((["status", ran], 0), (["status", tmp_path / "nowhere"], 20)):
        command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, "-m", "recovery", *map(str, words)]
        assert subprocess.run(command, timeout=60, check=False).returncode == expected


def test_a_loop_of_backups_on_a_full_disk(ran, tmp_path):
    """It goes on, and says on standard error what standard output cannot."""
    command = [sys.executable, "-m", "recovery", "backup", str(ran), str(tmp_path / "backups"), "--every", "0.2s"]
    with FULL.open("w") as full:
        process = subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            for _ in range(2):
                assert "standard output cannot be written: [Errno 28]" in process.stderr.readline()
        finally:
            process.terminate()
            process.communicate(timeout=30)
    assert process.returncode == 0
    assert len(json.loads(recovery("backup", "--list", tmp_path / "backups", "--json").stdout)["backups"]) >= 2


def test_an_encoding_that_lacks_characters(store_dir, tmp_path):
    """They are escaped: for people, and so that what is JSON is the same JSON."""
    environ = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = recovery("init", tmp_path / "db", 2, env=environ)
    assert done.returncode == 0
    assert "part-0.sqlite3 \\u2026 part-1.sqlite3" in done.stdout
    with Driver(store_dir) as run:
        run.apply(0, {"ж": '"к"', "🙂": '"é"'})
        run.close(0)
    exported, escaped = (
        recovery("state", "export", store_dir, "--step", "count", env=given).stdout for given in (None, environ)
    )
    assert "\\u0436" in escaped
    assert [json.loads(line) for line in escaped.splitlines()] == [json.loads(line) for line in exported.splitlines()]
    missing = recovery("state", "get", store_dir, "--step", "count", "--key", "жж", env=environ)
    assert (missing.returncode, "\\u0436\\u0436" in missing.stderr) == (44, True)


def lines_of(ran: Path) -> str:
    """What an export of the step is."""
    return recovery("state", "export", ran, "--step", "count").stdout


def export(ran: Path, file: Path, **options) -> subprocess.CompletedProcess[str]:
    """An export into a file."""
    return recovery("state", "export", ran, "--step", "count", "--output-file", file, **options)


def test_a_link_stays_one(ran, tmp_path):
    """What it leads to is written, also when it is not there yet."""
    for target in ("old", "new"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(target)
        (tmp_path / "old").write_text("before")
        assert export(ran, tmp_path / "link").returncode == 0
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / target).read_text() == lines_of(ran)


def test_a_pipe_is_written_into(ran, tmp_path):
    """It stays a pipe, and whoever reads it gets the text."""
    os.mkfifo(tmp_path / "pipe")
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    assert export(ran, tmp_path / "pipe").returncode == 0
    reader.join(30)
    assert (tmp_path / "pipe").is_fifo()
    assert found == [lines_of(ran)]


def test_standard_output_by_its_path(ran, tmp_path):
    """Behind a pipe, and as a file that has more: what was in it stays."""
    assert export(ran, Path("/dev/stdout")).stdout == lines_of(ran)
    log = tmp_path / "log"
    log.write_text("before\n")
    with log.open("a") as file:
        assert export(ran, Path("/dev/stdout"), stdout=file).returncode == 0
        assert export(ran, log, stdout=file).returncode == 0
    assert log.read_text() == "before\n" + 2 * lines_of(ran)
    for error in ("stdout", "stderr"):
        with log.open("w") as file:
            assert recovery("report", ran, "-o", f"/dev/{error}", "--force", **{error: file}).returncode == 0
        assert log.read_text().startswith("<!doctype html>")
        assert log.read_text().rstrip().endswith("</html>")


def test_a_device_that_is_full(ran):
    """It stays what it is; the error names it."""
    done = export(ran, FULL)
    assert (done.returncode, FULL.is_char_device()) == (12, True)
    assert str(FULL) in done.stderr


def test_the_form_of_bytewax(tmp_path):
    """`python -m bytewax.recovery DIR N` makes partitions; with this package's name, the error says what does."""
    done = recovery(tmp_path / "my db", 4)
    assert done.returncode == 2
    assert f"Type: python -m recovery init '{tmp_path / 'my db'}' 4" in done.stderr
    assert recovery(tmp_path, "four").stderr.count("init") == 0


GROUPS = [each for each in main.commands.values() if isinstance(each, click.Group)]


@pytest.mark.parametrize("group", [main, *GROUPS])
def test_the_list_of_commands_is_not_cut_off(group):
    """The whole first sentence of each help is there, on one line of a terminal of 80 columns."""
    output = CliRunner().invoke(group, ["--help"], terminal_width=80).output
    lines = output.partition("Options:")[2].splitlines()
    for name in group.commands:
        [line] = [line for line in lines if line.startswith(f"  {name} ")]
        assert line.endswith("."), line
        assert not line.endswith("...")


def test_each_command_is_in_one_section_of_the_help():
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(main.commands)


def test_the_shell_completes_commands_and_options():
    """As click's scripts for shells ask for it."""
    for words, expected in (("recovery sta", ["status", "state"]), ("recovery run --snap", ["--snapshot-interval"])):
        asked = {"_RECOVERY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        done = run_code("from recovery.__main__ import main; main('recovery')", env=asked)
        assert sorted(done.stdout.split()) == sorted(f"plain,{each}" for each in expected)
