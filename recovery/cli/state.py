"""`recovery state`: list, get, set, merge, clear, edit. All further subcommands have their own files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from recovery.base.printable import one_line, printable
from recovery.cli.asking import ask, check_editor
from recovery.cli.common import Summaries, echo_json, format_time, json_option, print_json, say
from recovery.cli.hwm import VALUES
from recovery.cli.operational import (
    chosen_access,
    chosen_backend,
    directory_and,
    open_state,
    state_options,
)
from recovery.cli.operators import operator_options, print_state, refused_operator_option
from recovery.cli.option import force_option, option, pattern_option
from recovery.cli.owners import store_to_read
from recovery.cli.settings import settings_options
from recovery.cli.state_common import (
    LOCKED,
    RETENTION,
    Where,
    any_key_option,
    ask_of_new_steps,
    done,
    held_epoch_option,
    input_option,
    json_text,
    key_option,
    named,
    short,
    shown,
    step_option,
    with_content,
    writing_options,
)
from recovery.cli.state_files import export, import_, migrate_
from recovery.cli.state_scopes import clean, scopes
from recovery.cli.state_transfer import copy, move
from recovery.cli.tables import table
from recovery.errors import StateLockedError, StateNotFoundError
from recovery.operational.scopes import is_scoped
from recovery.operational.targets import REMOVED, StepTarget, Whole, missing, unknown_step
from recovery.operational.values import parse_json
from recovery.places.address import is_uri

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=Summaries)
def state() -> None:
    """Show and edit operational state, and states of the flow.

    An id names operational state; --step and --key name a state of the flow. An edit of a step is an epoch of its own.

    DIR is optional if RECOVERY_DIRECTORY is set. Without --step, an id is one that `state list` shows.
    """


def native_options(function: F) -> F:
    """Add the options that select state of Spark's own operators, and those of the Spark that reads it."""
    text = "Read the state of this operator of Spark's own, as [`checkpoint show`](#checkpoint) does."
    return operator_options(text)(settings_options(function))


@state.command(name="list")
@click.argument("words", metavar="[DIR]", nargs=-1)
@step_option
@native_options
@held_epoch_option
@pattern_option
@option("--ids", is_flag=True,
        help="Print only ids or keys, one per line. Without --step, a pipe gets only ids in any case.")  # fmt: skip
@state_options
@json_option
def list_(
    words: tuple[str, ...],
    step: str | None,
    operator: int | None,
    store: str | None,
    variable: str | None,
    timers: bool,
    conf: dict[str, str],
    epoch: int | None,
    pattern: str | None,
    ids: bool,
    environment: str,
    as_json: bool,
) -> None:
    """List operational state, and the steps of the flow.

    With --step, lists the keys of that step, with --operator those of one of Spark's own operators. Into a pipe,
    prints only ids, one per line, for `for id in $(recovery state list); do …`.
    """
    directory, _ = directory_and(words, ())
    if operator is not None:
        if step is not None or pattern is not None:
            raise click.UsageError("--operator cannot be combined with --step or --pattern.")
        print_state(
            Path(directory), chosen_access(), operator, epoch=epoch, store=store, variable=variable,
            timers=timers, conf=conf, as_json=as_json,
        )  # fmt: skip
        return
    if timers:
        raise click.UsageError("--timers needs --operator.")
    target = Where(directory, environment, step, epoch).target()
    found = target.entries(pattern)
    if not found and isinstance(target, StepTarget) and step is not None and (unknown := unknown_step(target, step)):
        raise unknown
    steps = [] if step is not None else _steps(directory)
    if as_json:
        print_json([entry.as_json() for entry in found] if step is not None else
                   {"states": [entry.as_json() for entry in found], "steps": steps})  # fmt: skip
        return
    if ids or (step is None and not sys.stdout.isatty()):
        for entry in found:
            say(one_line(entry.name if isinstance(entry.name, str) else entry.name[1]))
        return
    if step is not None:
        say(table(("key", "epoch", "state"), ((e.name[1], e.version, short(e.content)) for e in found)))
        return
    shown = ((e.name, e.version[0], format_time(e.version[1]), short(e.content)) for e in found)
    say(table(("state", "generation", "changed", "content"), shown))
    if steps:
        say(one_line(f"steps: {', '.join(steps)}"))


@state.command()
@click.argument("words", metavar="[DIR] [ID]", nargs=-1)
@step_option
@any_key_option
@native_options
@held_epoch_option
@state_options
@json_option
def get(
    words: tuple[str, ...],
    step: str | None,
    key: str | None,
    operator: int | None,
    store: str | None,
    variable: str | None,
    timers: bool,
    conf: dict[str, str],
    epoch: int | None,
    environment: str,
    as_json: bool,
) -> None:
    """Print one state as JSON, in the form that `set` accepts. Ends with 44 if there is no such state."""
    if operator is not None:
        if step is not None or key is None:
            raise click.UsageError("--operator needs --key, and cannot be combined with --step.")
        directory, _ = directory_and(words, ())
        print_state(
            Path(directory), chosen_access(), operator, epoch=epoch, store=store, variable=variable,
            timers=timers, conf=conf, as_json=as_json, key=key,
        )  # fmt: skip
        return
    if timers:
        raise click.UsageError("--timers needs --operator.")
    directory, name = named(words, step, key)
    target = Where(directory, environment, step, epoch).target()
    entry = target.find(name)
    if entry is None:
        raise missing(target, name)
    if as_json:
        print_json(entry.as_json())
    else:
        echo_json(json_text(entry.content))


@state.command(name="set", context_settings=VALUES)
@click.argument("words", metavar="[DIR] [ID] [JSON]", nargs=-1, type=click.UNPROCESSED)
@key_option
@input_option
@option("--retention", type=RETENTION, metavar="INTERVAL|never", without="the state's own, from now on",
        help="Of [scoped state](operational-state.md#scoped-state): forget the value after this time; 0 is `never`. A "
             "fixed end stays.")  # fmt: skip
@writing_options
def set_(
    words: tuple[str, ...],
    step: str | None,
    key: str | None,
    input_file: str | None,
    retention: str | float | None,
    force: bool,
    yes: bool,
    environment: str,
    as_json: bool,
) -> None:
    """Set one state to a JSON value, in the form that `get` prints. Asks before it overwrites a state, and before it
    makes a step.

    The JSON of scoped state (process/…, task/…, task-instance/…, asset/…) is the value of that state.
    """
    directory, name, content = with_content(words, step, key, input_file)
    if retention is not None and not (isinstance(name, str) and is_scoped(name)):
        raise click.UsageError("--retention goes with the id of scoped state only.")
    where = Where(directory, environment, step, force=force)
    target = where.target()
    before = target.find(name)
    if before is not None and json_text(before.content) != json_text(content):
        ask(f"{shown(name)} is {short(before.content)}. Overwrite it?", yes or force)
    ask_of_new_steps(target, [name], yes or force)
    given = content if retention is None else Whole(content, retention=retention)
    done(target.write("set", {name: given}, {name: before}), as_json)


@state.command(name="merge", context_settings=VALUES)
@click.argument("words", metavar="[DIR] [ID] [JSON]", nargs=-1, type=click.UNPROCESSED)
@key_option
@input_option
@option("--from-state-id", "source", metavar="ID", help="Merge the content of this state, in place of JSON.")
@writing_options
def merge_(
    words: tuple[str, ...],
    step: str | None,
    key: str | None,
    input_file: str | None,
    source: str | None,
    force: bool,
    yes: bool,
    environment: str,
    as_json: bool,
) -> None:
    """Merge a JSON object into one state.

    Members of the object, and of objects in it, are set one by one; everything else is replaced. In scoped state, a
    date and the like is one value, and is replaced.
    """
    if source is not None:
        if step is not None or input_file is not None:
            raise click.UsageError("--from-state-id goes with neither --step nor --input-file.")
        directory, name = named(words, step, key)
        where = Where(directory, environment, step, force=force)
        given = where.target().find(source)
        if given is None:
            raise missing(where.target(), source)
        content = given.content
    else:
        directory, name, content = with_content(words, step, key, input_file)
        where = Where(directory, environment, step, force=force)
    while True:
        target = where.target()
        before = target.find(name)
        merged = content if before is None else before.merged(content)
        if before is not None and json_text(before.content) != json_text(merged) and not (yes or force):
            ask(f"{shown(name)} becomes {short(merged)}. Go on?", False)
        ask_of_new_steps(target, [name], yes or force)
        try:
            done(target.write("merge", {name: merged}, {name: before}), as_json)
            return
        except StateLockedError:
            # Another command has changed it meanwhile, and has ended: this one merges into what that has written.
            if where.target().find(name) == before:
                raise


@state.command()
@click.argument("words", metavar="[DIR] [ID]", nargs=-1)
@key_option
@pattern_option
@option("--all", "every", is_flag=True, help="Remove all states, or with --step all keys of the step.")
@writing_options
def clear(
    words: tuple[str, ...],
    step: str | None,
    key: str | None,
    pattern: str | None,
    every: bool,
    force: bool,
    yes: bool,
    environment: str,
    as_json: bool,
) -> None:
    """Remove one state; with --pattern or --all, several.

    A tombstone stays, so that no older export brings a removed state back.
    """
    if every and pattern is not None:
        raise click.UsageError("Give --all or --pattern.")
    if pattern is None and not every:
        directory, name = named(words, step, key)
        target = Where(directory, environment, step, force=force).target()
        entry = target.find(name)
        if entry is None:
            raise missing(target, name)
        found = [entry]
    else:
        directory, _ = directory_and(words, ())
        target = Where(directory, environment, step, force=force).target()
        found = target.entries(pattern)
        if not found:
            raise StateNotFoundError("there is no state" if every else f"no state matches {pattern!r:.120}")
    names = [entry.name for entry in found]
    listed = ", ".join(map(shown, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    ask(f"Remove {listed}?", yes or force)
    done(target.write("clear", dict.fromkeys(names, REMOVED), {e.name: e for e in found}), as_json)


@state.command()
@click.argument("words", metavar="[DIR] [ID]", nargs=-1)
@step_option
@refused_operator_option
@key_option
@force_option(f"Go on although {LOCKED}.")
@state_options
@json_option
def edit(
    words: tuple[str, ...], step: str | None, key: str | None, force: bool, environment: str, as_json: bool
) -> None:
    """Edit one state as JSON in $EDITOR. Saving the text unchanged changes nothing."""
    directory, name = named(words, step, key)
    target = Where(directory, environment, step, force=force).target()
    before = target.find(name)
    if before is None:
        raise missing(target, name)
    check_editor()
    text = printable(json.dumps(before.content, indent=2, ensure_ascii=False)) + "\n"
    edited = click.edit(text, extension=".json")
    if edited is None or json_text(parse_json(edited)) == json_text(before.content):
        done("nothing to change", as_json)
        return
    done(target.write("edit", {name: parse_json(edited)}, {name: before}), as_json)


@state.command()
@click.argument("words", metavar="[DIR]", nargs=-1)
@state_options
@json_option
def backend(words: tuple[str, ...], environment: str, as_json: bool) -> None:
    """Show where operational state is, and which setting said so."""
    directory, _ = directory_and(words, ())
    place = open_state(directory, environment).backend.location
    option = click.get_current_context().meta.get("recovery.backend.source")
    source = "DIR" if chosen_backend() is None or (words and is_uri(words[0])) else str(option)
    if as_json:
        print_json({"backend": place, "from": source, "environment": environment})
    else:
        say(one_line(f"{place} (from {source})"))


def _steps(directory: str) -> list[str]:
    if is_uri(directory):
        return []
    return store_to_read(Path(directory), chosen_access()).at().steps()


for command in (copy, move, export, import_, migrate_, scopes, clean):
    state.add_command(command)
