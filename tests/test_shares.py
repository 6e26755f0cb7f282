"""In which order files come where a run is too short for all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.shares import TURNS, by_turn

ROOT = Path(__file__).resolve().parents[1]
FILES = [f"test_{number:03}.py" for number in range(3 * TURNS + 4)]
TESTS = [SimpleNamespace(path=path, name=name) for path in FILES for name in ("first", "second")]


def files_of(tests):
    return list(dict.fromkeys(each.path for each in tests))


def test_every_file_has_come_first_after_all_turns():
    """An eleventh of the files each time; whatever number of commits lies between two runs."""
    for apart in (1, 2, 3, 4, 6, 12, 1000):
        begun = [files_of(by_turn(TESTS, apart * number))[: len(FILES) // TURNS + 1] for number in range(TURNS)]
        assert {*FILES} == {path for each in begun for path in each}


@pytest.mark.parametrize("turn", [0, 5, 12345])
def test_a_turn_changes_nothing_but_the_order_of_files(turn):
    """All tests are there, those of a file together and in their order; one number gives one order."""
    ordered = by_turn(TESTS, turn)
    assert ordered == [each for path in files_of(ordered) for each in TESTS if each.path == path]
    assert {*files_of(ordered)} == {*FILES}
    assert ordered == by_turn(TESTS, turn)
    assert FILES.index(ordered[0].path) == turn % TURNS


def test_a_run_begins_where_its_turn_says():
    """As CI runs it, and as anybody repeats it: the header names the turn; files without chosen tests do not count."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "--collect-only", "-m", "not long", "tests/base"]
    done = subprocess.run(
        [*command, "-o", "addopts="], cwd=ROOT, env={**os.environ, "RECOVERY_TEST_TURN": "1"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "RECOVERY_TEST_TURN=1: file 2 of each 11 first" in done.stdout
    modules = [line.split()[1].rstrip(">") for line in done.stdout.splitlines() if "<Module " in line]
    assert modules == [each.path for each in by_turn([SimpleNamespace(path=each) for each in sorted(modules)], 1)]
    assert modules != sorted(modules)
