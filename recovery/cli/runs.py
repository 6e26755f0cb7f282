"""`recovery runs DIR` and `recovery runs clean DIR`."""

from __future__ import annotations

from typing import Any

import click

from recovery.base.intervals import format_interval
from recovery.base.wording import counted
from recovery.cli.common import INTERVAL, Summaries, format_time, json_option, print_json, say
from recovery.cli.dry_run import dry_run_option
from recovery.cli.operational import directory_and, open_state, state_options
from recovery.cli.option import limit_option, option
from recovery.cli.tables import table
from recovery.operational.results import status_of
from recovery.operational.runs import DEAD, NODE_STATUSES, Run


class StatusType(click.Choice[str]):
    """A status of a run or node, also in other tools' words, in any case."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(status_of(value) or value, param, ctx)


class ListByDefault(Summaries):
    """Makes `runs DIR` mean `runs list DIR`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "--help", "-h"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ListByDefault)
def runs() -> None:
    """Run history: what ran, when, and how it ended. `recovery runs DIR` is `recovery runs list DIR`."""


@runs.command(name="list")
@click.argument("words", metavar="[DIR]", nargs=-1)
@option("--pipeline", metavar="NAME", without="all", help="Only runs of this flow or pipeline.")
@option("--node", metavar="NAME", without="all", help="Only runs with this node.")
@option("--status", type=StatusType(NODE_STATUSES), without="all",
        help="Only runs with this status; with --node, runs whose node has it. The [words of other tools]"
             "(operational-state.md#run-history) are accepted, in any case.")  # fmt: skip
@option("--days", type=click.FloatRange(min=0), metavar="NUMBER", without="all",
        help="Only runs that began in this many last days.")  # fmt: skip
@limit_option("The most runs to show, newest first.")
@state_options
@json_option
def list_(
    words: tuple[str, ...],
    pipeline: str | None,
    node: str | None,
    status: str | None,
    days: float | None,
    limit: int,
    environment: str,
    as_json: bool,
) -> None:
    """List runs, newest first. A run is dead if its process is gone and did not record how the run ended."""
    directory, _ = directory_and(words, ())
    state = open_state(directory, environment)
    found = state.list_runs(pipeline, node=node, status=status, days=days, limit=limit)
    if as_json:
        print_json([run.as_json() for run in found])
        return
    shown = (
        (
            format_time(run.started_ms),
            run.pipeline,
            run.kind,
            run.status if node is None else run.nodes[node].status,
            _took(run),
            " ".join(f"{name}={value}" for name, value in run.details.items() if _is_shown(name, value)) or "-",
            ", ".join(f"{name}: {one.status}" for name, one in run.nodes.items()) or "-",
            (run.error or "-").splitlines()[0][:80],
        )
        for run in found
    )
    say(table(("started", "pipeline", "kind", "status", "took", "facts", "nodes", "error"), shown))


def _is_shown(name: str, value: object) -> bool:
    """Whether a fact about a run has room in a line: a number, what an edit did, or who did it."""
    return isinstance(value, int) or (name in ("what", "by") and value is not None)


def _took(run: Run) -> str:
    if run.duration_s is not None:
        return format_interval(run.duration_s)
    seen_ms = run.last_seen_ms
    if run.status != DEAD or seen_ms is None:
        return "-"
    return f"unknown, last seen after {format_interval(max(0, seen_ms - run.started_ms) / 1000)}"


@runs.command()
@click.argument("words", metavar="[DIR]", nargs=-1)
@option("--older-than", type=INTERVAL, required=True,
        help="Forget runs that ended longer ago than this, such as 30d.")  # fmt: skip
@dry_run_option("Only show which runs would be forgotten.")
@state_options
@json_option
def clean(words: tuple[str, ...], older_than: float, dry_run: bool, environment: str, as_json: bool) -> None:
    """Forget old runs. The last run of a pipeline and active runs always stay."""
    directory, _ = directory_and(words, ())
    gone = open_state(directory, environment).history.clean(older_than, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "runs": [{"pipeline": run.pipeline, "run_id": run.run_id} for run in gone]})
        return
    say(f"{'would forget' if dry_run else 'forgot'} {counted(len(gone), 'run')}")
