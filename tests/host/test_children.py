"""Processes beside this one that run a module of the package."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from recovery.host.children import NICE, own_module
from tests.stores import ROOT

ANSWERING = """
import sys
from recovery.host.children import tell_parent
tell_parent(b"ready")
sys.stdin.readline()
tell_parent(b"answer")
print("goes on", file=sys.stderr)
"""


@pytest.mark.parametrize("reads", [True, False])
def test_an_answer_that_nobody_reads(reads):
    """The parent was killed: the process ends, and prints no traceback."""
    process = subprocess.Popen(
        [sys.executable, "-c", ANSWERING], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    if not reads:
        process.stdout.close()
    process.stdin.write("question\n")
    process.stdin.close()
    printed = process.stderr.read()
    assert process.wait(30) == 0
    assert printed == ("goes on\n" if reads else "")


def test_this_very_copy_of_the_package(tmp_path, monkeypatch):
    """Whatever the working directory has."""
    (tmp_path / "recovery.py").write_text("print('another')")
    monkeypatch.chdir(tmp_path)
    command, environment = own_module("recovery.host.children")
    done = subprocess.run([*command, "x"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


YIELDING = """
import os
from recovery.host.children import yield_to_others
os.nice({before})
yield_to_others()
yield_to_others()
print(os.nice(0))
"""


def test_a_process_yields_to_others():
    """As far as it should, however nice it was before, and never less than its starter wanted."""
    own = os.nice(0)
    for before in (0, 3, NICE + 3):
        command = [sys.executable, "-c", YIELDING.format(before=before)]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert int(found.stdout) == min(19, max(NICE, own + before))
