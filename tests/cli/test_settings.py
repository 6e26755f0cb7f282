"""Bytewax's words on the command line of a run. Nothing here starts Spark."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from recovery.cli.run import run
from recovery.cli.settings import chosen_master


def chosen(monkeypatch, *words: str, code: int = 0, **variables: str) -> str:
    """What the options and variables of `recovery run` mean: the directory, both intervals and the master."""
    for name in ("RECOVERY_DIRECTORY", "RECOVERY_SNAPSHOT_INTERVAL", "RECOVERY_BACKUP_INTERVAL"):
        monkeypatch.delenv(name, raising=False)

    def show(directory, snapshot_interval, backup_interval, master, **_):
        click.echo(f"{directory} {snapshot_interval} {backup_interval} {chosen_master(master)}")

    command = click.Command("run", params=run.params, callback=show)
    result = CliRunner().invoke(command, ["flow.py", *words], env=variables)
    assert result.exit_code == code or result.exception, result.output
    return result.stdout.strip() if code == 0 else f"{result.output}{result.exception}"


BYTEWAX = {
    "BYTEWAX_RECOVERY_DIRECTORY": "db", "BYTEWAX_SNAPSHOT_INTERVAL": "5", "BYTEWAX_RECOVERY_BACKUP_INTERVAL": "60",
    "BYTEWAX_WORKERS_PER_PROCESS": "4",
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "variables", "found"),
    [((), {}, "None 10.0 None local[*,3]"), ((), BYTEWAX, "db 5.0 60.0 local[4,3]"),
     (("-r", "x", "-s", "1s", "-b", "2 minutes", "-w", "2"), BYTEWAX, "x 1.0 120.0 local[2,3]"),
     (("-w", "2", "-p", "3"), {}, "None 10.0 None local[6,3]"), (("-p", "3"), {}, "None 10.0 None local[3,3]"),
     ((), {**BYTEWAX, "RECOVERY_DIRECTORY": "own", "RECOVERY_SNAPSHOT_INTERVAL": "7"}, "own 7.0 60.0 local[4,3]"),
     (("--master", "local[1]"), BYTEWAX, "db 5.0 60.0 local[1]")],
)  # fmt: skip
def test_what_a_run_takes_from_bytewax(monkeypatch, words, variables, found):
    """Its variables count where this package's are not set, and options before both."""
    assert chosen(monkeypatch, *words, **variables) == found


def test_workers_and_a_master(monkeypatch):
    """Both say how many tasks run: one of them is a mistake."""
    for words in (("-w", "2"), ("-p", "2")):
        assert "give them or --master" in chosen(monkeypatch, *words, "--master", "local[1]", code=2)
    for words in (("-w", "0"), ("-p", "x")):
        assert "Invalid value" in chosen(monkeypatch, *words, code=2)


@pytest.mark.parametrize("name", ["BYTEWAX_PROCESS_ID", "BYTEWAX_ADDRESSES", "BYTEWAX_HOSTFILE_PATH"])
def test_one_process_of_several(monkeypatch, name):
    """Each would run the whole flow: refused where Bytewax's variables say where the directory is."""
    assert f"{name} is set" in chosen(monkeypatch, code=11, **BYTEWAX, **{name: "0"})
    assert chosen(monkeypatch, "-r", "own", **BYTEWAX, **{name: "0"}).startswith("own ")
