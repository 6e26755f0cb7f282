"""`recovery history DIR --step S --key K`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.base.reserved import EPOCH_STEP
from recovery.cli.common import format_time, json_option, print_json, say
from recovery.cli.operational import chosen_access, state_beside, state_options
from recovery.cli.operators import operator_options, session, wanted_state
from recovery.cli.option import option
from recovery.cli.readable import READABLE, Readable
from recovery.cli.settings import settings_options
from recovery.cli.state_common import json_text
from recovery.cli.tables import table
from recovery.errors import StateNotFoundError
from recovery.operational.steps.step_history import History, Version, key_history, mark_history
from recovery.operational.targets import StepTarget
from recovery.operational.values import to_json
from recovery.operators.choose import WantedState, choose_operator
from recovery.operators.held import held_operators
from recovery.planning.comparing import ABSENT, Difference
from recovery.storage.snapshot import snapshot_at
from recovery.storage.store import Store

SHOWN_CHANGES = 5


@click.command()
@click.argument("directory", metavar="DIR", type=READABLE, envvar="RECOVERY_DIRECTORY")
@option("--step", metavar="STEP", help="The step of the flow.")
@option("--key", metavar="KEY", help="The [key](file-format.md#keys) whose history is shown: of the step, or with "
        "--operator the text of a key of one text column, or a JSON object of the key's columns.")  # fmt: skip
@option("--hwm", metavar="KEY", help="In place of --step and --key: a [high-water mark](#hwm), with the epochs that "
        "moved it.")  # fmt: skip
@operator_options("In place of --step: one of [Spark's own operators](native-state.md#the-history-of-a-key).")
@option("--show-input", was="--input", is_flag=True, help="Show which bytes of the files of the format [`appended`]"
        "(appended.md) the epoch of each version read.")  # fmt: skip
@state_options
@settings_options
@json_option
def history(
    directory: Readable,
    step: str | None,
    key: str | None,
    hwm: str | None,
    operator: int | None,
    store: str | None,
    variable: str | None,
    timers: bool,
    show_input: bool,
    environment: str,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """Show how one key came to its value.

    Shows each held version, oldest first, and what changed in it.

    Reads only, also during a run. The backup interval (-b) of the run sets how far back the history reaches. DIR may
    also be a place of backups; a chain of incremental backups reaches back to the first of them.
    """
    given = [each is not None for each in (step, hwm, operator)]
    if given.count(True) != 1 or (hwm is None) != (key is not None):
        raise click.UsageError("Give --step and --key, or --hwm, or --operator and --key.")
    wanted = wanted_state(operator, store, variable, timers=timers)
    now: dict[str, Any] = {}
    if hwm is not None:
        at = directory.store(chosen_access())
        found = mark_history(StepTarget(at, EPOCH_STEP, SystemClock()), environment, hwm, with_input=show_input)
        now = _mark_now(at, environment, hwm, found)
    elif operator is not None:
        files = directory.to_read(chosen_access()).path
        found = _operator_history(files, wanted, str(key), conf, with_input=show_input)
        now = {"operator": operator, "store": store, "variable": variable, "timers": timers}
    else:
        assert step is not None
        assert key is not None
        at = directory.store(chosen_access())
        found = key_history(StepTarget(at, step, SystemClock()), step, key, with_input=show_input)
    if as_json:
        print_json({"directory": directory.shown, **found.as_json(), **now})
        return
    say(_versions_text(found.versions))
    if now.get("now"):
        mark = now["now"]
        say(one_line(f"set outside of epochs, {format_time(mark['changed_ms'])}: {json_text(mark['value'])}"))
    elif "now" in now:
        say("removed since, outside of epochs")
    if show_input:
        say()
        say(_input_text(found.versions))
    say(f"held: epochs {found.oldest} to {found.newest}")


def _operator_history(
    directory: Path, wanted: WantedState, key: str, conf: Mapping[str, str], *, with_input: bool
) -> History:
    """Return the history of a key of one of Spark's own operators. Reports unreadable state before Spark is started."""
    at = snapshot_at(directory)
    choose_operator(held_operators(at), wanted, at.epoch)
    with session(conf) as spark:
        from recovery.spark.sources.operator_history import native_history

        return native_history(
            spark, directory, key, operator=wanted.operator, store=wanted.store, variable=wanted.variable,
            timers=wanted.timers, with_input=with_input,
        )  # fmt: skip


def _mark_now(at: Store, environment: str, key: str, found: History) -> dict[str, Any]:
    """Return what the mark is now, if it is not the newest version: it was set or removed outside of epochs. Raises
    StateNotFoundError if there is no such mark and never was."""
    state = state_beside(at, environment)
    mark = next((each for each in state.list_hwms() if each.key == key), None)
    last = found.versions[-1].value if found.versions else ABSENT
    if mark is None:
        if not found.versions:
            raise StateNotFoundError(
                f"there is no mark {key!r:.120}",
                path=at.directory,
                remedy="List the marks: python -m recovery hwm list DIR",
            )
        return {} if last is ABSENT else {"now": None}
    value = to_json(mark.value)
    return {} if last is not ABSENT and value == last else {"now": {"value": value, "changed_ms": mark.changed_ms}}


def _input_text(versions: Sequence[Version]) -> str:
    """Return the bytes that each epoch read, one range of a file in a line."""
    rows: list[tuple[object, ...]] = []
    for each in versions:
        if each.input is None:
            rows.append((each.epoch, None, "not known: the epoch before it is not held", None, None))
        elif not each.input:
            rows.append((each.epoch, None, "no stream", None, None))
        for source in each.input or ():
            if source.ranges is None:
                rows.append((each.epoch, source.source, "not a source of the format appended", None, None))
            elif not source.ranges:
                rows.append((each.epoch, source.source, "nothing", None, None))
            rows += [
                (each.epoch, source.source, part.path, str(part.begin), str(part.end)) for part in source.ranges or ()
            ]
    return table(("epoch", "source", "file", "from byte", "to byte"), rows)


def _versions_text(versions: Sequence[Version]) -> str:
    """Return a line for each version; a column for timeouts only if there is one."""
    timeouts = any(each.timeout_ms is not None for each in versions)
    header = ("epoch", "closed", "execution", "micro-batches", "", "value", *["times out"] * timeouts, "changed")
    return table(header, (_row(each, timeouts) for each in versions))


def _row(version: Version, timeouts: bool) -> tuple[object, ...]:
    closed, due = version.closed, version.timeout_ms
    return (
        version.epoch,
        "before what is held" if closed is None else format_time(closed.closed_ms),
        None if closed is None else closed.execution.number,
        _batches(version),
        version.what,
        None if version.value is ABSENT else json_text(version.value),
        *[None if due is None else format_time(due)] * timeouts,
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
