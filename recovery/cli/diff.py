"""`recovery diff A B`."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.common import json_option, print_json, say
from recovery.cli.diff_output import differences_file
from recovery.cli.history import SHOWN_CHANGES, difference_text
from recovery.cli.operators import operator_options, session, wanted_state
from recovery.cli.option import limit_option, option
from recovery.cli.owners import owner_options
from recovery.cli.readable import READABLE, Readable
from recovery.cli.settings import settings_options
from recovery.cli.state_common import short
from recovery.cli.status_line import StatusLine
from recovery.cli.tables import table
from recovery.errors import ConfigurationError, RecoveryError
from recovery.operational.steps.comparison import (
    CHANGED,
    ONLY_A,
    ONLY_B,
    Diff,
    KeyDifference,
    Observer,
    StepCounts,
    diff_snapshots,
    positions,
)
from recovery.operators.choose import WantedState, choose_operator
from recovery.operators.held import held_operators, operators_in
from recovery.planning.comparing import ABSENT, Comparison
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import OwnerAccess

DIFFERENT = 1
"""Exit code when something differs; errors have 2 and up."""
UNFORESEEN = 70
"""Exit code of a failure that is no error of this package; its traceback is shown."""
MOST_CHARS = 100
"""Of a position in the text."""
MOST_FILES = 10
"""Whose positions the text shows."""


class _Compares(click.Command):
    """A command whose code 1 says that something differs: an unforeseen failure ends the command with another code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (RecoveryError, click.ClickException, click.exceptions.Exit, click.Abort, OSError):
            # The caller gives these a code of their own.
            raise
        except Exception:
            traceback.print_exc()
            ctx.exit(UNFORESEEN)


@click.command(cls=_Compares)
@click.argument("a", type=READABLE, metavar="A")
@click.argument("b", type=READABLE, metavar="B")
@option("--epoch-a", type=click.IntRange(min=0), metavar="E", without="the newest",
        help="A as of this epoch, one that `status` shows as held.")  # fmt: skip
@option("--epoch-b", type=click.IntRange(min=0), metavar="E", without="the newest",
        help="B as of this epoch, one that `status` shows as held.")  # fmt: skip
@option("--step", "steps", multiple=True, metavar="STEP", without="all", help="Compare only this step.")
@operator_options("Compare all keys of one of Spark's own operators instead of steps.")
@option("--pattern", was="--key", metavar="GLOB", without="all",
        help="Compare only keys that match: `*` any characters, `?` one, `[abc]` one of these. Where A and B share a "
             "history, equal keys are then not counted. A key of an operator is its text if it is one text column, "
             "else a JSON object of its columns.")  # fmt: skip
@option("--every-key", is_flag=True, help="Read all keys also where A and B share a history: only that shows whether a "
        "copy is right.")  # fmt: skip
@option("--tolerance", type=click.FloatRange(min=0), default=0, show_default=True, metavar="NUMBER",
        help="Take floats as equal that differ by at most this, absolutely or relatively; whole numbers are always "
             "compared exactly.")  # fmt: skip
@option("--ignore-field", "ignored", multiple=True, metavar="NAME",
        help="Do not compare fields of this name, at any depth.")  # fmt: skip
@limit_option("The most differences to show.", least=0)
@option("-o", "--output-file", "output", was="--output", type=click.Path(path_type=Path),
        metavar="FILE.csv|FILE.parquet",
        help="Write all differences to this file, which appears when it is whole.")  # fmt: skip
@owner_options
@settings_options
@json_option
def diff(
    a: Readable,
    b: Readable,
    epoch_a: int | None,
    epoch_b: int | None,
    steps: tuple[str, ...],
    operator: int | None,
    store: str | None,
    variable: str | None,
    timers: bool,
    pattern: str | None,
    every_key: bool,
    tolerance: float,
    ignored: tuple[str, ...],
    limit: int,
    output: Path | None,
    access: OwnerAccess,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """Compare the states of two directories, or one at two epochs. Reads only, also during runs.

    A and B may also be places of backups, which are read like a directory. --owner belongs to A, and to B if B is the
    same directory.

    Ends with 0 if A and B are equal, and with 1 if they differ.
    """
    wanted = wanted_state(operator, store, variable, timers=timers)
    if operator is not None and (steps or every_key):
        raise click.UsageError("Give --operator or --step; all keys of an operator are read.")
    if operator is not None:
        a, b, access = *_as_files(a, b, access), OwnerAccess()
    first = a.store(access)
    one, other = first.at(epoch_a), (first if a.path == b.path else b.store(OwnerAccess())).at(epoch_b)
    comparison = Comparison(tolerance, frozenset(ignored))
    shown: list[KeyDifference] = []
    with contextlib.ExitStack() as opened:
        observe = _on(opened.enter_context(StatusLine(quiet=as_json)))
        if operator is None:
            found = diff_snapshots(one, other, steps, pattern, comparison, every_key=every_key, observe=observe)
        else:
            found = opened.enter_context(_of_operator(a, b, one, other, wanted, comparison, pattern, conf))
        uncompared = [] if steps or operator is not None else operators_in(one, other)
        if uncompared and not found.counts:
            raise _only_operators(uncompared, b.shown)
        write = opened.enter_context(differences_file(output))
        for each in found.differences:
            write(each)
            if len(shown) < limit:
                shown.append(each)
    if as_json:
        print_json(found.as_json(a.shown, b.shown, shown, uncompared))
    else:
        _say_found(a, b, found, shown, output, others=one.paths != other.paths)
        if uncompared:
            say(f"\nnot compared: Spark's own {_named(uncompared)}; --operator N compares one")
    if found.differ:
        raise SystemExit(DIFFERENT)


def _as_files(a: Readable, b: Readable, access: OwnerAccess) -> tuple[Readable, Readable]:
    """Return both with all partitions as files of this host, which Spark reads. access: the owners of A."""
    files = a.to_read(access)
    return files, files if a.path == b.path else b


def _on(line: StatusLine) -> Observer:
    return lambda step, keys: line.show(one_line(f"{step}: {counted(keys, 'key')} read"))


def _say_found(
    a: Readable, b: Readable, found: Diff, shown: list[KeyDifference], output: Path | None, *, others: bool
) -> None:
    """Print what was found. others: A and B have different files."""
    say(f"A: {a.shown}, epoch {found.epoch_a}\nB: {b.shown}, epoch {found.epoch_b}\n{_position_text(found)}")
    if others and found.since is not None:
        say(f"A and B share the history up to epoch {found.since}; compared is what changed since.")
    say()
    say(_table(found.counts))
    _say_differences(shown, sum(sum(each.counts.values()) for each in found.counts.values()), output)


@contextlib.contextmanager
def _of_operator(
    a: Readable,
    b: Readable,
    one: Snapshot,
    other: Snapshot,
    wanted: WantedState,
    comparison: Comparison,
    pattern: str | None,
    conf: Mapping[str, str],
) -> Iterator[Diff]:
    """Compare one of Spark's own operators, in a session that ends with the context."""
    there = one if wanted.operator in operators_in(one) and wanted.operator not in operators_in(other) else other
    choose_operator(held_operators(there), wanted, there.epoch)
    counts = StepCounts()
    with session(conf) as spark:
        from recovery.spark.sources.operator_diff import compare_operator

        found = compare_operator(spark, (a.path, one), (b.path, other), wanted, comparison, counts, pattern)
        yield Diff(
            one.epoch, other.epoch, tuple(positions(one, other)), None, {f"operator {wanted.operator}": counts}, found
        )


def _only_operators(numbers: list[int], shown: str) -> ConfigurationError:
    return ConfigurationError(
        f"there is only state of Spark's own {_named(numbers)}",
        path=shown,
        cause="Spark keeps the state of its own operators in files that only Spark can compare.",
        remedy="Give --operator N.",
    )


def _named(numbers: list[int]) -> str:
    return f"{'operator' if len(numbers) == 1 else 'operators'} {', '.join(map(str, numbers))}"


def _position_text(found: Diff) -> str:
    if found.same_position:
        return "A and B are at the same position of the input."
    lines = ["A and B are at different positions of the input, so states may differ for that reason:"]
    files: list[tuple[object, ...]] = []
    for each in found.sources:
        if each.same:
            continue
        if each.files:
            files += [(each.source, read.path, str(read.a), str(read.b)) for read in each.files]
            continue
        pairs = enumerate(zip(each.a or "", each.b or "", strict=False))
        same = next((number for number, (one, other) in pairs if one != other), 0)
        lines += [f"  source {each.source}: A {_excerpt(each.a, same)}", f"            B {_excerpt(each.b, same)}"]
    if files:
        shown = table(("source", "file", "bytes read by A", "by B"), files[:MOST_FILES])
        lines += [f"  {line}" for line in shown.splitlines()]
    if len(files) > MOST_FILES:
        lines.append(f"  and {counted(len(files) - MOST_FILES, 'other file')}; --json has all")
    return "\n".join(lines)


def _excerpt(position: str | None, same: int) -> str:
    """Return a position, or of a long one the part around the first difference. same: characters before that."""
    if position is None:
        return "has not read it"
    begin = 0 if len(position) <= MOST_CHARS else max(0, same - MOST_CHARS // 3)
    end = begin + MOST_CHARS
    return f"{'…' if begin else ''}{position[begin:end]}{'…' if end < len(position) else ''}"


def _table(counts: dict[str, StepCounts]) -> str:
    counted_equal = all(each.equal is not None for each in counts.values())
    header = ("step", *["equal"] * counted_equal, CHANGED, ONLY_A, ONLY_B)
    rows = ((step, *[each.equal] * counted_equal, *each.counts.values()) for step, each in counts.items())
    return table(header, rows)


def _say_differences(shown: list[KeyDifference], total: int, output: Path | None) -> None:
    if shown:
        say()
        say(table(("step", "key", "", "A", "B", "fields"), map(_row, shown)))
    if total > len(shown):
        say(f"{counted(total, 'key')} differ; --limit shows more, --output-file writes all")
    if output is not None:
        say(f"{counted(total, 'difference')} in {output}")


def _row(found: KeyDifference) -> tuple[str | None, ...]:
    values = (None if value is ABSENT else short(value) for value in (found.before, found.after))
    fields = [difference_text(each) for each in found.differences[:SHOWN_CHANGES] if each.path]
    if found.what == CHANGED and found.timeouts[0] != found.timeouts[1]:
        fields.append(f"timeout_ms: {found.timeouts[0]} → {found.timeouts[1]}")
    return (found.step, found.key, found.what, *values, "; ".join(fields) or None)
