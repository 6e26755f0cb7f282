"""`recovery state scopes` and `clean`."""

from __future__ import annotations

from dataclasses import asdict

import click

from recovery.base.wording import counted
from recovery.cli.common import format_time, json_option, print_json, say
from recovery.cli.dry_run import dry_run_option
from recovery.cli.operational import directory_and, open_state, state_options
from recovery.cli.option import pattern_option
from recovery.cli.tables import table


@click.command()
@click.argument("words", metavar="[DIR]", nargs=-1)
@pattern_option
@state_options
@json_option
def scopes(words: tuple[str, ...], pattern: str | None, environment: str, as_json: bool) -> None:
    """List the scopes that have state, with their keys.

    Scopes are processes, tasks, task instances and assets. Also shows when the first key of a scope expires.
    """
    directory, _ = directory_and(words, ())
    found = open_state(directory, environment).list_scopes(pattern)
    if as_json:
        print_json([asdict(scope) for scope in found])
        return
    rows = (
        (
            scope.kind,
            " ".join(scope.names),
            ", ".join(scope.keys) or "-",
            format_time(scope.changed_ms),
            "never" if scope.expires_ms is None else format_time(scope.expires_ms),
        )
        for scope in found
    )
    say(table(("scope", "name", "keys", "changed", "expires"), rows))


@click.command()
@click.argument("words", metavar="[DIR]", nargs=-1)
@dry_run_option("Only show how many states would be removed.")
@state_options
@json_option
def clean(words: tuple[str, ...], dry_run: bool, environment: str, as_json: bool) -> None:
    """Remove scoped state whose retention has passed.

    Works for all environments, in any backend, also during a run.
    """
    directory, _ = directory_and(words, ())
    count = open_state(directory, environment).clean_expired(dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "expired": count})
    else:
        say(f"{'would remove' if dry_run else 'removed'} {counted(count, 'expired state')}")
