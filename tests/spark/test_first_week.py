"""Every block of docs/first-week.md, in its order, as a newcomer types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores import ROOT

BLOCK = re.compile(r"^```(python title=(?P<name>\S+)|sh)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
SAID = ["{'north': 5, 'south': 1}", "{'north': 12}", "12", "1 passed", "{'north': 12, 'south': 1}", "{'north': 15}"]
"""What the page says that its commands print."""


@pytest.mark.long
def test_the_whole_week(tmp_path: Path) -> None:
    """Each block succeeds, and the commands print what the page says."""
    page = (ROOT / "docs" / "first-week.md").read_text()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    printed = ""
    for block in BLOCK.finditer(page):
        if block["name"]:
            (tmp_path / block["name"]).write_text(block["text"])
            continue
        command = ["bash", "-e", "-c", block["text"]]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{block['text']}\n{done.stdout}\n{done.stderr}"
        printed += done.stdout
    position = 0
    for each in SAID:
        position = printed.index(each, position)
