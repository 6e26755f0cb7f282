"""The tables of RESULTS.md from one session: one after the other, each kept when it is done, with the time it took."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.harness import glance, pictures
from benchmarks.harness.glance import Compared
from benchmarks.harness.report import PICTURES, Report, sections_of

HEAD = """# Results

The tables down to *Other sessions* are of one session: `{command}`, {minutes:.0f} minutes.
[README.md](README.md) says how it measures.
"""
AT_A_GLANCE = """## At a glance

How many times as long as recovery each of the others takes, in wall time, and in processor time in brackets: above 1,
recovery is ahead. Bytes written are compared in the lines that say so.

![Ratios]({pictures}/{picture})

{table}
"""
PICTURE = "at-a-glance.svg"
OTHERS = "# Other sessions\n"


@dataclass(slots=True)
class Done:
    """A table that was measured: its section of RESULTS.md and its lines of the table of ratios."""

    words: list[str]
    took_s: float
    section: str
    title: str
    compared: list[Compared]
    problems: list[str]


@dataclass(slots=True)
class Session:
    """What is done, kept in the file `path` after each table.

    commit: of the repository, at the beginning. measure: runs the command line of a benchmark.
    """

    path: Path
    results: Path
    command: str
    commit: str
    measure: Callable[[list[str]], Report]
    done: list[Done] = field(default_factory=list)

    def resume(self) -> None:
        """Take what an interrupted session of the same commit kept. Ends the program if there is none."""
        try:
            kept = json.loads(self.path.read_text())
        except FileNotFoundError:
            raise SystemExit(f"There is no session to resume: {self.path} does not exist.") from None
        if kept["commit"] != self.commit:
            raise SystemExit(
                f"The session in {self.path} is of {kept['commit']}, this is {self.commit}: begin a new one."
            )
        self.done = [
            Done(**{**each, "compared": [Compared.read(one) for one in each["compared"]]}) for each in kept["done"]
        ]

    def run(self, lines: Sequence[list[str]], limit_s: float) -> int:
        """Measure each line that is not done without a problem yet, and write RESULTS.md after each. When limit_s is
        over, no other table begins. The number of tables that are missing, or have a problem."""
        began_s = time.perf_counter()
        left = [line for line in lines if not any(each.words == line and not each.problems for each in self.done)]
        for number, line in enumerate(left, 1):
            if time.perf_counter() - began_s > limit_s:
                print(f"{limit_s / 60:.0f} minutes are over: `--resume` measures the others", file=sys.stderr)
                break
            print(f"== {number}/{len(left)}: {' '.join(line)}", file=sys.stderr)
            self._measure(line)
            self.done.sort(key=lambda each: lines.index(each.words) if each.words in lines else len(lines))
            self._keep()
        for line in lines:
            found = next((each for each in self.done if each.words == line), None)
            state = f"{found.took_s:.0f} s" if found else "not measured"
            print(f"{state:>12}  {'FAILED  ' if found and found.problems else ''}{' '.join(line)}", file=sys.stderr)
        whole = [each.words for each in self.done if not each.problems]
        return sum(line not in whole for line in lines)

    def _measure(self, line: list[str]) -> None:
        """A failure of one table is no failure of the others."""
        began_s = time.perf_counter()
        try:
            report = self.measure(line)
        except (Exception, SystemExit):
            traceback.print_exc()
            return
        title, took_s = report.title or report.name, time.perf_counter() - began_s
        self.done = [each for each in self.done if each.words != line]
        self.done.append(Done(line, took_s, report.text(), title, report.compared, report.problems))
        if report.picture is not None:
            report.picture(self.results.parent / PICTURES / f"{report.file_name}.svg")

    def _keep(self) -> None:
        kept = {"commit": self.commit, "done": [asdict(each) for each in self.done]}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        before = self.results.read_text() if self.results.exists() else ""
        compared = [one for each in self.done for one in each.compared]
        if compared:
            pictures.ratios("times what recovery takes", glance.bars_of(compared))(
                self.results.parent / PICTURES / PICTURE
            )
        self.results.write_text(text(self.command, self.done, before))


def text(command: str, done: Sequence[Done], before: str) -> str:
    """RESULTS.md: the table of ratios, the tables of the session, and those of `before` that it does not have."""
    measured = [each.section for each in done]
    titles = {section.split("\n", 1)[0] for section in measured} | {AT_A_GLANCE.split("\n", 1)[0]}
    others = [section for section in sections_of(before) if section.split("\n", 1)[0] not in titles]
    parts = [HEAD.format(command=command, minutes=sum(each.took_s for each in done) / 60)]
    compared = [one for each in done for one in each.compared]
    if compared:
        parts.append(AT_A_GLANCE.format(pictures=PICTURES, picture=PICTURE, table=glance.markdown_of(compared)))
    parts += measured
    if others:
        parts += [OTHERS, *others]
    return "\n".join(part.rstrip() + "\n" for part in parts)
