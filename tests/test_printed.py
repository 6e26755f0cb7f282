"""Parts of the documentation that are printed from the code: `python -m tests.test_printed` prints all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from recovery import RecoveryConfig
from recovery.base.ids import Epoch
from recovery.cli import COMMANDS
from recovery.metrics.exposition import About, families
from recovery.metrics.memory import ProcessMemory
from recovery.metrics.meter import RunTotals
from recovery.metrics.owners import owner_families
from recovery.planning.health import DEFAULTS
from recovery.planning.lag import InputLag, PartLag, SourceLag
from recovery.planning.measures import Measure, OperatorWork, StepSize
from recovery.planning.owner_facts import OwnerFacts
from recovery.planning.replica import ReplicaLag, ReplicaState, Shipped
from recovery.planning.sink_work import SinkWork
from recovery.setting import settings_of
from tests import test_error_page
from tests.base import test_outside
from tests.cli import reference
from tests.cli.reference import head, row

DOCS = Path(__file__).parents[1] / "docs"


def settings() -> Iterator[str]:
    """The table of RecoveryConfig's fields."""
    yield head("setting", "default", "option", "")
    defaults = {each.name: {} if each.default is MISSING else each.default for each in fields(RecoveryConfig)}
    for name, each in settings_of(RecoveryConfig).items():
        without = f"{default_text(defaults[name])}{f': {each.without}' if each.without else ''}"
        flag = f"`{max(each.flags, key=len)}`" if each.flags else ""
        python = f" In Python: `{each.python}`." if each.python else ""
        yield row(f"`{name}`", without, flag, f"{each.help}{python}")


def default_text(default: Any) -> str:
    """A default as Python writes it."""
    return f"`{default!r}`".replace("'", '"')


def metrics() -> Iterator[str]:
    """The table of a run's metrics for Prometheus."""
    about, steps = About("flow", 1, 1, "", DEFAULTS), {"step": StepSize(1, 1)}
    last = Measure(execution=1, epoch=1, measured_ms=0, resume_s=0, steps=steps)
    memory = ProcessMemory(*(1 for _ in fields(ProcessMemory)))
    totals = RunTotals(last_epoch=last, memory=memory, operators={0: 1}, native={0: OperatorWork()})
    replica = ReplicaState("s3://bucket", Shipped(Epoch(1), 1), ReplicaLag(0, 0.0), 0, 0, 0, "")
    lag = InputLag(execution=1, epoch=1, seen_ms=0, sources=(SourceLag(source="", unit="", behind=0),), group="")
    found = families(about, totals, resume_s=0, epoch_age_s=0, backup_age_s=0, replica=replica, lag=lag,
                     lag_parts=[PartLag("", "", "", "", 0, 0, 0)], sink=SinkWork(), quarantined={"": 0})  # fmt: skip
    yield head("metric", "type", "labels", "")
    for each in found:
        labels = ", ".join(f"`{label}`" for label in (each.samples[0][0] if each.samples else ()))
        yield row(f"`{each.name}`", each.kind, labels, each.help)


def facts() -> Iterator[str]:
    """The table of the metrics of owners."""
    yield head("metric", "type", "labels", "")
    for each in owner_families([({"directory": "db"}, OwnerFacts(clock_ms=0, call_p50_s=0, call_p99_s=0))]):
        labels = ", ".join(f"`{label}`" for label in (each.samples[0][0] if each.samples else ()))
        yield row(f"`{each.name}`", each.kind, labels, each.help)


BLOCKS: dict[str, dict[str, Callable[[], Iterator[str]]]] = {
    "cli.md": {
        "commands": reference.commands,
        "common options": reference.common_options,
        **{f"commands of {name}": partial(reference.subcommands, name) for name in reference.GROUPS},
        **{f"options of {name}": partial(reference.options, name) for name in COMMANDS},
        "variables": reference.variables,
    },
    "errors.md": test_error_page.BLOCKS,
    "flow-api.md": {"settings": settings},
    "metrics.md": {"metrics": metrics},
    "outside.md": test_outside.BLOCKS,
    "owners.md": {"facts": facts},
}
"""What prints each part of a page, by the part's name."""


def printed(text: str, blocks: dict[str, Callable[[], Iterator[str]]]) -> str:
    """The page with its printed parts as the code has them now."""
    for name, lines in blocks.items():
        marks = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        before, begun, rest = text.partition(marks[0])
        _, ended, after = rest.partition(marks[1])
        assert ended, f"there is no {marks[0]}"
        text = before + begun + "".join(lines()) + ended + after
    return text


@pytest.mark.parametrize("page", BLOCKS)
def test_a_page_has_what_the_code_prints(page):
    """A stale page: python -m tests.test_printed."""
    text = (DOCS / page).read_text()
    assert text == printed(text, BLOCKS[page])


if __name__ == "__main__":
    for name, blocks in BLOCKS.items():
        (DOCS / name).write_text(printed((DOCS / name).read_text(), blocks))
