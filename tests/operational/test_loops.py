"""The loops of Meltano's page on state backends, as shell scripts: only the name of the command differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from recovery.cli import main
from recovery.operational.backends.open import STATE, open_objects
from recovery.places.address import parse_address
from tests.shares import some
from tests.stores import ROOT

IDS = ["dev:tap-github-to-target-jsonl", "dev:tap-gitlab-to-target-jsonl", "prod:tap-github-to-target-jsonl"]


@pytest.fixture
def places(tmp_path):
    """Two places; the first has a state for each id."""
    old, new = (f"file://{tmp_path}/{name}?create=1" for name in ("old", "new"))
    for number, each in enumerate(IDS):
        words = ["state", "set", each, f'{{"n":{number}}}', "--yes", "--state-backend", old]
        assert CliRunner().invoke(main, words).exit_code == 0
    return old, new


def shell(tmp_path, backend: str, script: str) -> str:
    """Run a script in an empty directory; returns what it prints."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RECOVERY_STATE_BACKEND": backend,
                   "RECOVERY": f"{sys.executable} -m recovery"}  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", script], cwd=work, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


GET_ALL = "for job_id in $($RECOVERY state list); do $RECOVERY state get $job_id > $job_id-state.json; done"
GET_SOME = (
    "for job_id in $($RECOVERY state list --pattern 'dev:*'); do $RECOVERY state get $job_id > $job_id-state.json; done"
)
SET_ALL = "for f in *-state.json; do $RECOVERY state set --force ${f%-state.json} --input-file $f; done"


@pytest.mark.parametrize("loop", some([GET_ALL, GET_SOME], GET_SOME), ids=["all", "some"])
def test_states_move_by_the_loops(tmp_path, places, loop):
    moved = IDS if loop == GET_ALL else IDS[:2]
    old, new = places
    shell(tmp_path, old, loop)
    shell(tmp_path, new, SET_ALL)
    listed = json.loads(shell(tmp_path, new, "$RECOVERY state list --json"))["states"]
    assert {each["id"]: each["content"] for each in listed} == {each: {"n": IDS.index(each)} for each in moved}


def recovery(backend: str, *words: object, code: int = 0) -> str:
    """What a command prints that needs no shell."""
    environment = {"RECOVERY_STATE_BACKEND": backend}
    done = CliRunner().invoke(main, [str(word) for word in words], env=environment)
    assert done.exit_code == code, done.output
    return done.stdout


def test_migrating_a_part(places):
    """The target may hold others."""
    old, new = places
    recovery(new, "state", "set", "other", "1", "--yes")
    recovery(old, "state", "migrate", old, new, "--pattern", "prod:*")
    assert recovery(new, "state", "list").split() == ["other", IDS[2]]


def test_merging_one_state_into_another(places):
    old, _ = places
    recovery(old, "state", "set", IDS[1], '{"m":5}', "--force")
    recovery(old, "state", "merge", IDS[0], "--from-state-id", IDS[1], "--force")
    assert json.loads(recovery(old, "state", "get", IDS[0])) == {"n": 0, "m": 5}
    recovery(old, "state", "merge", IDS[0], "--from-state-id", "none", "--force", code=44)


def test_clearing_all(places):
    old, _ = places
    recovery(old, "state", "clear", "--all", "--force")
    assert recovery(old, "state", "list") == ""


def test_the_backend_in_force(tmp_path, places):
    """The command names it, and what decided it."""
    old, new = places
    assert recovery(old, "state", "backend").endswith("(from RECOVERY_STATE_BACKEND)\n")
    found = json.loads(recovery(old, "state", "backend", "--state-backend", new, "--json"))
    assert found["backend"].endswith("/new")
    assert found["from"] == "--state-backend"
    recovery("", "init", tmp_path / "db", 1)
    assert recovery("", "state", "backend", tmp_path / "db") == f"{tmp_path}/db (from DIR)\n"


def test_a_directory_is_made_only_on_request(tmp_path):
    """A path that is wrong, or a share that is not mounted, is never taken for an empty place."""
    open_objects(parse_address(f"file://{tmp_path}/a/b?create=1", STATE))
    assert (tmp_path / "a/b").is_dir()
    recovery(f"file://{tmp_path}/c", "state", "list", code=46)
