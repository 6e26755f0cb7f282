"""Measuring contenders side by side: in rounds, each of which runs every contender once, on the same input."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import ChildFailedError, Usage, run_child

Check = Callable[["Contender", dict[str, Any], Path], str | None]
"""What is wrong with a contender's answer and with what it left in its directory; None: nothing."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to measure: a function in a Python of its own.

    target: `module:function`. It takes `arguments`, runs in a fresh directory, and returns a dict with the
    measured `seconds`, the `versions` of what ran, and anything else worth keeping. `environment` is added to that of
    all.
    """

    name: str
    python: Path
    target: str
    arguments: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of one contender. `problem`: why it does not count; None: it counts."""

    contender: str
    round: int
    answer: dict[str, Any]
    usage: Usage
    problem: str | None

    @property
    def seconds(self) -> float:
        """The measured time."""
        return float(self.answer["seconds"])

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(slots=True)
class Rounds:
    """How contenders are run: how often, where, with which environment and patience."""

    repeat: int
    work: Path
    environment: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 3600.0
    keep: bool = False

    def measure(self, contenders: Sequence[Contender], check: Check) -> list[Measurement]:
        """Everyone once a round; each round begins with another one, so that none always follows the same."""
        done = []
        for number in range(self.repeat):
            turn = number % len(contenders)
            for contender in [*contenders[turn:], *contenders[:turn]]:
                done.append(self._measure(contender, number, check))
        return done

    def _measure(self, contender: Contender, number: int, check: Check) -> Measurement:
        directory = self.work / f"{re.sub(r'[^0-9A-Za-z]+', '-', contender.name)}-{number}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        print(f"round {number + 1}/{self.repeat}  {contender.name} … ", end="", file=sys.stderr, flush=True)
        # What the one before left to be written is not this one's to wait for.
        os.sync()
        answer: dict[str, Any] = {}
        usage = Usage()
        problem: str | None
        try:
            environment = {**self.environment, **contender.environment}
            answer, usage = run_child(
                contender.python, contender.target, contender.arguments, directory, environment, self.timeout_s
            )
            problem = check(contender, answer, directory)
        except ChildFailedError as error:
            problem = str(error)
        print(f"{answer['seconds']:.2f} s" if problem is None else problem.splitlines()[0], file=sys.stderr, flush=True)
        if not self.keep:
            shutil.rmtree(directory, ignore_errors=True)
        return Measurement(contender.name, number, answer, usage, problem)
