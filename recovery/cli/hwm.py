"""`recovery hwm list|get|set|rm`."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import click

from recovery.base.wording import counted
from recovery.cli.common import Summaries, echo_json, format_time, json_option, print_json, say, tell
from recovery.cli.operational import directory_and, open_state, state_options
from recovery.cli.option import force_option, pattern_option
from recovery.cli.tables import table
from recovery.errors import StateNotFoundError, StateValueError
from recovery.operational.marks import is_future
from recovery.operational.values import dumps, loads

# A value may begin with a minus.
VALUES = {"ignore_unknown_options": True}


@click.group(cls=Summaries)
def hwm() -> None:
    """High-water marks: how far something has been loaded. Changes are durable immediately, also during a run."""


@hwm.command(name="list")
@click.argument("words", metavar="[DIR]", nargs=-1)
@pattern_option
@state_options
@json_option
def list_(words: tuple[str, ...], pattern: str | None, environment: str, as_json: bool) -> None:
    """List the marks, with their types and times of change."""
    directory, _ = directory_and(words, ())
    found = open_state(directory, environment).list_hwms(pattern)
    if as_json:
        print_json([mark.as_json() for mark in found])
        return
    now = datetime.now(tz=UTC)
    rows = (
        (m.key, type(m.value).__name__, _plain(m.value) + _note(m.value, now), format_time(m.changed_ms)) for m in found
    )
    say(table(("key", "type", "mark", "changed"), rows))


@hwm.command()
@click.argument("words", metavar="[DIR] KEY", nargs=-1)
@state_options
@json_option
def get(words: tuple[str, ...], environment: str, as_json: bool) -> None:
    """Print the mark of KEY, in the form that `set` accepts. Ends with 44 if there is no such mark."""
    directory, [key] = directory_and(words, ("KEY",))
    found = [mark for mark in open_state(directory, environment).list_hwms() if mark.key == key]
    if not found:
        raise StateNotFoundError(
            f"there is no mark {key!r:.120}",
            path=directory,
            remedy="List what exists: python -m recovery hwm list DIR",
        )
    if as_json:
        print_json(found[0].as_json())
    else:
        echo_json(dumps(found[0].value))


@hwm.command(name="set", context_settings=VALUES)
@click.argument("words", metavar="[DIR] KEY VALUE", nargs=-1, type=click.UNPROCESSED)
@force_option("Go on although VALUE is lower than the mark, or of another type.")
@state_options
@json_option
def set_(words: tuple[str, ...], force: bool, environment: str, as_json: bool) -> None:
    """Move the mark of KEY forward to VALUE.

    VALUE is JSON, or a bare text: 5, 2.5, true, abc, '{"$date": "2013-01-31"}', '{"$decimal": "1.10"}'.
    """
    directory, [key, text] = directory_and(words, ("KEY", "VALUE"))
    state = open_state(directory, environment)
    value = parse_value(text)
    state.set_hwm(key, value, force=force)
    if is_future(value, datetime.now(tz=UTC)):
        tell(f"the mark {key} is in the future: until then loads skip new rows")
    if as_json:
        print_json(next(mark.as_json() for mark in state.list_hwms() if mark.key == key))


@hwm.command()
@click.argument("words", metavar="[DIR] KEY...", nargs=-1)
@state_options
@json_option
def rm(words: tuple[str, ...], environment: str, as_json: bool) -> None:
    """Remove marks: the next load begins at the beginning."""
    directory, keys = directory_and(words, ("KEY",), more=True)
    count = open_state(directory, environment).remove_hwm(*keys)
    if as_json:
        print_json({"removed": count})
    else:
        say(f"removed {counted(count, 'mark')}")


def parse_value(text: str) -> Any:
    """Return the value of a command line word: parsed if it is JSON, else the text itself."""
    if text.lstrip("+-").lower() in ("nan", "inf", "infinity"):
        raise StateValueError(
            f"{text!r} cannot be a high-water mark",
            cause="NaN has no order among numbers.",
            remedy="Give a number; to set it as text, write it in quotes: '\"nan\"'.",
        )
    try:
        return loads(text)
    except StateValueError:
        if text[:1] in ("{", "[", '"') or _is_too_great(text):
            raise
        return text


def _is_too_great(text: str) -> bool:
    """Whether a text is a number that no float can hold."""
    try:
        return text.lstrip("-")[:1].isdigit() and math.isinf(float(text))
    except ValueError:
        return False


def _note(value: Any, now: datetime) -> str:
    return " (in the future)" if is_future(value, now) else ""


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else repr(value) if isinstance(value, bytes) else str(value)
