"""Meltano's page on state backends, from top to bottom, with Meltano itself and this package as its state backend.

What the page says of the command line is tried on `recovery state` in test_loops.py.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from recovery import StateManager
from tests import others

ID = "dev:tap-github-to-target-jsonl"
IDS = [ID, "dev:tap-gitlab-to-target-jsonl", "prod:tap-github-to-target-jsonl"]
STATE = {"singer_state": {"bookmarks": {"commits": {"since": "2024-05-01T00:00:00Z"}}}}
PROJECT = """
version: 1
default_environment: dev
send_anonymous_usage_stats: false
environments: [{name: dev}, {name: prod}]
"""


@pytest.fixture(scope="module")
def meltano(tmp_path_factory):
    """Runs a shell script in a project, where `meltano` is Meltano."""
    python = others.python_with("meltano")
    tools = tmp_path_factory.mktemp("tools")
    # Tests may run the command's module; its script may be of another environment.
    (tools / "meltano").write_text(f'#!/bin/sh\nexec {shlex.quote(python)} -m meltano.cli "$@"\n')
    (tools / "meltano").chmod(0o755)
    environ = others.environment(tools, MELTANO_SEND_ANONYMOUS_USAGE_STATS="false", NO_COLOR="1")
    environ["PATH"] = f"{tools}:{environ['PATH']}"
    project = tmp_path_factory.mktemp("project")
    (project / "meltano.yml").write_text(PROJECT)

    def run(script: str, uri: str = "systemdb", given: str | None = None, code: int = 0) -> str:
        return others.run(["bash", "-c", script], project, {**environ, "MELTANO_STATE_BACKEND_URI": uri}, given, code)

    run.project = project
    return run


def test_migrating_state(meltano, make_store):
    """From Meltano's own database, for one job and then for several, as the page does it; a rerun resumes from it."""
    database = make_store(1)
    uri = f"recovery://{database}"
    given = json.dumps(STATE)
    exported = json.dumps({each: {"completed": {**STATE, "of": each}, "partial": {}} for each in IDS})
    meltano("meltano state import", given=exported)
    # One job, with the question that Meltano asks.
    meltano(f"meltano state get {ID} > {ID}.json")
    meltano(f"meltano state set {ID} --input-file {ID}.json", uri, given="y\n")
    assert json.loads(meltano(f"meltano state get {ID}", uri)) == {**STATE, "of": ID}
    # Several, by the loops, of which the second selects with a pattern.
    meltano(
        "for job_id in $(meltano state list --pattern 'dev:*'); do\n"
        "meltano state get $job_id > $job_id-state.json\n"
        "done"
    )
    meltano(
        "for state_file in *-state.json; do\n"
        "meltano state set --force ${state_file%-state.json} --input-file $state_file\n"
        "done",
        uri,
    )
    assert sorted(meltano("meltano state list", uri).split()) == IDS[:2]
    found = StateManager(database).process_states("meltano")
    assert {each: state["completed"]["of"] for each, state in found.items()} == {each: each for each in IDS[:2]}
    # Partial state is merged into what is there.
    meltano(f"meltano state merge {ID} {shlex.quote(given.replace('commits', 'issues'))}", uri)
    assert json.loads(meltano(f"meltano state get {ID}", uri))["singer_state"]["bookmarks"].keys() == {
        "commits",
        "issues",
    }
    meltano("meltano state clear --all --force", uri)
    assert StateManager(database).process_states("meltano") == {}


def test_other_places_and_mistakes(meltano, tmp_path):
    """A place elsewhere, with Meltano's settings of its locks; an error has the remedy, and no traceback."""
    (tmp_path / "state").mkdir()
    uri = f"recovery+file://{tmp_path}/state"
    script = f"meltano state set --force {ID} {shlex.quote(json.dumps(STATE))} && meltano state list --pattern 'dev:*'"
    assert meltano(f"MELTANO_STATE_BACKEND_LOCK_TIMEOUT_SECONDS=30 {script}", uri).split() == [ID]
    assert StateManager(backend=uri.removeprefix("recovery+")).process_state("meltano", ID).exists
    for wrong in (f"recovery://{tmp_path}/none", "recovery:db"):
        printed = meltano("meltano state list 2>&1", wrong, code=1)
        assert "recovery init" in printed
        assert "Traceback" not in printed


def test_the_lock_of_a_state_id(meltano, make_store):
    """Two processes never hold it together: the second waits, and its error names the holder."""
    database = make_store(1)
    code = f"""
from recovery import RetryPolicy
from meltano.core.state_store.base import StateIDLockedError
from meltano_recovery import RecoveryStateStoreManager
first, second = (RecoveryStateStoreManager(uri="recovery://{database}") for _ in "ab")
second._state.backend._retry = RetryPolicy(busy=0.1, delays=(), jitter=0)
with first.acquire_lock("a", retry_seconds=1):
    with second.acquire_lock("b", retry_seconds=1):
        pass
    try:
        with second.acquire_lock("a", retry_seconds=1):
            print("both")
    except StateIDLockedError as error:
        print("(state of a) held the lock" in str(error) or str(error))
"""
    script = Path(meltano.project, "locks.py")
    script.write_text(code)
    assert meltano("$(sed -n 's/^exec \\(.*\\) -m.*/\\1/p' $(command -v meltano)) locks.py") == "True\n"
