"""Directories and requests for the tests of `recovery ui`'s facts and API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from click.testing import CliRunner

from recovery.cli import main
from recovery.operational.manager import StateManager
from recovery.ui.api.answering import answer
from recovery.ui.facts.flows import Flows, FlowSource
from tests.report.support import clock, run_epochs
from tests.stores import STEP, Driver

HOSTILE = ["<script>alert(1)</script>", "a/b", "%2F", "../..", "\u202eevil", "k\x7f", '"]}', "'; DROP", "🙂", " ", ""]
"""Keys that would break what is careless with them. A step has no key with NUL."""


class Asked(NamedTuple):
    """An answer: HTTP's status, and its JSON."""

    status: int
    facts: dict[str, Any]


def ask(flows: Flows, path: str, query: str = "") -> Asked:
    """What a program gets from GET /api/PATH?QUERY."""
    made = answer(flows, path, query)
    return Asked(made.status, json.loads(made.content))


def quoted(text: str) -> str:
    """A name in a path."""
    return quote(text, safe="")


def served(*directories: Path, **settings: Any) -> Flows:
    """The flows of these directories."""
    return Flows([FlowSource(each, **settings) for each in directories])


def printed(*arguments: object) -> Any:
    """What a command prints with --json."""
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout)


def filled(directory: Path) -> Path:
    """A history of nine epochs in three executions, of which the second goes back; hostile keys, a large value, a
    mark."""
    run_epochs(directory, 5, times := clock())
    run_epochs(directory, 3, times, resume_epoch=4, seed=1)
    with Driver(directory, (STEP, "sessions"), started_ms=next(times)) as run:
        run.apply(90, {key: f'{{"n": {number}}}' for number, key in enumerate([*HOSTILE, "k1"])})
        run.apply(90, {"large": f'"{"v" * 1_000_000}"', "due": ('"x"', 5)}, step="sessions")
        run.close(90, closed_ms=next(times), floor=2)
    StateManager(directory).set_hwm("orders", 5)
    return directory


def files_of(directory: Path) -> dict[str, bytes]:
    """Every file by name, byte by byte."""
    return {path.name: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
