"""`recovery report DIR -o FILE`."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.cli.common import (
    DIRECTORY,
    directory_argument,
    format_size,
    json_option,
    print_json,
    say,
    tell,
    tolerate_option,
    write_whole,
)
from recovery.cli.config_options import threshold_option
from recovery.cli.option import force_option, option
from recovery.cli.owners import ask_owners, owner_options, store_to_read
from recovery.errors import ConfigurationError
from recovery.planning.advice import advise
from recovery.planning.health import parse_targets
from recovery.report.facts import gather, known, largest
from recovery.storage.store import OwnerAccess


@click.command()
@directory_argument
@option("-o", "--output-file", "output", was="--output", type=DIRECTORY, metavar="FILE", default="report.html",
        show_default=True, help="The page to write.")  # fmt: skip
@force_option("Go on although the page exists: it is replaced.")
@option("--keys", type=click.IntRange(min=0, max=100_000), default=10, show_default=True, metavar="N",
        help="How many of the largest keys to show; 0: none. Finding them reads the whole state.")  # fmt: skip
@tolerate_option
@threshold_option
@owner_options
@json_option
def report(
    directory: Path,
    output: Path,
    force: bool,
    keys: int,
    tolerate: float,
    thresholds: dict[str, str],
    access: OwnerAccess,
    as_json: bool,
) -> None:
    """Write one page that shows a directory.

    The page has a timeline, the partitions, state and snapshots over time, rows in quarantine, health and advice.

    The page needs no network and no other file. The command only reads the directory, which may be damaged or in use.
    """
    if os.path.exists(output) and not force:  # noqa: PTH110 - Path.exists raises for a name that is too long
        raise ConfigurationError(
            f"{output} already exists",
            cause="A report was written there before.",
            remedy="Give --force, or another -o.",
        )
    from recovery.report.page import page
    from recovery.report.quarantine import waited_before

    targets = parse_targets(thresholds)
    store, owners = store_to_read(directory, access), ask_owners(access)
    facts = gather(store, targets, SystemClock().wall_ms(), owners=owners)
    advice = advise(known(facts, os.cpu_count() or 1), tolerate)
    waited = waited_before(store, facts) if facts.quarantine else None
    text = page(facts, advice, largest(store, facts, keys) if keys else [], waited)
    if not write_whole(output, text):
        return
    size_bytes = len(text.encode())
    if as_json:
        waiting = {step: asdict(each) for step, each in facts.quarantine.items()}
        before = None if waited is None else asdict(waited)
        print_json({
            "output": str(output), "bytes": size_bytes, "unreadable": list(facts.problems), "quarantine": waiting,
            "quarantine_before": before,
        })  # fmt: skip
    else:
        say(one_line(f"wrote {output}, {format_size(size_bytes)}"))
        for problem in facts.problems:
            tell(one_line(f"not read: {problem}"))
