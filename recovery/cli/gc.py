"""`recovery gc DIR`."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.cli.common import INTERVAL, directory_argument, format_size, json_option, print_json, say
from recovery.clock import CLOCK_STEP, RecoveryClock, SystemClock
from recovery.errors import RecoveryError
from recovery.planning.resume import plan_resume
from recovery.planning.retention import collection_floor, shared_history
from recovery.state.open import open_backend
from recovery.state.retry import RetryPolicy
from recovery.state.scopes import remove_expired
from recovery.storage.files import SCRATCH_NAME, FilePartitions, scan
from recovery.storage.lock import DirectoryLock


@click.command()
@directory_argument
@click.option("-b", "--backup-interval", type=INTERVAL, envvar="RECOVERY_BACKUP_INTERVAL",
              help="Keep what is younger than this; by default what the last run was told.")  # fmt: skip
@json_option
def gc(directory: Path, backup_interval: float | None, as_json: bool) -> None:
    """Collect what the backup interval no longer needs, fold what a killed run left logged, remove scoped state whose
    retention has passed, and give the space back. Not while a run is going on."""
    clock = SystemClock()
    scan(directory)
    with DirectoryLock(directory, clock, "gc"):
        plan = plan_resume(scan(directory))
        before = sum(d.size_bytes for d in plan.partitions)
        interval_s = backup_interval
        if interval_s is None:
            runs = [e for d in plan.partitions for e in d.executions]
            interval_s = max(runs, key=lambda e: e.number).backup_interval_s if runs else 0.0
        expired, damage = 0, None
        try:
            # Before the space is given back.
            expired = remove_expired(open_backend(directory, clock, RetryPolicy()), clock.wall_ms())
        except RecoveryError as error:
            damage = error
        store = FilePartitions([d.path for d in plan.partitions], directory / SCRATCH_NAME)
        try:
            now_ms = RecoveryClock(clock, *plan.last_clock, store.driver_values(CLOCK_STEP)).now_ms()
            floor = collection_floor(shared_history(plan.partitions, plan.window), now_ms, interval_s * 1000)
            collected = store.collect(floor)
            after = sum(d.size_bytes for d in store.describe())
        finally:
            store.release()
    if damage is not None:
        raise damage
    rows, changes = sum(each.rows for each in collected), sum(each.changes for each in collected)
    if as_json:
        print_json({
            "directory": str(directory), "floor": floor, "rows": rows, "changes": changes,
            "expired": expired, "bytes_before": before, "bytes_after": after,
        })  # fmt: skip
        return
    also = f", and folded {changes:,} logged changes" if changes else ""
    if expired:
        also += f", and removed {expired:,} expired state{'s' * (expired != 1)}"
    sizes = f"{format_size(before)} → {format_size(after)}"
    say(f"collected {rows:,} superseded rows up to epoch {floor}{also}: {sizes}")
