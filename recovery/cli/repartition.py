"""`recovery repartition DIR NEW_DIR N`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.base.wording import counted, listed
from recovery.cli.common import DIRECTORY, format_size, json_option, print_json, say, tell
from recovery.cli.dry_run import dry_run_option
from recovery.cli.operational import directory_and
from recovery.cli.option import option
from recovery.cli.owners import owner_options, store_to_read
from recovery.cli.status_line import StatusLine
from recovery.cli.tables import table
from recovery.errors import ConfigurationError, RecoveryError
from recovery.partitioning.in_place import drop_old, kept_directories
from recovery.partitioning.repartition import Repartitioned, RepartitionPlan, plan_repartition, repartition
from recovery.planning.resume import check_set
from recovery.storage.copied import files_of, locked_files_of
from recovery.storage.repartition import StepTally
from recovery.storage.scan import scan
from recovery.storage.store import OwnerAccess, Store

USAGE = "Give DIR NEW_DIR N; with --in-place DIR N; with --drop-old DIR."
MOST_DIGITS = 9
"""Of a number of partitions: Python refuses to convert some thousand."""


@click.command("repartition")
@click.argument("arguments", metavar="[DIR] [NEW_DIR] N", nargs=-1)
@option("--in-place", is_flag=True,
        help="`repartition --in-place DIR N`: swap the new directory with DIR, and keep the old one beside it. DIR "
             "must hold nothing but what recovery puts there, and no links.")  # fmt: skip
@option("--drop-old", is_flag=True,
        help="`repartition --drop-old DIR`: remove the old directories that --in-place kept beside DIR.")  # fmt: skip
@dry_run_option("Show what would be done; write nothing.")
@owner_options
@json_option
def repartition_command(
    arguments: tuple[str, ...], in_place: bool, drop_old: bool, dry_run: bool, access: OwnerAccess, as_json: bool
) -> None:
    """Make a store with N partitions that holds all that DIR holds.

    The new store, in NEW_DIR, has each held epoch, timeouts, operational state, the input position. DIR does not
    change. End the run first. Afterwards the unchanged flow runs on NEW_DIR.

    With --owner, DIR is the directory of the run, and NEW_DIR, on this host, gets all partitions.
    """
    if in_place and drop_old:
        raise click.UsageError(USAGE)
    names = () if drop_old else ("N",) if in_place else ("NEW_DIR", "N")
    try:
        given, rest = directory_and(arguments, names)
    except click.UsageError as error:
        raise click.UsageError(f"{error.message} {USAGE}") from error
    context = click.get_current_context()
    directory, *new = (Path(DIRECTORY.convert(each, None, context)) for each in (given, *rest[:-1]))
    store = store_to_read(directory, access)
    if not new:
        _check_one_directory(store, "--drop-old" if drop_old else "--in-place")
    if drop_old:
        _drop_old(directory, dry_run, as_json)
        return
    if not rest[-1].isdecimal() or len(rest[-1]) > MOST_DIGITS:
        raise click.UsageError(f"{rest[-1]!r:.80} is not a number of partitions. {USAGE}")
    count = int(rest[-1])
    target = new[0] if new else None
    if in_place and _has(directory, count):
        _say_unchanged(directory, count, dry_run, as_json)
        return
    if dry_run:
        store.check_free()
        with files_of(store) as found:
            plan = plan_repartition(found, target, count, copied_from=directory)
        if as_json:
            print_json({**plan.as_json(), "dry_run": True})
        else:
            say(f"would {_plan_text(plan)}")
        return
    with locked_files_of(store, SystemClock(), "repartition") as found:
        done = _repartitioned(found, directory, target, count, quiet=as_json)
    if as_json:
        print_json(_facts(done))
        return
    say(_text(done))
    if store.is_spread:
        say(
            "to bring it to owners without partitions: python -m recovery restore "
            f"{one_line(done.plan.new_directory)} {one_line(directory)} --owner …"
        )


def _check_one_directory(store: Store, option: str) -> None:
    """Raise ConfigurationError if an option that swaps directories is given for several."""
    if store.is_spread:
        raise ConfigurationError(
            f"{option} does not change partitions at owners",
            cause="It swaps whole directories of one host; the files of these partitions, whose names and number "
            "would change, lie in directories of several hosts.",
            remedy="Make a new directory here (recovery repartition DIR NEW_DIR N --owner …), and bring it to owners "
            "without partitions (recovery restore NEW_DIR DIR --owner …).",
        )


def _repartitioned(
    directory: Path, copied_from: Path, target: Path | None, count: int, *, quiet: bool
) -> Repartitioned:
    """Say what will be done, do it, and show how far it has come."""

    def announce(plan: RepartitionPlan) -> None:
        if not quiet:
            tell(f"will {_plan_text(plan)}")

    with StatusLine(quiet=quiet) as line:
        return repartition(
            directory, target, count, announce=announce, copied_from=copied_from,
            observe=lambda done, total: line.show(f"moved {done:,} of {counted(max(done, total), 'row')}"),
        )  # fmt: skip


def _has(directory: Path, count: int) -> bool:
    """Whether a directory has this number of partitions. What is wrong with the directory, repartitioning says."""
    with contextlib.suppress(RecoveryError):
        return len(check_set(scan(directory))) == count
    return False


def _say_unchanged(directory: Path, count: int, dry_run: bool, as_json: bool) -> None:
    kept = kept_directories(directory)
    if as_json:
        print_json({
            "directory": str(directory), "dry_run": dry_run, "changed": False,
            "partitions": {"before": count, "after": count}, "kept": str(kept[0]) if kept else None,
        })  # fmt: skip
        return
    say(f"{one_line(directory)} has {counted(count, 'partition')} already; nothing changed")
    if kept:
        say(_kept_text(directory, kept[0]))


def _kept_text(directory: Path, kept: Path) -> str:
    return (
        f"the old one is kept as {one_line(kept)}; when you trust the new one: "
        f"python -m recovery repartition --drop-old {one_line(directory)}"
    )


def _drop_old(directory: Path, dry_run: bool, as_json: bool) -> None:
    gone = kept_directories(directory) if dry_run else drop_old(directory)
    if as_json:
        print_json({"directory": str(directory), "dropped": [str(path) for path in gone], "dry_run": dry_run})
        return
    for path in gone:
        say(f"{'would remove' if dry_run else 'removed'} {one_line(path)}")
    if not gone:
        say("nothing is kept beside it")


def _plan_text(plan: RepartitionPlan) -> str:
    where = f"to {one_line(plan.new_directory)}" if plan.keeps is None else f"in place, keeping {one_line(plan.keeps)}"
    of = f"flow {one_line(plan.flow_id)}" if plan.flow_id is not None else "no flow yet"
    return (
        f"repartition {one_line(plan.directory)} ({of}) from {plan.partitions} to "
        f"{counted(plan.new_partitions, 'partition')} {where}: epochs {listed(plan.epochs)}, "
        f"{counted(plan.rows, 'row')}, about {format_size(plan.size_bytes)} more on the disk"
    )


def _text(done: Repartitioned) -> str:
    plan = done.plan
    epoch, compared = plan.epochs[-1], counted(len(plan.epochs), "held epoch")
    rows = []
    for step in done.steps():
        old, new = list(done.before.of(step, [epoch])), list(done.after.of(step, [epoch]))
        rows.append((step, old[0].rows, _hex(old[0]), _hex(new[0])))
    lines = [table(("step", "keys", "digest before", "digest after"), rows)] if rows else []
    lines.append(f"as of epoch {epoch}; all steps are equal at {compared}: epochs {listed(plan.epochs)}")
    lines.append(
        f"{one_line(plan.new_directory or plan.directory)} is store {done.store_id} with "
        f"{counted(plan.new_partitions, 'partition')}, made from store {plan.store_id} in {done.elapsed_s:.1f} s"
    )
    if plan.keeps is not None:
        lines.append(_kept_text(plan.directory, plan.keeps))
    return "\n".join(lines)


def _facts(done: Repartitioned) -> dict[str, Any]:
    return {
        **done.plan.as_json(),
        "dry_run": False,
        "changed": True,
        "store_id": {"before": done.plan.store_id, "after": done.store_id},
        "origin": done.origin.as_json(),
        "steps": [
            {
                "step": step,
                "epochs": [
                    {
                        "epoch": old.epoch,
                        "keys": old.rows,
                        "before": f"{old.digest:015x}",
                        "after": f"{new.digest:015x}",
                    }
                    for old, new in done.of(step)
                ],
            }
            for step in done.steps()
        ],
        "bytes_after": done.size_bytes,
        "elapsed_s": done.elapsed_s,
    }


def _hex(tally: StepTally) -> str:
    return f"{tally.digest:015x}"
