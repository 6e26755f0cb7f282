"""DIR from RECOVERY_DIRECTORY or as the first argument: both ways do the same for every command that has one."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from recovery.cli import main
from tests.shares import one_in
from tests.stores import Driver

COMMANDS = [
    "status DIR", "plan DIR", "verify DIR", "gc DIR", "advise DIR", "report DIR -o page.html", "backup DIR copies",
    "fork DIR new", "fork DIR new --epoch 1 --dry-run", "repartition DIR new 3", "repartition --in-place DIR 3",
    "repartition --drop-old DIR", "checkpoint show DIR", "hwm list DIR", "hwm set DIR orders 2", "hwm get DIR orders",
    "hwm rm DIR orders", "runs DIR", "runs clean DIR --older-than 1d", "state list DIR", "state get DIR x",
    "state set DIR x 5 --yes",
    "state set DIR new 5", 'state merge DIR x {"b":1} --yes', "state merge DIR x --from-state-id y --yes",
    "state copy DIR x z", "state move DIR x z", "state clear DIR x --yes", "state clear DIR --all --yes",
    "state export DIR", "state import DIR states.jsonl --yes", "state scopes DIR", "state clean DIR",
    "state backend DIR", "state get DIR --step count --key a", "state set DIR --step count --key a 5 --yes",
    "state merge DIR --step count --key a 5 --yes", "state list DIR --step count", "history DIR --step count --key a",
]  # fmt: skip
LACKING = [
    ("state get", "ID"), ("state set", "ID"), ("state set x", "JSON"), ("state merge x", "JSON"),
    ("state set --step count --key a", "JSON"), ("state copy x", "TO"), ("hwm set orders", "VALUE"), ("hwm get", "KEY"),
    ("fork", "NEW_DIR"), ("state clear", "ID"),
]  # fmt: skip


@pytest.fixture
def db(tmp_path, monkeypatch):
    """A store with a step, two states, a mark and an export, in the present directory."""
    monkeypatch.chdir(tmp_path)
    call(monkeypatch, None, "init db 2")
    with Driver(tmp_path / "db") as run:
        run.apply(0, {"a": "1"})
        run.close(0)
    for words in ('state set db x {"a":1}', "state set db y {}", "hwm set db orders 1"):
        assert call(monkeypatch, None, words).exit_code == 0
    (tmp_path / "states.jsonl").write_text(call(monkeypatch, None, "state export db").stdout)
    return tmp_path / "db"


def call(monkeypatch, variable, words):
    if variable is None:
        monkeypatch.delenv("RECOVERY_DIRECTORY", raising=False)
    else:
        monkeypatch.setenv("RECOVERY_DIRECTORY", variable)
    return CliRunner().invoke(main, words.split())


@pytest.mark.parametrize(("words", "way"), one_in(3, COMMANDS, ["argument", "variable", "another variable"]))
def test_both_ways(db, monkeypatch, words, way):
    """An argument overrides the variable."""
    variable = {"argument": None, "another variable": "elsewhere"}.get(way, "db")
    given = words.replace("DIR", "") if way == "variable" else words.replace("DIR", "db")
    done = call(monkeypatch, variable, given)
    if words.startswith("repartition --drop-old"):
        assert "nothing is kept beside it" in done.output
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(("words", "lacking"), LACKING)
def test_what_is_missing(db, monkeypatch, words, lacking):
    """With the variable, DIR is not missing; with DIR named besides, it is not taken for an id."""
    done = call(monkeypatch, "db", words)
    assert done.exit_code == 2
    assert f"Missing argument '{lacking}'." in done.output
    verb, rest = words.split()[:2] if not words.startswith("fork") else ["fork"], words.split()[2:]
    done = call(monkeypatch, "db", " ".join([*verb, "db", *rest]))
    assert done.exit_code == 2
    assert f"Missing argument '{lacking}'" in done.output
    assert "If db is meant as" in done.output or not rest or "--step" in words


def test_an_id_like_a_directory(db, monkeypatch):
    """The error says how to name it."""
    done = call(monkeypatch, "db", "state get db")
    assert "If db is meant as ID, give DIR before it" in done.output
    assert call(monkeypatch, "db", "state set db db 1").exit_code == 0
    assert call(monkeypatch, "db", "state get db db").output == "1\n"


def test_json_that_the_shell_divided(db, monkeypatch):
    """It lacks quotes."""
    done = call(monkeypatch, None, 'state set db x {"a": 1}')
    assert done.exit_code == 2
    assert "Write the JSON within quotes" in done.output


def test_a_number_of_partitions_that_python_does_not_convert():
    """A number of partitions with too many digits is a mistake on the command line, as any other is."""
    result = CliRunner().invoke(main, ["repartition", "db", "new", "9" * 5000])
    assert result.exit_code == 2
    assert "is not a number of partitions" in result.output
