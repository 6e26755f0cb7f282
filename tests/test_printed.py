"""Parts of the documentation that are printed from the code: `python -m tests.test_printed` prints all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest

from recovery import RecoveryConfig
from recovery.base.ids import Epoch
from recovery.cli import COMMANDS, main
from recovery.metrics.exposition import About, families
from recovery.metrics.memory import Memory
from recovery.metrics.meter import Totals
from recovery.planning.health import DEFAULTS
from recovery.planning.measures import Measure, OperatorWork, StepSize
from recovery.planning.replica import ReplicaLag, ReplicaState, Shipped
from recovery.setting import settings_of

DOCS = Path(__file__).parents[1] / "docs"


def cell(text: str) -> str:
    """Text in a cell of a table."""
    return text.replace("\n", " ").replace("|", r"\|")


def options(command: click.Command) -> Iterator[str]:
    """The table of a command's options."""
    yield "| option | default | |\n| --- | --- | --- |\n"
    with click.Context(command, info_name=command.name) as ctx:
        for each in command.params:
            if isinstance(each, click.Option) and each.name != "help":
                form = "" if each.is_flag else f" {each.make_metavar(ctx)}"
                names = ", ".join([*(f"`{name}`" for name in each.opts[:-1]), f"`{each.opts[-1]}{form}`"])
                default = f"`{each.default}`" if each.show_default else getattr(each, "without", "")
                several = " May be given several times." if each.multiple else ""
                yield f"| {cell(names)} | {cell(default)} | {cell(each.help or '')}{several} |\n"


def settings() -> Iterator[str]:
    """The table of RecoveryConfig's fields."""
    yield "| setting | default | option | |\n| --- | --- | --- | --- |\n"
    defaults = {each.name: {} if each.default is MISSING else each.default for each in fields(RecoveryConfig)}
    for name, each in settings_of(RecoveryConfig).items():
        without = f"{default_text(defaults[name])}{f': {each.without}' if each.without else ''}"
        flag = f"`{max(each.flags, key=len)}`" if each.flags else ""
        yield f"| `{name}` | {cell(without)} | {flag} | {cell(each.help)} |\n"


def default_text(default: Any) -> str:
    """A default as Python writes it."""
    return f"`{default!r}`".replace("'", '"')


def metrics() -> Iterator[str]:
    """The table of a run's metrics for Prometheus."""
    about, steps = About("flow", 1, 1, "", DEFAULTS), {"step": StepSize(1, 1)}
    last = Measure(execution=1, epoch=1, measured_ms=0, resume_s=0, steps=steps)
    memory = Memory(*(1 for _ in fields(Memory)))
    totals = Totals(last_epoch=last, memory=memory, operators={0: 1}, native={0: OperatorWork()})
    replica = ReplicaState("s3://bucket", Shipped(Epoch(1), 1), ReplicaLag(0, 0.0), 0, 0, 0, "")
    found = families(about, totals, resume_s=0, epoch_age_s=0, backup_age_s=0, replica=replica)
    yield "| metric | type | labels | |\n| --- | --- | --- | --- |\n"
    for each in found:
        labels = ", ".join(f"`{label}`" for label in (each.samples[0][0] if each.samples else ()))
        yield f"| `{each.name}` | {each.kind} | {labels} | {cell(each.help)} |\n"


BLOCKS: dict[str, dict[str, Callable[[], Iterator[str]]]] = {
    "cli.md": {f"options of {name}": partial(lambda name: options(main.commands[name]), name) for name in COMMANDS},
    "flow-api.md": {"settings": settings},
    "metrics.md": {"metrics": metrics},
}
"""What prints each part of a page, by the part's name."""


def printed(text: str, blocks: dict[str, Callable[[], Iterator[str]]]) -> str:
    """The page with its printed parts as the code has them now."""
    for name, lines in blocks.items():
        marks = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        before, found, rest = text.partition(marks[0])
        if found:
            text = before + marks[0] + "".join(lines()) + marks[1] + rest.partition(marks[1])[2]
    return text


@pytest.mark.parametrize("page", BLOCKS)
def test_a_page_has_what_the_code_prints(page):
    """A stale page: python -m tests.test_printed."""
    text = (DOCS / page).read_text()
    assert text == printed(text, BLOCKS[page])


if __name__ == "__main__":
    for name, blocks in BLOCKS.items():
        (DOCS / name).write_text(printed((DOCS / name).read_text(), blocks))
