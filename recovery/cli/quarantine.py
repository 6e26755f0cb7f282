"""`recovery quarantine`: list, show, export, replay, drop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from recovery.base.addresses import local_path
from recovery.base.clock import SystemClock
from recovery.base.ids import Epoch
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.asking import ask
from recovery.cli.common import (
    INTERVAL,
    directory_argument,
    echo_json,
    format_time,
    json_option,
    print_json,
    say,
    write_whole,
)
from recovery.cli.option import option
from recovery.cli.owners import owner_options, store_at, store_to_read
from recovery.cli.state_common import json_text, short
from recovery.cli.tables import table
from recovery.operational.steps.quarantine import WaitingKey, Wanted, drop, entries_of, entry_json, lines_of, replay
from recovery.storage.store import OwnerAccess

F = TypeVar("F", bound=Callable[..., Any])
SHOWN_ROWS = 5
NAMED = "a file of this machine"


@click.group()
def quarantine() -> None:
    """Look at rows that a step could not take; replay them.

    A step with on_error="quarantine" stores such rows with the error and goes on.
    """


def which_options(function: F) -> F:
    """Add --step, --key and --since, which the command gets as one argument `wanted`, beside DIR and --owner."""

    @wraps(function)
    def command(*, step: str | None, key: str | None, since: float | None, **others: Any) -> Any:
        since_ms = None if since is None else SystemClock().wall_ms() - round(since * 1000)
        return function(wanted=Wanted(step, key, since_ms), **others)

    made: Any = owner_options(command)
    made = option("--since", type=INTERVAL, metavar="AGE", without="all",
                  help="Only keys that have waited no longer than this, as in 2h.")(made)  # fmt: skip
    made = option("--key", metavar="KEY", without="all", help="Only this [key](file-format.md#keys).")(made)
    made = option("--step", metavar="STEP", without="all", help="Only rows of this step.")(made)
    found: F = directory_argument(made)
    return found


@quarantine.command(name="list")
@which_options
@json_option
def list_(directory: Path, wanted: Wanted, access: OwnerAccess, as_json: bool) -> None:
    """List the keys with rows in quarantine.

    Shows the newest error of each key. Reads only, also during a run; shows the newest closed epoch.
    """
    found = wanted.keys(store_to_read(directory, access).at())
    if as_json:
        print_json([each.as_json() for each in found])
        return
    if not found:
        say("nothing is in quarantine")
        return
    rows = (
        (
            one_line(each.step), one_line(each.key), each.note.rows, format_time(each.note.since_ms),
            "next run" if each.replays else None, one_line(each.note.error),
        )
        for each in found
    )  # fmt: skip
    say(table(("step", "key", "rows", "since", "replay", "newest error"), rows))


@quarantine.command()
@which_options
@json_option
def show(directory: Path, wanted: Wanted, access: OwnerAccess, as_json: bool) -> None:
    """Show the rows in quarantine with their errors.

    Shows them in the order in which they came. Reads only, also during a run; shows the newest closed epoch.
    """
    at = store_to_read(directory, access).at()
    keys = wanted.keys(at)
    if as_json:
        print_json([entry_json(each, number, entry) for each in keys for number, entry in entries_of(at, each)])
        return
    if not keys:
        say("nothing is in quarantine")
    for each in keys:
        for number, entry in entries_of(at, each):
            _say_entry(entry_json(each, number, entry))


@quarantine.command()
@which_options
@option("--output-file", metavar="FILE|-", default="-", show_default=True,
        help="Where to write; `-` is standard output. A file is replaced as a whole.")  # fmt: skip
def export(directory: Path, wanted: Wanted, access: OwnerAccess, output_file: str) -> None:
    """Write the rows in quarantine as lines of JSON.

    Each line has the rows of one key in one micro-batch: as JSON, and with their types as an Arrow stream in base64.
    """
    at = store_to_read(directory, access).at()
    lines = (line for each in wanted.keys(at) for line in lines_of(at, each))
    if output_file == "-":
        for line in lines:
            echo_json(line)
    else:
        _write(output_file, lines)


@quarantine.command(name="replay")
@which_options
@json_option
def replay_(directory: Path, wanted: Wanted, access: OwnerAccess, as_json: bool) -> None:
    """Let the next run give the rows to their step again.

    The rows come in the first micro-batch, in their order, before newer rows of their keys. Rows that fail again return
    to quarantine. End the run first, and correct the code. This is an epoch of its own: going back before it undoes it.
    """
    chosen, epoch = replay(store_at(directory, access), wanted, SystemClock())
    _done(chosen, epoch, "the next run replays", as_json)


@quarantine.command(name="drop")
@which_options
@option("--save", metavar="FILE", help="First write what is dropped to this file, like `export`.")
@option("--no-save", is_flag=True, help="Do not keep what is dropped.")
@option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
def drop_(
    directory: Path, wanted: Wanted, access: OwnerAccess, save: str | None, no_save: bool, yes: bool, as_json: bool
) -> None:
    """Discard rows in quarantine; asks first.

    Later rows of the keys pass again. End the run first. This is an epoch of its own: going back before it undoes it.
    """
    if (save is None) != no_save:
        raise click.UsageError("Give --save FILE, or --no-save.")
    store = store_at(directory, access)
    keys = wanted.keys(store.at())
    if keys:
        ask(f"Drop {_counts(keys)}?", yes)
    keep = partial(_write, save) if save is not None else _ignore
    chosen, epoch = drop(store, wanted, keep, SystemClock())
    _done(chosen, epoch, "dropped", as_json)


def _write(file: str, lines: Iterable[str]) -> None:
    write_whole(local_path(file, NAMED), "".join(f"{line}\n" for line in lines), private=True)


def _ignore(lines: Iterable[str]) -> None:
    """Keep nothing of what is dropped."""


def _counts(keys: Sequence[WaitingKey]) -> str:
    return f"{counted(sum(each.note.rows for each in keys), 'row')} of {counted(len(keys), 'key')}"


def _done(chosen: Sequence[WaitingKey], epoch: Epoch | None, what: str, as_json: bool) -> None:
    if as_json:
        print_json({"epoch": epoch, "keys": [each.as_json() for each in chosen]})
    elif not chosen:
        say("nothing of that is in quarantine")
    else:
        closed = "" if epoch is None else f"epoch {epoch} closed: "
        say(f"{closed}{what} {_counts(chosen)}")


def _say_entry(entry: dict[str, Any]) -> None:
    place = f"step {entry['step']!r}, key {entry['key']!r}, micro-batch {entry['batch']}, {format_time(entry['at_ms'])}"
    say(one_line(place))
    error = entry["error"]
    if error is None:
        say("  waits behind the rows above")
    else:
        attempts = counted(entry["attempts"], "attempt")
        say(one_line(f"  {error['type']}: {error['message']} ({attempts})"))
        for each in error["places"]:
            say(one_line(f"    {each}"))
    if entry["timed_out"]:
        say("  a call for a timeout, without rows")
    for row in entry["rows"][:SHOWN_ROWS]:
        say(one_line(f"  {short(row)}" if len(json_text(row)) > 400 else f"  {json_text(row)}"))
    if len(entry["rows"]) > SHOWN_ROWS:
        say(f"  … and {counted(len(entry['rows']) - SHOWN_ROWS, 'more row', 'more rows')}; --json shows all")
