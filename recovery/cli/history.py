"""`recovery history DIR --step S --key K`."""

from __future__ import annotations

import click

from recovery.base.clock import SystemClock
from recovery.cli.common import format_time, json_option, print_json, say, table
from recovery.cli.readable import READABLE, Readable
from recovery.cli.state_common import json_text
from recovery.operational.step_history import Version, key_history
from recovery.operational.targets import Steps
from recovery.planning.comparing import ABSENT, Difference

SHOWN_CHANGES = 5


@click.command()
@click.argument("directory", metavar="DIR", type=READABLE, envvar="RECOVERY_DIRECTORY")
@click.option("--step", metavar="STEP", required=True, help="The step of the flow.")
@click.option("--key", metavar="KEY", required=True, help="The state key.")
@json_option
def history(directory: Readable, step: str, key: str, as_json: bool) -> None:
    """Show how one key came to its value: each version that is held, oldest first, and what changed in it.

    Reads only; a run may be going on. How far back it reaches is the backup interval (-b) of the run. DIR may also be a
    place of backups; a chain of incremental ones reaches back to its beginning.
    """
    found = key_history(Steps(directory.path, step, SystemClock()), step, key)
    if as_json:
        print_json({"directory": directory.shown, **found.as_json()})
        return
    say(table(("epoch", "closed", "execution", "micro-batches", "", "value", "changed"), map(_row, found.versions)))
    say(f"held: epochs {found.oldest} to {found.newest}")


def _row(version: Version) -> tuple[object, ...]:
    closed = version.closed
    return (
        version.epoch,
        "before what is held" if closed is None else format_time(closed.closed_ms),
        None if closed is None else closed.execution.number,
        _batches(version),
        version.what,
        None if version.value is ABSENT else json_text(version.value),
        "; ".join(map(difference_text, version.changes[:SHOWN_CHANGES])) or None,
    )


def _batches(version: Version) -> str | None:
    if version.closed is None:
        return None
    last = version.closed.batch_id
    if version.first_batch is None:
        return f"to {last}"
    return str(last) if version.first_batch >= last else f"{version.first_batch} to {last}"


def difference_text(difference: Difference) -> str:
    """Return a difference in a line, like `total: 3 → 5`."""
    before, after = (
        "absent" if value is ABSENT else json_text(value) for value in (difference.before, difference.after)
    )
    return f"{difference.path}: {before} → {after}" if difference.path else f"{before} → {after}"
