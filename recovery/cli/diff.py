"""`recovery diff A B`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from recovery.base.wording import counted
from recovery.cli.common import json_option, print_json, say, table
from recovery.cli.diff_output import differences_file
from recovery.cli.history import SHOWN_CHANGES, difference_text
from recovery.cli.owners import owner_options
from recovery.cli.readable import READABLE, Readable
from recovery.cli.state_common import short
from recovery.errors import StateNotFoundError
from recovery.operational.comparison import (
    CHANGED,
    ONLY_A,
    ONLY_B,
    KeyDifference,
    SourcePosition,
    StepCounts,
    compare,
    positions,
    since,
    steps_of,
)
from recovery.operational.step_edits import moment
from recovery.planning.comparing import ABSENT, Comparison
from recovery.storage.locations import OwnerAccess

DIFFERENT = 1
"""Exit code when something differs; errors have 2 and up."""
MOST_CHARS = 100
"""Of a position in the text."""


@click.command()
@click.argument("a", type=READABLE, metavar="A")
@click.argument("b", type=READABLE, metavar="B")
@click.option("--epoch-a", type=click.IntRange(min=0), metavar="E", help="A as of this epoch; by default the newest.")
@click.option("--epoch-b", type=click.IntRange(min=0), metavar="E", help="B as of this epoch; by default the newest.")
@click.option("--step", "steps", multiple=True, metavar="STEP", help="Only this step; may be given several times.")
@click.option("--key", "pattern", metavar="GLOB", help="Only keys that match: * any characters, ? one, [abc] one of.")
@click.option("--every-key", is_flag=True, help="Read all keys, also where both share a history.")
@click.option("--tolerance", type=click.FloatRange(min=0), default=0.0, help="By how much floats may differ.")
@click.option("--ignore-field", "ignored", multiple=True, metavar="NAME", help="Do not compare fields of this name.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="The most differences to show."
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="All differences, as .csv or .parquet.")
@owner_options
@json_option
def diff(
    a: Readable,
    b: Readable,
    epoch_a: int | None,
    epoch_b: int | None,
    steps: tuple[str, ...],
    pattern: str | None,
    every_key: bool,
    tolerance: float,
    ignored: tuple[str, ...],
    limit: int,
    output: Path | None,
    access: OwnerAccess,
    as_json: bool,
) -> None:
    """Compare the states of two recovery directories, or of one at two epochs. Reads only; runs may be going on.

    A and B may also be places of backups, which are read like a directory. --owner belongs to A, and to B if it is the
    same directory.

    Exits with 0 when they are equal and with 1 when they differ.
    """
    same, a = a.path == b.path, a.to_read(access)
    b = a if same else b
    one, other = moment(a.path, epoch_a), moment(b.path, epoch_b)
    chosen = steps_of(one, other, steps)
    for step in steps:
        if step not in chosen:
            raise StateNotFoundError(
                f"there is no step {step!r:.80} in {a.shown} or {b.shown}", remedy="List them: recovery status DIR"
            )
    counts = {step: StepCounts() for step in chosen}
    shown: list[KeyDifference] = []
    comparison = Comparison(tolerance, frozenset(ignored))
    with differences_file(output) as write:
        for step in chosen:
            for found in compare(one, other, step, comparison, counts[step], pattern, every_key=every_key):
                write(found)
                if len(shown) < limit:
                    shown.append(found)
    sources, partly = positions(one, other), None if every_key else since(one, other)
    differ = any(each.differ for each in counts.values())
    if as_json:
        print_json({
            "a": {"directory": a.shown, "epoch": one.epoch}, "b": {"directory": b.shown, "epoch": other.epoch},
            "equal": not differ, "same_position": _same(sources),
            "compared_since_epoch": partly,
            "sources": [{"source": each.source, "a": each.a, "b": each.b} for each in sources],
            "steps": {step: _counts(each, partly is not None) for step, each in counts.items()},
            "differences": [each.as_json() for each in shown],
        })  # fmt: skip
    else:
        say(f"A: {a.shown}, epoch {one.epoch}\nB: {b.shown}, epoch {other.epoch}\n{_position_text(sources)}")
        if one.paths != other.paths and partly is not None:
            say(f"Both share the history up to epoch {partly}; compared is what changed since.")
        say()
        say(_table(counts, partly is not None))
        _say_differences(shown, sum(sum(each.counts.values()) for each in counts.values()), output)
    if differ:
        raise SystemExit(DIFFERENT)


def _same(sources: list[SourcePosition]) -> bool:
    return all(each.a == each.b for each in sources)


def _position_text(sources: list[SourcePosition]) -> str:
    if _same(sources):
        return "Both are at the same position of the input."
    lines = ["They are at different positions of the input, so states may differ for that reason:"]
    for each in sources:
        if each.a != each.b:
            pairs = enumerate(zip(each.a or "", each.b or "", strict=False))
            same = next((number for number, (one, other) in pairs if one != other), 0)
            lines += [f"  source {each.source}: A {_excerpt(each.a, same)}", f"            B {_excerpt(each.b, same)}"]
    return "\n".join(lines)


def _excerpt(position: str | None, same: int) -> str:
    """Return a position, or of a long one the part around the first difference. same: characters before that."""
    if position is None:
        return "has not read it"
    begin = 0 if len(position) <= MOST_CHARS else max(0, same - MOST_CHARS // 3)
    end = begin + MOST_CHARS
    return f"{'…' if begin else ''}{position[begin:end]}{'…' if end < len(position) else ''}"


def _counts(counts: StepCounts, partial: bool) -> dict[str, Any]:
    equal = {} if partial else {"equal": counts.equal}
    return {**equal, **{name.replace(" ", "_").lower(): count for name, count in counts.counts.items()}}


def _table(counts: dict[str, StepCounts], partial: bool) -> str:
    header = ("step", *(() if partial else ("equal",)), CHANGED, ONLY_A, ONLY_B)
    rows = ((step, *(() if partial else (each.equal,)), *each.counts.values()) for step, each in counts.items())
    return table(header, rows)


def _say_differences(shown: list[KeyDifference], total: int, output: Path | None) -> None:
    if shown:
        say()
        say(table(("step", "key", "", "A", "B", "fields"), map(_row, shown)))
    if total > len(shown):
        say(f"{counted(total, 'key')} differ; --limit shows more, --output writes all")
    if output is not None:
        say(f"{counted(total, 'difference')} in {output}")


def _row(found: KeyDifference) -> tuple[str | None, ...]:
    values = (None if value is ABSENT else short(value) for value in (found.before, found.after))
    fields = [difference_text(each) for each in found.differences[:SHOWN_CHANGES] if each.path]
    if found.what == CHANGED and found.timeouts[0] != found.timeouts[1]:
        fields.append(f"timeout_ms: {found.timeouts[0]} → {found.timeouts[1]}")
    return (found.step, found.key, found.what, *values, "; ".join(fields) or None)
