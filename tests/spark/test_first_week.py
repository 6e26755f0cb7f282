"""Every block of docs/first-week.md, in its order, as a newcomer types them; then a sink of one's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.pages import type_blocks
from tests.stores import ROOT

SAID = ["{'north': 5, 'south': 1}", "{'north': 12}", "12", "1 passed", "{'north': 12, 'south': 1}", "{'north': 15}"]
"""What the page says that its commands print."""


@pytest.mark.long
def test_the_whole_week(tmp_path: Path) -> None:
    """Each block succeeds, and the commands print what the pages say."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    week, sinks = (
        "".join(printed for _, printed in type_blocks(ROOT / "docs" / page, tmp_path, environment))
        for page in ("first-week.md", "sinks.md")
    )
    position = 0
    for each in SAID:
        position = week.index(each, position)
    assert '{"shop": "south", "total": 1}' in sinks
