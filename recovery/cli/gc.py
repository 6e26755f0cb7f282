"""`recovery gc DIR`."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

import click
from click.core import ParameterSource

from recovery.base.clock import SystemClock
from recovery.base.credentials.task_key import task_key
from recovery.base.wording import counted, listed, moment_text
from recovery.cli.common import INTERVAL, directory_argument, format_size, json_option, print_json, say
from recovery.cli.option import option
from recovery.cli.owners import locations, owner_options
from recovery.epochs.snapshot import SharedEpochs
from recovery.errors import RecoveryError
from recovery.operational.backends.owned import documents_of
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.scopes import remove_expired
from recovery.planning.going_back import check_history, kept_interval_s
from recovery.planning.resume import common_cuts, plan_resume
from recovery.storage.connect import SCRATCH_NAME
from recovery.storage.hydration import refuse_hydrating
from recovery.storage.locations import OwnerAccess
from recovery.storage.lock import DirectoryLock


@click.command()
@directory_argument
@option("-b", "--backup-interval", type=INTERVAL, envvar="RECOVERY_BACKUP_INTERVAL", without="that of the last run",
        help="Keep superseded snapshots that are younger than this.")  # fmt: skip
@option("--discard-history", is_flag=True,
        help="Allow RECOVERY_BACKUP_INTERVAL to be shorter than the last run's backup interval. -b on the command line "
             "needs no confirmation.")  # fmt: skip
@owner_options
@json_option
def gc(
    directory: Path, backup_interval: float | None, discard_history: bool, access: OwnerAccess, as_json: bool
) -> None:
    """Collect what the backup interval no longer needs.

    Also folds what a killed run left logged, removes scoped state whose retention has passed, and gives the space
    back. End the run first.
    """
    clock = SystemClock()
    places = locations(directory, access)
    with contextlib.ExitStack() as held:
        held.callback(places.release)
        places.found()
        refuse_hydrating(directory, "gc")
        held.enter_context(DirectoryLock(directory, clock, "gc"))
        places.hold(secrets.token_hex(8), "gc", task_key())
        plan = plan_resume(places.found())
        before = sum(d.size_bytes for d in plan.partitions)
        if not discard_history and not _on_command_line("backup_interval"):
            # -b 0 is explicit; a variable may have been set for other directories.
            check_history(plan, backup_interval, moment_text)
        interval_s = kept_interval_s(plan.partitions, backup_interval)
        expired, damage = 0, None
        try:
            # Remove them before the space is given back.
            expired = remove_expired(documents_of(places, clock, RetryPolicy()), clock.wall_ms())
        except RecoveryError as error:
            damage = error
        store = places.connect(plan.partitions, directory / SCRATCH_NAME, clock)
        try:
            floor = SharedEpochs(store, plan, clock, backup_interval_s=interval_s).time().floor
            collected = store.collect(floor)
            described = store.describe()
            after = sum(d.size_bytes for d in described)
            window = sorted(cut[0] for cut in common_cuts(described))
        finally:
            store.release()
    if damage is not None:
        raise damage
    rows, changes = sum(each.rows for each in collected), sum(each.changes for each in collected)
    if as_json:
        print_json({
            "directory": str(directory), "floor": floor, "window": window, "rows": rows, "changes": changes,
            "expired": expired, "bytes_before": before, "bytes_after": after,
        })  # fmt: skip
        return
    also = f", and folded {counted(changes, 'logged change')}" if changes else ""
    if expired:
        also += f", and removed {counted(expired, 'expired state')}"
    sizes = f"{format_size(before)} → {format_size(after)}"
    say(f"collected {counted(rows, 'superseded row')} up to epoch {floor}{also}: {sizes}")
    given_up = [epoch for epoch in plan.window if epoch not in window]
    if given_up:
        say(f"runs can no longer go back to the snapshots after epoch {listed(given_up)}")


def _on_command_line(option: str) -> bool:
    return click.get_current_context().get_parameter_source(option) == ParameterSource.COMMANDLINE
