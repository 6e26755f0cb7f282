"""`recovery status DIR`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from recovery.backup.drills import drill_text
from recovery.base.clock import SystemClock
from recovery.base.intervals import format_interval
from recovery.base.printable import one_line
from recovery.base.wording import ago, counted, listed
from recovery.cli.common import (
    directory_argument,
    format_size,
    format_time,
    json_option,
    print_json,
    say,
    style,
)
from recovery.cli.config_options import threshold_option
from recovery.cli.operators import operators_text
from recovery.cli.owners import owner_options, owners_text, say_links, store_at
from recovery.cli.tables import table
from recovery.errors import with_path
from recovery.host.processes import describe_holder
from recovery.planning.going_back import after_text
from recovery.planning.health import Finding, Level, parse_targets, worst
from recovery.planning.lag import InputLag
from recovery.planning.owner_facts import SeenOwner
from recovery.planning.sink_work import SinkWork
from recovery.report.facts import Facts, gather
from recovery.report.status import status_json
from recovery.storage.store import OwnerAccess
from recovery.wire.looking import seen_owners

READ_ATTEMPTS = 5

T = TypeVar("T")


@click.command()
@directory_argument
@threshold_option
@owner_options
@json_option
def status(directory: Path, thresholds: dict[str, str], access: OwnerAccess, as_json: bool) -> None:
    """Show partitions, epochs, executions and sizes.

    Also shows which epochs are closed, and from which of them a run can resume.

    Reads only, also during a run.
    """
    store, clock = store_at(directory, access), SystemClock()
    owners = seen_owners(store.owners, clock)
    gathered = gather(store, parse_targets(thresholds), clock.wall_ms(), owners=owners)
    facts = status_json(store, gathered)
    if as_json:
        print_json(facts)
        return
    _say_status(directory, facts, gathered)
    for note in store.notes:
        say(one_line(note))


def _say_heading(directory: Path, facts: dict[str, Any], gathered: Facts) -> None:
    flow = f"flow {one_line(facts['flow'])}" if facts["flow"] else "no flow yet"
    store = f"store {one_line(facts['store_id'])}, {flow}" if facts["store_id"] else "no store that can be read"
    say(f"{one_line(directory)}: {store}")
    for origin in gathered.origins:
        say(one_line(origin.text(format_time)))
    if facts["standby"]:
        say(one_line(_standby_text(facts["standby"])))
    holder = facts["lock"]
    if holder:
        say(one_line(f"in use by {describe_holder(holder)}"))
    say_links(facts["links"])
    _say_hydration(facts["hydrating"])


def _say_status(directory: Path, facts: dict[str, Any], gathered: Facts) -> None:
    _say_heading(directory, facts, gathered)
    say()
    rows = [
        (
            p["file"], f"{p['oldest_epoch']} to {p['newest_epoch']}", p["last_execution"],
            format_time(p["closed_ms"]), p["keys"], format_size(p["size_bytes"]), format_size(p["log_bytes"]),
        )
        if p["error"] is None
        else (p["file"], p["error"]["error"], None, None, None, None, None)
        for p in facts["partitions"]
    ]  # fmt: skip
    say(table(("file", "epochs", "execution", "closed", "keys", "size", "log"), rows))
    say()
    if facts["problem"]:
        say(f"It cannot be resumed: {with_path(facts['problem']['found'], facts['problem']['path'])}")
        if facts["problem"]["remedy"]:
            say(one_line(f"What to do: {facts['problem']['remedy']}"))
    else:
        say(
            f"a run resumes at epoch {facts['resume_epoch']}, {after_text(facts['resume_after'])}; "
            f"--resume-after {listed(facts['window'])}"
        )
        if facts["executions"]:
            kept_s = facts["executions"][-1]["backup_interval_s"]
            kept = f"for {format_interval(kept_s)}" if kept_s else "no longer than needed"
            say(f"superseded snapshots are kept {kept}, unless a run sets another -b")
    behind = [p for p in facts["partitions"] if p["error"] is None and p["folded_epoch"] < p["newest_epoch"]]
    if behind:
        oldest = min(p["folded_epoch"] for p in behind)
        say(f"epochs after {oldest} are only logged; keys and sizes are as of epoch {oldest}")
    say(one_line(f"steps: {', '.join(facts['steps']) or 'none yet'}"))
    say(health_text(gathered.health))
    _say_around(facts, gathered)
    if facts["operators"]:
        say()
        say(operators_text(facts["operators"]))
    if facts["executions"]:
        say()
        say(
            table(
                ("execution", "started", "after epoch", "epochs held", "host", "pid"),
                (
                    (
                        e["number"],
                        format_time(e["started_ms"]),
                        e["resume_epoch"] - 1,
                        e["epochs"],
                        e["host"],
                        str(e["pid"]),
                    )
                    for e in facts["executions"][-10:]
                ),
            )
        )


def _say_around(facts: dict[str, Any], gathered: Facts) -> None:
    """Print what the sink, owners, quarantines, a wait, the replica and the sources are at."""
    if gathered.epochs and gathered.epochs[-1].sink is not None:
        say(_sink_text(gathered.epochs[-1].sink))
    _say_owners(gathered.owners, facts["replaced"])
    _say_quarantine(facts["quarantine"])
    if facts["waiting"]:
        say(one_line(f"waiting since {format_time(facts['waiting']['since_ms'])}: {facts['waiting']['what']}"))
    if gathered.drill is not None:
        say(one_line(f"last drill: {drill_text(gathered.drill, gathered.now_ms)}"))
    if facts["replica"]:
        say(one_line(_replica_text(facts["replica"])))
    for line in lag_lines(gathered.lag):
        say(one_line(line))


def _say_quarantine(steps: Mapping[str, Mapping[str, Any]]) -> None:
    for step, each in steps.items():
        since = format_time(each["since_ms"])
        waits = f"{counted(each['rows'], 'row')} of {counted(each['keys'], 'key')} in quarantine since {since}"
        say(one_line(f"step {step}: {waits}{'; the next run replays some' if each['replays'] else ''}"))


def _say_owners(owners: Sequence[SeenOwner], replaced: Mapping[str, Any] | None) -> None:
    if replaced is not None:
        say(one_line(_replaced_text(replaced)))
    if owners:
        say()
        say(owners_text(owners))
        for each in owners:
            say(one_line(f"{each.location}: {f'held by {each.holder}' if each.holder else 'no run has it'}"))
        say()


def _replaced_text(replaced: Mapping[str, Any]) -> str:
    came = ", ".join(f"{name.removesuffix('.sqlite3')} at {at}" for name, at in replaced["owners"].items())
    why = f", since {', '.join(replaced['lost'])} was lost" if replaced["lost"] else ""
    return f"came back {format_time(replaced['replaced_ms'])} as of epoch {replaced['epoch']}{why}: {came}"


def _standby_text(facts: Mapping[str, Any]) -> str:
    closed = f", closed {format_time(facts['closed_ms'])}" if facts["closed_ms"] is not None else ""
    at = f"as of epoch {facts['epoch']}{closed}" if facts["backup"] else "without a backup yet"
    missing = f"; {listed(facts['incomplete'])} has to be fetched again" if facts["incomplete"] else ""
    return f"a standby that follows {facts['source']}, {at}{missing}; recovery promote makes it an ordinary one"


def _say_hydration(parts: Sequence[Mapping[str, Any]]) -> None:
    if parts:
        there, total = sum(each["there_bytes"] for each in parts), sum(each["total_bytes"] for each in parts)
        place = one_line(parts[0]["from"])
        say(f"a lazy restore has fetched {format_size(there)} of {format_size(total)} from {place}")


def _sink_text(work: SinkWork) -> str:
    transactions = f"{counted(work.transactions, 'transaction')} of {work.transaction_s:.2f} s"
    return f"sink: in the newest epoch {work.as_text()}; {transactions}"


def _replica_text(replica: Mapping[str, Any]) -> str:
    text = f"replica at {replica['destination']}: "
    text += f"epoch {replica['epoch']}, shipped {format_time(replica['shipped_ms'])}" if replica["epoch"] else "empty"
    if replica["ahead_s"]:
        text += f", {ago(-replica['ahead_s'])}"
    if replica["lag_epochs"]:
        lacks, lag_s = counted(replica["lag_epochs"], "epoch"), replica["lag_s"]
        if lag_s < 0:
            text += f"; {lacks} behind, the oldest of which is dated {ago(lag_s)}"
        else:
            text += f"; {lacks} ({format_interval(round(lag_s))}) behind"
    if replica["problem"] is not None:
        since = f" since {format_time(replica['since_ms'])}" if replica["since_ms"] else ""
        text += f"; failing{since}: {replica['problem']}"
    return text


def lag_lines(lag: InputLag | None) -> Iterator[str]:
    """Yield one line for each source that the newest epoch is compared with, and one for a consumer group."""
    if lag is None:
        return
    if lag.sources:
        yield f"source lag of epoch {lag.epoch}, seen {format_time(lag.seen_ms)}:"
    for each in lag.sources:
        most = f", most in partition {each.most}: {each.most_behind:,}" if each.parts > 1 and each.behind else ""
        since = f", some of it seen {format_interval(round(each.seconds))} before" if each.seconds >= 1 else ""
        yield f"  {each}{most}{since}"
    if lag.problem is not None:
        yield f"  consumer group {lag.group} does not show it: {lag.problem}"


def health_text(found: Sequence[Finding]) -> str:
    """Return one line: the overall level, and each target that has a value or levels."""
    level = worst(found)
    colour = {Level.OK: "green", Level.WARNING: "yellow", Level.CRITICAL: "red"}.get(level, "white")
    if all(each.value is None for each in found):
        return f"health: {style(level, colour)}, nothing measured"
    watched = [each for each in found if each.value is not None or each.target.warning is not None]
    return f"health: {style(level, colour)}: {' · '.join(map(str, watched))}"
