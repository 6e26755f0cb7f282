"""What the steps of `.ci/run` make of a command that fails."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.waiting import wait_until

SCRIPT = (Path(__file__).resolve().parents[1] / ".ci" / "run").read_text()
[HELPERS] = re.findall(r"^declare -A running\n.*?^mkdir -p \.ci/tool-log\n", SCRIPT, re.DOTALL | re.MULTILINE)
[TYPES, WORKFLOW] = [
    re.findall(rf'^step "{name}"\n(.*?)\n\n', SCRIPT, re.DOTALL | re.MULTILINE)[0]
    for name in ("types, and the documentation as a site", "the workflow of code hosts")
]


def ended(tmp_path, *lines):
    """The lines as a script with the helpers of `.ci/run`: its code, and what it prints."""
    text = "\n".join(["set -euo pipefail", HELPERS, *lines, "echo went on"])
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize("fails", ["types", "site", "none"])
def test_what_runs_beside_the_steps_can_fail(tmp_path, fails):
    """The end of the output is shown, and the script ends with the code of the command; what still runs is ended."""
    given = [f"beside {name} bash -c 'echo {name}; exit {7 * (name == fails)}'" for name in ("types", "site")]
    begun = tmp_path / "begun"
    other = f"beside other bash -c 'echo $$ >{begun}; exec sleep 300'\nuntil [ -s {begun} ]; do sleep 0.01; done"
    code, shown = ended(tmp_path, *given, other, TYPES)
    assert (code, "went on" in shown) == ((0, True) if fails == "none" else (7, False))
    assert shown.startswith("types\n")
    wait_until(lambda: not Path(f"/proc/{begun.read_text().strip()}/cwd").exists())


@pytest.mark.parametrize(
    ("installs", "is_there", "found", "expected"),
    [(0, True, 0, 0), (0, True, 3, 3), (1, True, 0, 0), (1, True, 3, 3), (1, False, 0, 0)],
)
def test_what_actionlint_finds_fails(tmp_path, installs, is_there, found, expected):
    """Where it is there; where it cannot be installed, that is said, and the workflow is not checked."""
    if is_there:
        tool = tmp_path / ".ci" / "bin" / "actionlint"
        tool.parent.mkdir(parents=True)
        tool.write_text(f"#!/bin/sh\nexit {found}\n")
        tool.chmod(0o755)
    code, shown = ended(tmp_path, f"beside actionlint bash -c 'exit {installs}'", WORKFLOW)
    assert (code, "went on" in shown) == (expected, not expected)
    assert ("skipped: no actionlint" in shown) is not is_there
