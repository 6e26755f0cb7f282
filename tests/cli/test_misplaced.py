"""Words in a wrong place: the usage error names a command line, and that one is right."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

from recovery import init_partitions
from recovery.cli import COMMANDS, main

FLOW = "import recovery\nflow = recovery.Flow('w', lambda spark: spark.readStream.format('rate').load())\n"
CASES = [
    # before the command
    ("--json status db", "status --json db"),
    ("-r db run flow.py", "run -r db flow.py"),
    ("-s 10s run flow.py -r db", "run -s 10s flow.py -r db"),
    ("--master local[2] run flow.py", "run --master 'local[2]' flow.py"),
    ("--owner h:1 status db", "status --owner h:1 db"),
    ("--yes state set db x 3", "state set --yes db x 3"),
    ("state --json list db", "state list --json db"),
    ("hwm --json list db", "hwm list --json db"),
    ("--debug --json status db", "--debug status --json db"),
    # after it
    ("status --debug db", "--debug status db"),
    ("status db --debug", "--debug status db"),
    ("run --debug flow.py -r db", "--debug run flow.py -r db"),
    ("state --debug list db", "--debug state list db"),
    # in place of an argument
    ("status -r db", "status db"),
    ("plan --recovery-directory=db", "plan db"),
    ("verify --recovery-directory db", "verify db"),
    ("backup -r db copies", "backup db copies"),
    ("state list -r db", "state list db"),
    ("run flow.py db", "run flow.py -r db"),
    ("run db flow.py", "run flow.py -r db"),
    ("init 2 new", "init new 2"),
    # without a command, or in another order
    ("-r db", "run flow.py -r db"),
    ("--json", "status DIR --json"),
    ("flow.py -r db -s 10s", "run flow.py -r db -s 10s"),
    ("flow:flow -r db", "run flow:flow -r db"),
    ("db", "status db"),
    ("new 3", "init new 3"),
    ("state db list", "state list db"),
    ("hwm db list", "hwm list db"),
    ("help", "--help"),
    ("help status", "status --help"),
    ("version", "--version"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """A directory with a store, and a flow beside it."""
    monkeypatch.chdir(tmp_path)
    init_partitions("db", 2)
    (tmp_path / "flow.py").write_text(FLOW)


def said(words):
    done = CliRunner().invoke(main, shlex.split(words), prog_name="recovery")
    return done.exit_code, done.output


@pytest.mark.parametrize(("wrong", "right"), CASES)
def test_the_right_command_line(wrong, right):
    """It is named, and is no usage error itself."""
    code, output = said(wrong)
    assert code == 2
    assert output.rstrip().endswith(f"Type: recovery {right}")
    if not right.startswith("run ") and "run " not in right and "DIR" not in right:
        code, output = said(right)
        assert "No such" not in output
        assert code != 2 or "--owner" in right, output


@pytest.mark.parametrize("wrong", ["status --nonsense db", "nonsense db", "status", "-v", "state nonsense", "run --js"])
def test_nothing_is_made_up(wrong):
    """What resembles no command line has the usual error."""
    code, output = said(wrong)
    assert code == 2
    assert "Type: " not in output


def test_json_before_any_command_that_has_it():
    """The same for all of them."""
    for name in COMMANDS:
        command = main.get_command(None, name)
        if any("--json" in parameter.opts for parameter in command.params):
            assert said(f"--json {name} db")[1].rstrip().endswith(f"Type: recovery {name} --json db")


def test_words_of_others_do_not_reach_the_terminal():
    """The repeated words are escaped, as all others."""
    code, output = said("--json status 'a\x1b[31mb'")
    assert code == 2
    assert "\x1b" not in output


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("backup -r db s3://name:sec/ret@bucket/p?region=x", "backup db 's3://…'"),
        ("backup -r db s3://name:secret@bucket/p?region=x", "backup db 's3://name:…@bucket/p?region=x'"),
        ("run flow.py db --conf spark.fs.secret.key=secret", "run flow.py --conf 'spark.fs.secret.key=…' -r db"),
        ("run flow.py db --conf=spark.fs.secret.key=secret", "run flow.py '--conf=spark.fs.secret.key=…' -r db"),
    ],
)
def test_secrets_are_not_repeated(wrong, right):
    """The error may end up in the log of a service, which never had the secrets."""
    code, output = said(wrong)
    assert code == 2
    assert output.rstrip().endswith(f"Type: recovery {right}")


def test_by_module():
    """The command line begins as the user began it."""
    command = [sys.executable, "-m", "recovery", "--json", "status", "my db"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.rstrip().endswith("Type: python -m recovery status --json 'my db'")
