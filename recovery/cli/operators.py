"""Shared by the commands on Spark's own state: options, a session, and the display of operators and rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from recovery.cli.common import format_size, print_json, say
from recovery.cli.option import option
from recovery.cli.owners import to_read
from recovery.cli.tables import table
from recovery.errors import ConfigurationError, StateNotFoundError
from recovery.operators.choose import WantedState, choose_operator
from recovery.operators.held import held_operators
from recovery.planning.health import NOT_MEASURED, format_bytes
from recovery.storage.snapshot import snapshot_at
from recovery.storage.store import OwnerAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])


def operator_options(text: str) -> Callable[[F], F]:
    """Return what adds --operator, with this help, and --store, --variable and --timers, which select a part of its
    state."""

    def added(function: F) -> F:
        for add in (
            option("--timers", is_flag=True,
                   help="With --operator: the registered timers of `transformWithState`, one row each, with the time "
                        "at which they expire, in milliseconds since 1970."),
            option("--variable", metavar="NAME", without="the only one",
                   help="With --operator: which state variable of `transformWithState`."),
            option("--store", metavar="NAME", without="the only one",
                   help="With --operator: which of the operator's stores; of a join also `left` or `right`, the rows "
                        "of that side."),
            option("--operator", type=click.IntRange(min=0), metavar="N", help=f"{text} Starts Spark."),
        ):  # fmt: skip
            function = add(function)
        return function

    return added


def wanted_state(operator: int | None, store: str | None, variable: str | None, *, timers: bool) -> WantedState:
    """Return the state that --operator, --store, --variable and --timers name; None: no operator is wanted."""
    if operator is None and (store is not None or variable is not None or timers):
        raise click.UsageError("--store, --variable and --timers need --operator.")
    return WantedState(operator or 0, store, variable, timers)


def refused_operator_option(function: F) -> F:
    """Add --operator to commands that write, only to refuse it: nobody may change native state."""

    def refuse(_: click.Context, __: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise ConfigurationError(
                "the state of Spark's own operators cannot be changed",
                cause="Spark owns these files: recovery stores them unchanged.",
                remedy="Go back to an epoch before the mistake: python -m recovery run … --resume-after E",
            )

    return option("--operator", metavar="N", expose_value=False, callback=refuse, is_eager=True, hidden=True)(function)


def session(conf: Mapping[str, str]) -> AbstractContextManager[SparkSession]:
    """Return a context with a Spark session for one command."""
    from recovery.spark.jvm.session import create_session
    from recovery.spark.jvm.session_end import stopping

    return stopping(create_session("recovery checkpoint", conf=conf))


def operators_text(operators: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of operators, as `operators_at` returns them; or without rows, as `StatefulOperator.as_json`
    does."""
    counted = any("rows" in each for each in operators)
    measured = ("rows", "removed", "memory") if counted else ()
    return table(
        ("operator", "name", "stores", "partitions", *measured, "versions", "files", "size"),
        (
            (
                each["operator"],
                each["name"] or None,
                _stores(each),
                each["partitions"],
                *(_measured(each) if counted else ()),
                _span(each["oldest_version"], each["newest_version"]),
                each["files"],
                format_size(each["bytes"]),
            )
            for each in operators
        ),
    )


def _measured(operator: Mapping[str, Any]) -> tuple[Any, ...]:
    rows, work = operator["rows"], operator["work"]
    removed = (NOT_MEASURED, NOT_MEASURED) if work is None else (work["removed"], format_bytes(work["memory_bytes"]))
    return ("unknown" if rows is None else rows, *removed)


def _stores(operator: Mapping[str, Any]) -> str:
    inside = [*operator["variables"], *(["timers"] if operator["timers"] else [])]
    return ", ".join(operator["stores"]) + (f" ({', '.join(inside)})" if inside else "")


def _span(oldest: int | None, newest: int | None) -> str | None:
    return f"{oldest} to {newest}" if oldest != newest else None if newest is None else str(newest)


def print_state(
    directory: Path,
    access: OwnerAccess,
    operator: int,
    *,
    epoch: int | None,
    store: str | None,
    variable: str | None,
    conf: Mapping[str, str],
    as_json: bool,
    since: int | None = None,
    limit: int | None = None,
    key: str | None = None,
    timers: bool = False,
) -> None:
    """Print the rows of an operator's state, sorted. Reports unreadable state before Spark is started. With owners,
    reads whole copies.

    key: print the value of this key alone; raises StateNotFoundError if it has none.
    """
    found = to_read(directory, access)
    at = snapshot_at(found, epoch)
    if since is not None:
        snapshot_at(found, since)
    choose_operator(held_operators(at), WantedState(operator, store, variable, timers), at.epoch)
    with session(conf) as spark:
        from recovery.spark.sources.operator_state import native_state, of_key, rows_as_json

        frame = native_state(
            spark, found, operator=operator, epoch=at.epoch, store=store, variable=variable, since=since,
            timers=timers,
        )  # fmt: skip
        columns = [name for name in frame.columns if name != "partition_id"]
        rows, more = rows_as_json(frame if key is None else of_key(frame, key), limit)
    if key is not None and not rows:
        what = "timer" if timers else "state"
        raise StateNotFoundError(f"operator {operator} has no {what} of key {key!r:.200} at epoch {at.epoch}")
    if as_json:
        print_json({"directory": str(directory), "epoch": at.epoch, "operator": operator, "store": store,
                    "variable": variable, "timers": timers, "changes_since": since, "rows": rows,
                    "more": more})  # fmt: skip
        return
    if key is not None:
        for row in rows:
            values = {name: row[name] for name in columns if name != "key"}
            say(_text(values["value"] if list(values) == ["value"] else values))
        return
    say(table(columns, ([_cell(row[name]) for name in columns] for row in rows)))
    if more:
        say(f"only the first {limit} are shown; --limit shows more")


def _cell(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
