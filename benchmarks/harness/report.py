"""What a benchmark found: shown, kept as JSON, and put in its place in RESULTS.md."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.harness.glance import Compared
from benchmarks.harness.pictures import Picture
from benchmarks.harness.processes import ROOT
from benchmarks.harness.rounds import Measurement
from benchmarks.harness.table import markdown

QUIET_SHARE = 0.05
"""Other processes may take this share of the machine without being mentioned."""
PICTURES = "pictures"
"""Beside RESULTS.md."""
HEAD = "# Results\n\nWritten by `python -m benchmarks NAME --write-results`; see [README.md](README.md).\n"


@dataclass(slots=True)
class Report:
    """headers and rows: the table. notes: sentences on how to read it. title: of its section, with what was chosen.
    compared: what of it RESULTS.md begins with."""

    name: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    measurements: Sequence[Measurement]
    notes: list[str] = field(default_factory=list)
    command: str = ""
    title: str = ""
    picture: Picture | None = None
    compared: list[Compared] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=machine.describe)

    @property
    def problems(self) -> list[str]:
        """What went wrong, by contender and round."""
        return [f"{m.contender}, round {m.round + 1}: {m.problem}" for m in self.measurements if m.problem]

    def text(self) -> str:
        """A section of RESULTS.md."""
        versions = sorted(
            {f"{name} {v}" for m in self.measurements for name, v in m.answer.get("versions", {}).items()}
        )
        parts = [
            f"## {self.title or self.name}",
            f"`{self.command}`",
            f"![{self.title or self.name}]({PICTURES}/{self.file_name}.svg)" if self.picture else "",
            markdown(self.headers, self.rows),
            "\n".join(f"- {note}" for note in (*self.notes, *self._disturbance())),
            f"Machine: {', '.join(f'{value}' for value in self.machine.values())}. Versions: {', '.join(versions)}.",
            "\n".join(f"- **{problem.splitlines()[0].replace(str(ROOT), '.')}**" for problem in self.problems),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    @property
    def file_name(self) -> str:
        """Of its picture and its results."""
        return re.sub(r"[^0-9a-z]+", "-", (self.title or self.name).lower()).strip("-")

    def save(self, directory: Path) -> Path:
        """Everything as JSON, in a file of its own."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.file_name}-{datetime.now(UTC):%Y%m%dT%H%M%S}.json"
        content: dict[str, Any] = {
            "name": self.name,
            "command": self.command,
            "machine": self.machine,
            "notes": self.notes,
            "compared": [asdict(each) for each in self.compared],
            "headers": self.headers,
            "rows": self.rows,
            "measurements": [measurement.plain() for measurement in self.measurements],
        }
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        return path

    def _disturbance(self) -> list[str]:
        share = max((m.usage.others_share for m in self.measurements), default=0.0)
        if share < QUIET_SHARE:
            return []
        return [f"The machine was not idle: other processes took up to {share:.0%} of it during a run."]


def replace_section(results: str, section: str) -> str:
    """RESULTS.md with a section in the place of the one of the same title, or at the end."""
    title = section.split("\n", 1)[0]
    pattern = re.compile(rf"^{re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    text = results or HEAD
    if pattern.search(text):
        return pattern.sub(lambda _: section + "\n", text).rstrip() + "\n"
    return text.rstrip() + "\n\n" + section


def sections_of(results: str) -> list[str]:
    """The sections of RESULTS.md, in their order, without the headings of higher level between them."""
    parts = re.split(r"^(?=##? )", results, flags=re.MULTILINE)
    return [part.rstrip() + "\n" for part in parts if part.startswith("## ")]
