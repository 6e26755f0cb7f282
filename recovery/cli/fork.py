"""`recovery fork DIR NEW_DIR`."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.backup.fork import Forked, plan_fork
from recovery.backup.fork import fork as fork_store
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.backup_progress import CopyProgress
from recovery.cli.common import format_size, format_time, json_option, print_json, say
from recovery.cli.dry_run import dry_run_option
from recovery.cli.operational import directories
from recovery.cli.option import epoch_option
from recovery.cli.owners import owner_options, store_to_read
from recovery.planning.going_back import after_text
from recovery.planning.resume import ResumePlan
from recovery.storage.copied import files_of
from recovery.storage.store import OwnerAccess


@click.command()
@click.argument("words", metavar="[DIR] NEW_DIR", nargs=-1)
@epoch_option("Continue from the state after this epoch; 0: from the beginning.",
              without="the newest that all partitions hold")  # fmt: skip
@dry_run_option("Show what would be forked; write nothing.")
@owner_options
@json_option
def fork(words: tuple[str, ...], epoch: int | None, dry_run: bool, access: OwnerAccess, as_json: bool) -> None:
    """Make an independent store from an epoch of the store in DIR.

    NEW_DIR continues from that epoch. A run may be active in DIR, of which nothing is changed.

    The new store has a store id of its own and records its origin. Run NEW_DIR with --no-output, or give its
    sinks targets of their own: those of the origin are refused. Where the file system can clone files, the new store
    takes no space.

    With --owner, DIR is the directory of the run, and NEW_DIR, on this host, gets all partitions.
    """
    directory, [new] = directories(words, ("NEW_DIR",))
    store = store_to_read(directory, access)
    if dry_run:
        planned = plan_fork(store.found(), directory, new, epoch)
        if as_json:
            print_json({"directory": str(new), "dry_run": True, **_plan_facts(planned)})
        else:
            say(_plan_text(planned, new))
        return
    progress = CopyProgress(quiet=as_json)
    with files_of(store) as found:
        made = fork_store(found, new, epoch, observe=progress.observe, copied_from=directory)
    if as_json:
        print_json({
            "directory": str(new), "dry_run": False, "store_id": made.store_id, "origin": made.origin.as_json(),
            "resume_epoch": made.origin.epoch + 1, "partitions": made.partitions, "cloned": made.cloned,
            "bytes": made.size_bytes, "elapsed_s": made.elapsed_s,
        })  # fmt: skip
    else:
        say(_made_text(made))


def _plan_facts(planned: ResumePlan) -> dict[str, object]:
    return {
        "origin_store_id": planned.store_id,
        "epoch": planned.resume_epoch - 1,
        "closed_ms": planned.snapshot.closed_ms if planned.snapshot else None,
        "resume_epoch": planned.resume_epoch,
        "partitions": len(planned.partitions),
        "bytes": sum(d.size_bytes for d in planned.partitions),
    }


def _plan_text(planned: ResumePlan, new: Path) -> str:
    closed = f", closed {format_time(planned.snapshot.closed_ms)}" if planned.snapshot else ""
    size = format_size(sum(d.size_bytes for d in planned.partitions))
    return (
        f"would fork store {planned.store_id} {after_text(planned.resume_epoch - 1)}{closed}: "
        f"{counted(len(planned.partitions), 'partition')}, {size}, to {one_line(new)}"
    )


def _made_text(made: Forked) -> str:
    shared = f", {made.cloned} of them cloned" if made.cloned else ""
    return (
        f"forked store {made.origin.store_id} {after_text(made.origin.epoch)} as store {made.store_id} in "
        f"{one_line(made.directory)}: {counted(made.partitions, 'partition')}{shared}, {format_size(made.size_bytes)} "
        f"in {made.elapsed_s:.1f} s; a run resumes at epoch {made.origin.epoch + 1}"
    )
