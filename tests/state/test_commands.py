"""`recovery hwm` and `recovery runs`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from recovery import StateManager
from recovery.cli import main


@pytest.fixture
def recovery(monkeypatch):
    """Runs a command; its output, and its exit code when that is not the one expected."""
    for name in ("RECOVERY_DIRECTORY", "RECOVERY_ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: object, code: int = 0) -> str:
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result.output

    return run


@pytest.mark.parametrize(
    ("text", "printed"),
    [("5", "5"), ("-5", "-5"), ("2.50", "2.5"), ("true", "true"), ("abc", '"abc"'), ("2024-05-01", '"2024-05-01"'),
     ('"5"', '"5"'), ('{"$date": "2024-05-01"}', '{"$date":"2024-05-01"}'), ('{"$decimal":"1"}', '{"$decimal":"1"}')],
)  # fmt: skip
def test_get_prints_what_set_accepts(recovery, store_dir, text, printed):
    """A bare text, a number, and a type that JSON lacks; a value may begin with a minus."""
    recovery("hwm", "set", store_dir, "k", text)
    assert recovery("hwm", "get", store_dir, "k") == printed + "\n"
    recovery("hwm", "set", store_dir, "k", printed)
    assert recovery("hwm", "get", store_dir, "k") == printed + "\n"


def test_marks_on_the_command_line(recovery, store_dir):
    """Listing, globs, JSON, moving back, removing."""
    for key in ("a/1", "a/2", "b"):
        recovery("hwm", "set", store_dir, key, 5)
    assert [mark["key"] for mark in json.loads(recovery("hwm", "list", store_dir, "--pattern", "a/*", "--json"))] == [
        "a/1", "a/2",
    ]  # fmt: skip
    assert "would move back from 5 to 4" in recovery("hwm", "set", store_dir, "b", 4, code=42)
    recovery("hwm", "set", store_dir, "b", 4, "--force")
    assert json.loads(recovery("hwm", "get", store_dir, "b", "--json"))["value"] == 4
    assert recovery("hwm", "rm", store_dir, "a/1", "b", "zzz") == "removed 2 marks\n"
    assert json.loads(recovery("hwm", "get", store_dir, "b", "--json", code=44))["error"] == "StateNotFoundError"
    assert "a/2" in recovery("hwm", "list", store_dir)


def test_the_directory_may_be_a_variable(recovery, store_dir, monkeypatch):
    """RECOVERY_DIRECTORY stands for DIR, RECOVERY_ENVIRONMENT for --environment."""
    monkeypatch.setenv("RECOVERY_DIRECTORY", str(store_dir))
    recovery("hwm", "set", "k", "5")
    recovery("hwm", "set", "k", "6", "--environment", "prod")
    assert recovery("hwm", "get", "k") == "5\n"
    monkeypatch.setenv("RECOVERY_ENVIRONMENT", "prod")
    assert recovery("hwm", "get", store_dir, "k") == "6\n"
    assert recovery("hwm", "rm", "k", "other") == "removed 1 mark\n"
    assert json.loads(recovery("runs", "--json")) == []


@pytest.mark.parametrize(
    "words", [("hwm", "set", "DIR"), ("hwm", "get"), ("hwm", "get", "DIR", "a", "b"), ("hwm", "list"), ("runs",),
              ("runs", "clean", "DIR"), ("runs", "DIR", "--status", "odd")],
    ids=" ".join,
)  # fmt: skip
def test_mistakes_on_the_command_line(recovery, store_dir, words):
    """Exit code 2, and what is missing."""
    recovery(*(store_dir if word == "DIR" else word for word in words), code=2)


def test_no_directory(recovery, tmp_path):
    """The same error and exit code as everywhere."""
    assert "no such directory" in recovery("hwm", "list", tmp_path / "none", code=20)
    assert json.loads(recovery("runs", tmp_path, "--json", code=20))["error"] == "NoPartitionsError"


def test_runs_on_the_command_line(recovery, store_dir):
    """Listing by default, selecting, and cleaning up with a look before."""
    state = StateManager(store_dir)
    state.save_pipeline_run("orders", {"load": True})
    state.save_pipeline_run("orders", {"load": {"success": False, "error": "no"}})
    assert [run["status"] for run in json.loads(recovery("runs", store_dir, "--json"))] == ["failed", "succeeded"]
    found = json.loads(recovery("runs", "list", store_dir, "--node", "load", "--status", "succeeded", "--json"))
    assert [run["nodes"]["load"]["status"] for run in found] == ["succeeded"]
    assert "load: failed" in recovery("runs", store_dir, "--pipeline", "orders", "--days", 7, "--limit", 1)
    assert recovery("runs", "clean", store_dir, "--older-than", "30d") == "forgot 0 runs\n"
    assert recovery("runs", "clean", store_dir, "--older-than", "0", "--dry-run") == "would forget 1 run\n"
    assert len(json.loads(recovery("runs", "clean", store_dir, "--older-than", "0", "--json"))["runs"]) == 1
    assert len(state.list_runs()) == 1
