"""`recovery quarantine`: list, show, export, replay, drop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
import msgspec
from click.core import ParameterSource

from recovery.base.addresses import local_path
from recovery.base.clock import SystemClock
from recovery.base.ids import Epoch
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.asking import ask
from recovery.cli.common import (
    INTERVAL,
    Summaries,
    directory_argument,
    echo_json,
    format_time,
    json_option,
    print_json,
    say,
    tell,
    write_whole,
)
from recovery.cli.config_options import config_option
from recovery.cli.dry_run import dry_run_option
from recovery.cli.option import option, yes_option
from recovery.cli.owners import owner_options, store_at, store_to_read
from recovery.cli.settings import settings_options
from recovery.cli.state_common import json_text, short
from recovery.cli.tables import table
from recovery.operational.steps.quarantine import WaitingKey, Wanted, drop, entries_of, entry_json, lines_of, replay
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import OwnerAccess

if TYPE_CHECKING:
    from recovery.spark.run.replay_trial import TriedKey

F = TypeVar("F", bound=Callable[..., Any])
SHOWN_ROWS = 5
SHOWN_KEYS = 20
TRIAL_MASTER = "local[1]"
"""A trial needs Spark to build the flow, and runs no tasks."""
OUTCOMES: tuple[Literal["passes", "fails", "waits"], ...] = ("passes", "fails", "waits")
NAMED = "a file of this machine"


@click.group(cls=Summaries)
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
    elif not found:
        say("nothing is in quarantine")
    else:
        say(_keys_text(found))
        for each in found:
            if each.finding is not None:
                say(one_line(f"step {each.step!r}, key {each.key!r}: {each.finding}"))


@quarantine.command()
@which_options
@json_option
def show(directory: Path, wanted: Wanted, access: OwnerAccess, as_json: bool) -> None:
    """Show the rows in quarantine with their errors.

    Shows them in the order in which they came. Reads only, also during a run; shows the newest closed epoch.
    """
    at = store_to_read(directory, access).at()
    keys = wanted.keys(at)
    found = (entry_json(*each) for each in entries_of(at, keys))
    if as_json:
        print_json(list(found))
        return
    if not keys:
        say("nothing is in quarantine")
    for entry in found:
        _say_entry(entry)


@quarantine.command()
@which_options
@option("-o", "--output-file", metavar="FILE|-", default="-", show_default=True,
        help="Where to write; `-` is standard output. A file is replaced as a whole.")  # fmt: skip
def export(directory: Path, wanted: Wanted, access: OwnerAccess, output_file: str) -> None:
    """Write the rows in quarantine as lines of JSON.

    Each line has the rows of one key in one micro-batch: as JSON, and with their types as an Arrow stream in base64.
    """
    at = store_to_read(directory, access).at()
    lines = lines_of(at, wanted.keys(at))
    if output_file == "-":
        for line in lines:
            echo_json(line)
    else:
        _write(output_file, lines)


@quarantine.command(name="replay")
@which_options
@click.argument("flow", metavar="[MODULE_OR_FILE[:FLOW]]", required=False)
@dry_run_option("Give the rows to the steps of MODULE_OR_FILE[:FLOW], as its code is now, and say which pass and which "
                "fail; change nothing. The calls are made in this process, also during a run.")  # fmt: skip
@option("--jars", metavar="A.jar,B.jar", help="With --dry-run: jars that the flow's sources need.")
@option("--packages", metavar="GROUP:ARTIFACT:VERSION,...", help="With --dry-run: such jars from Maven.")
@config_option("keep_steps", help="With --dry-run: as --keep-step of the run.")
@settings_options
@json_option
def replay_(
    directory: Path,
    wanted: Wanted,
    access: OwnerAccess,
    flow: str | None,
    dry_run: bool,
    jars: str | None,
    packages: str | None,
    keep_steps: tuple[str, ...],
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """Let the next run give the rows to their step again.

    The rows come in the first micro-batch, in their order, before newer rows of their keys. Rows that fail again return
    to quarantine. End the run first, and correct the code. This is an epoch of its own: going back before it undoes it.
    """
    if dry_run != (flow is not None):
        raise click.UsageError("To try a replay, give --dry-run DIR FLOW.")
    if not dry_run:
        _only_of_dry_run("jars", "packages", "keep_steps", "conf", "properties_file")
    if flow is None:
        chosen, epoch = replay(store_at(directory, access), wanted, SystemClock())
        _done(chosen, epoch, "the next run replays", as_json, {"dry_run": False})
        return
    at = store_to_read(directory, access).at()
    keys = wanted.keys(at)
    tried = list(_tried(at, keys, flow, directory, jars, packages, keep_steps, conf)) if keys else []
    if as_json:
        print_json({"dry_run": True, "epoch": None, "keys": [_tried_json(each) for each in tried]})
    elif not tried:
        say("nothing of that is in quarantine")
    else:
        say(_tried_text(tried))


def _only_of_dry_run(*names: str) -> None:
    """Raise UsageError if one of these options is given: without --dry-run a replay builds no flow."""
    ctx = click.get_current_context()
    for each in ctx.command.params:
        if each.name in names and ctx.get_parameter_source(each.name) == ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{each.opts[0]} needs --dry-run: the run that replays the rows takes it.")


def _tried(
    at: Snapshot,
    keys: Sequence[WaitingKey],
    target: str,
    directory: Path,
    jars: str | None,
    packages: str | None,
    keep_steps: tuple[str, ...],
    conf: dict[str, str],
) -> Iterator[TriedKey]:
    from recovery.cli.flow_loader import import_paths, load_flow
    from recovery.spark.jvm.jars import with_jars
    from recovery.spark.jvm.session import create_session, launching, prepare_environment
    from recovery.spark.jvm.session_end import stopping

    prepare_environment(*import_paths(target))
    flow, conf = load_flow(target), with_jars(conf, jars, packages)
    with launching(flow.name, master=TRIAL_MASTER, conf=conf):
        from recovery.spark.run.replay_trial import try_replay

        made = create_session(flow.name, master=TRIAL_MASTER, conf=conf)
    with stopping(made) as spark:
        yield from try_replay(at, keys, flow, spark, directory, SystemClock(), keep_steps)


@quarantine.command(name="drop")
@which_options
@option("--save", metavar="FILE", help="First write what is dropped to this file, like `export`.")
@option("--no-save", is_flag=True, help="Do not keep what is dropped.")
@yes_option
@json_option
def drop_(
    directory: Path, wanted: Wanted, access: OwnerAccess, save: str | None, no_save: bool, yes: bool, as_json: bool
) -> None:
    """Discard rows in quarantine; asks first.

    Shows the keys, and discards exactly what it has shown: if an epoch was closed meanwhile, nothing. Later rows of the
    keys pass again. End the run first. This is an epoch of its own: going back before it undoes it.
    """
    if (save is None) != no_save:
        raise click.UsageError("Give --save FILE, or --no-save.")
    store = store_at(directory, access)
    at = store.at()
    keys = wanted.keys(at)
    if keys and not yes:
        tell(_keys_text(keys[:SHOWN_KEYS]))
        if len(keys) > SHOWN_KEYS:
            tell(f"… and {counted(len(keys) - SHOWN_KEYS, 'more key', 'more keys')}")
        ask(f"Drop {_counts(keys)}?", yes)
    keep = partial(_write, save) if save is not None else _ignore
    _done(keys, drop(store, at, keys, keep, SystemClock()), "dropped", as_json)


def _write(file: str, lines: Iterable[str]) -> None:
    write_whole(local_path(file, NAMED), (f"{line}\n" for line in lines), private=True)


def _ignore(lines: Iterable[str]) -> None:
    """Keep nothing of what is dropped."""


def _keys_text(keys: Sequence[WaitingKey]) -> str:
    rows = (
        (
            one_line(each.step), one_line(each.key), each.note.rows, format_time(each.note.since_ms),
            "next run" if each.replays else None, one_line(each.note.error),
        )
        for each in keys
    )  # fmt: skip
    return table(("step", "key", "rows", "since", "replay", "newest error"), rows)


def _counts(keys: Sequence[WaitingKey]) -> str:
    return f"{counted(sum(each.note.rows for each in keys), 'row')} of {counted(len(keys), 'key')}"


def _done(
    chosen: Sequence[WaitingKey], epoch: Epoch | None, what: str, as_json: bool, more: dict[str, Any] | None = None
) -> None:
    if as_json:
        print_json({**(more or {}), "epoch": epoch, "keys": [each.as_json() for each in chosen]})
    elif not chosen:
        say("nothing of that is in quarantine")
    else:
        closed = "" if epoch is None else f"epoch {epoch} closed: "
        say(f"{closed}{what} {_counts(chosen)}")


def _tried_json(tried: TriedKey) -> dict[str, Any]:
    entries = [
        {
            "number": each.number,
            "rows": each.rows,
            "outcome": each.outcome,
            "error": None if each.failure is None else msgspec.to_builtins(each.failure),
        }
        for each in tried.entries
    ]
    counts: dict[str, int] = {outcome: tried.rows(outcome) for outcome in OUTCOMES}
    return {**tried.key.as_json(), **counts, "new_error": tried.error, "entries": entries}


def _tried_text(tried: Sequence[TriedKey]) -> str:
    rows = [
        (
            one_line(each.key.step), one_line(each.key.key), *map(each.rows, OUTCOMES),
            None if each.error is None else one_line(each.error),
        )
        for each in tried
    ]  # fmt: skip
    passes, fails, waits = (sum(each.rows(outcome) for each in tried) for outcome in OUTCOMES)
    behind = f", {waits:,} behind those that fail" if waits else ""
    summary = f"of {_counts([each.key for each in tried])}, {passes:,} would pass and {fails:,} fail{behind}"
    return f"{table(('step', 'key', *OUTCOMES, 'error'), rows)}\n{summary}"


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
