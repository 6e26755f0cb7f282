"""The examples of clusters, run as their docstrings say."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.cluster.support import EXAMPLES, ROOT

LOST = {
    "three_hosts.py": "host1 has lost its power",
    "lost_owner.py": "host1 has lost its power and its disk",
}
PATIENCE_S = 600


@pytest.mark.long
@pytest.mark.parametrize("example", LOST)
def test_a_host_is_lost_and_the_counts_are_exact(possible, example):
    """One command lays out the hosts, loses one, goes on and checks the counts."""
    [command] = re.findall(r"^    python (\S+)$", (EXAMPLES / example).read_text(), re.MULTILINE)
    done = subprocess.run(
        [sys.executable, command], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\n{LOST[example]}\n" in done.stdout
    assert re.search(r"^\d+ micro-batches, in which every word is equally often: exact$", done.stdout, re.MULTILINE)
