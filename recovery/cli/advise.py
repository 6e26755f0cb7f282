"""`recovery advise DIR`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.cli.common import (
    directory_argument,
    json_option,
    print_json,
    say,
    style,
    tolerate_option,
)
from recovery.cli.option import option
from recovery.cli.owners import ask_owners, owner_options, store_to_read
from recovery.cli.tables import table
from recovery.planning.advice import Advice, Option, advise, format_share
from recovery.planning.health import DEFAULTS, Finding, format_seconds
from recovery.report.facts import Facts, advice_of, gather, known
from recovery.storage.store import OwnerAccess


@click.command(name="advise")
@directory_argument
@tolerate_option
@option("--cores", type=click.IntRange(min=1), metavar="N", without="those of this machine",
        help="The number of cores that the flow runs on.")  # fmt: skip
@owner_options
@json_option
def advise_command(directory: Path, tolerate: float, cores: int | None, access: OwnerAccess, as_json: bool) -> None:
    """Propose settings from what runs have measured.

    Proposes a snapshot interval and a number of partitions, and says how large the state becomes.

    Reads only, also during a run.
    """
    owners = ask_owners(access)
    facts = gather(store_to_read(directory, access), DEFAULTS, SystemClock().wall_ms(), owners=owners)
    advice = advise(known(facts, cores or os.cpu_count() or 1), tolerate)
    if as_json:
        print_json(
            {"directory": str(directory), **advice.as_json(), **_owners_json(facts), "unreadable": list(facts.problems)}
        )
    else:
        say(_text(advice, facts))


def _owners_json(facts: Facts) -> dict[str, Any]:
    return {
        "owners": [each.as_json() for each in facts.owners],
        "findings": [each.as_json() for each in _missed(facts)],
    }


def _missed(facts: Facts) -> list[Finding]:
    """Return the targets about owners and sources that are not met."""
    return [each for each in facts.health if advice_of(each) is not None]


def _text(advice: Advice, facts: Facts) -> str:
    lines = []
    if missed := _missed(facts):
        lines += [
            style("sources and owners" if facts.owners else "sources", "bold"),
            *(f"  {one_line(each)}. {advice_of(each)}" for each in missed),
        ]
        lines.append("")
    interval = advice.interval
    if interval is not None:
        lines += [
            style(f"snapshot interval: -s {_setting(interval.proposed.interval_s)}", "bold"),
            f"  {interval.why}",
            "",
            table(
                ("interval", "micro-batches", "snapshots take", "recovers within", ""),
                [
                    (
                        format_seconds(each.interval_s),
                        each.batches,
                        format_share(each.overhead),
                        format_seconds(each.recovery_s),
                        _mark(each, interval.proposed, interval.present),
                    )
                    for each in interval.options
                ],
            ),
            "",
        ]
    partitions = advice.partitions
    lines += [style(f"partitions: {partitions.proposed}", "bold"), f"  {partitions.why}"]
    if advice.size is not None:
        lines += ["", style("size of the state", "bold"), f"  {advice.size.why}"]
    if advice.missing:
        lines += ["", *(f"{each[0].upper()}{each[1:]}." for each in advice.missing)]
    if facts.problems:
        lines += ["", *(f"Not read: {one_line(each)}" for each in facts.problems)]
    return "\n".join(lines)


def _setting(seconds: float) -> str:
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:.0f}ms"


def _mark(each: Option, proposed: Option, present: Option | None) -> str:
    marks = [name for name, option in (("proposed", proposed), ("as it is", present)) if each == option]
    return ", ".join(marks)
