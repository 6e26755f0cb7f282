"""Folding logged epochs into the snapshots of one partition, and collecting what is superseded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw

from recovery.base import faults
from recovery.base.ids import NO_EPOCH, Epoch, Lease, StepId
from recovery.errors import LeaseLostError
from recovery.planning.measures import StepSize
from recovery.planning.values import ClosedEpoch
from recovery.storage.seam import Collected
from recovery.storage.sqlite.describe import (
    COMMITS,
    EPOCHS,
    LOGGED,
    closed_epochs,
    folded_epoch,
    insert_epoch,
    is_newest,
    newest_epoch,
    set_collected,
)
from recovery.storage.sqlite.digests import MODULUS, combine
from recovery.storage.sqlite.epoch_log import (
    NEWEST,
    OF_EPOCH,
    check_sound,
    logged_steps,
)
from recovery.storage.sqlite.file.statements import rows, transaction, translated, value
from recovery.storage.sqlite.measures import change_sizes, read_sizes
from recovery.storage.sqlite.snap_rows import (
    DISCARD,
    DRIVER_TABLE,
    OF_STEP,
    REPLACED,
    SCAN_SHARE,
    WRITE,
    WRITTEN,
    CloseSums,
    create_driver_table,
    move,
    sums_after,
)


def fold(
    connection: apsw.Connection, path: Path, lease: Lease, epoch: Epoch, sealed: Mapping[StepId, str], floor: Epoch
) -> Mapping[str, StepSize]:
    """Bring `snaps` to an epoch that all partitions have closed, and collect up to `floor`. One transaction.
    Repeatable. Returns the size of each step.

    `sealed` names the table of each step's delta, which has everything touched since the last fold; for other steps
    the log is read. Raises LeaseLostError if a later execution began.
    """
    with translated(path):
        create_driver_table(connection)
        with transaction(connection):
            if not is_newest(connection, lease):
                raise LeaseLostError(f"execution {lease.number} may not write any more", path=path)
            newest = newest_epoch(connection)
            if newest is not None and newest.is_logged:
                assert newest.epoch == epoch, f"epoch {epoch} cannot be folded: the newest here is {newest.epoch}"
                fold_into_snaps(connection, path, epoch, sealed, floor)
            sizes = read_sizes(connection)
        faults.reach("fold.2.committed")
    return sizes


def collect_file(connection: apsw.Connection, path: Path, floor: Epoch) -> Collected:
    """Collect up to `floor`, fold the log if `floor` is the newest epoch, and give the space back."""
    with translated(path):
        with transaction(connection):
            found = Collected(collect(connection, floor), fold_log(connection, path, floor))
        connection.execute("VACUUM")
        connection.wal_checkpoint("main", mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    return found


def fold_log(connection: apsw.Connection, path: Path, epoch: Epoch) -> int:
    """Fold the log if `epoch`, which all partitions have closed, is the newest. Return the number of logged changes.
    Inside a transaction. Raises CorruptPartitionError if the log is damaged."""
    newest = newest_epoch(connection)
    if newest is None or newest.epoch != epoch or not newest.is_logged:
        return 0
    changes = int(value(connection, "SELECT sum(row_count) FROM logged") or 0)
    create_driver_table(connection)
    fold_into_snaps(connection, path, epoch, {}, epoch)
    return changes


def fold_into_snaps(
    connection: apsw.Connection, path: Path, epoch: Epoch, sealed: Mapping[StepId, str], floor: Epoch
) -> ClosedEpoch:
    """Fold as `fold` does, inside a transaction, and return the epoch. Raises CorruptPartitionError if the log is
    damaged."""
    keeps = floor < epoch
    check_sound(connection, path, () if keeps else sealed)
    return _fold_each(connection, floor) if keeps else _fold_newest(connection, epoch, sealed)


def _fold_each(connection: apsw.Connection, floor: Epoch) -> ClosedEpoch:
    """Do for each logged epoch, in order, what closing it without the log would have done, so all of them are still
    held. Then collect up to `floor`."""
    epochs = closed_epochs(rows(connection, EPOCHS.format(where="")), rows(connection, LOGGED))
    before = next((each for each in reversed(epochs) if not each.is_logged), None)
    for closed in epochs:
        if not closed.is_logged:
            continue
        totals = CloseSums()
        for (step,) in rows(connection, "SELECT DISTINCT step_id FROM changes WHERE epoch = ?", (closed.epoch,)):
            connection.execute(f"DELETE FROM temp.{DRIVER_TABLE}")
            connection.execute(f"INSERT INTO temp.{DRIVER_TABLE} {OF_EPOCH}", {"epoch": closed.epoch, "step": step})
            move(connection, totals, StepId(step), f"temp.{DRIVER_TABLE}", closed.epoch)
        live, superseded = sums_after(connection, totals, before, closed.epoch)
        for table in ("changes", "logged", "epochs"):
            connection.execute(f"DELETE FROM {table} WHERE epoch = ?", (closed.epoch,))
        before = replace(
            closed,
            written=totals.written,
            live_rows=live[0],
            live_digest=live[1],
            superseded_rows=superseded[0],
            superseded_digest=superseded[1],
            logged_rows=None,
            logged_digest=None,
        )
        insert_epoch(connection, before)
    faults.reach("fold.2.snaps")
    collect(connection, floor)
    faults.reach("fold.2.epochs")
    assert before is not None
    return before


def _fold_newest(connection: apsw.Connection, epoch: Epoch, sealed: Mapping[StepId, str]) -> ClosedEpoch:
    """Write the newest logged value of each key, and stop holding earlier epochs."""
    connection.execute("DELETE FROM superseded")
    faults.reach("fold.2.collected")
    totals, sizes = CloseSums(), read_sizes(connection)
    for step, table in sealed.items():
        _fold_step(connection, totals, step, table, epoch, sizes.get(step, StepSize(0, 0)).rows)
    for step in sorted(logged_steps(connection).keys() - sealed.keys()):
        connection.execute(f"DELETE FROM temp.{DRIVER_TABLE}")
        connection.execute(f"INSERT INTO temp.{DRIVER_TABLE} {NEWEST}", {"step": step})
        held = sizes.get(step, StepSize(0, 0)).rows
        _fold_step(connection, totals, step, f"temp.{DRIVER_TABLE}", epoch, held)
    faults.reach("fold.2.snaps")
    change_sizes(connection, totals.changes)
    newest = newest_epoch(connection)
    assert newest is not None
    folded = replace(
        newest,
        live_rows=newest.live_rows + sum(count for count, _ in totals.changes.values()),
        live_digest=(newest.live_digest + totals.digest) % MODULUS,
        logged_rows=None,
        logged_digest=None,
    )
    for table in ("changes", "logged", "epochs"):
        connection.execute(f"DELETE FROM {table}")
    insert_epoch(connection, folded)
    set_collected(connection, rows(connection, COMMITS)[0][0], epoch)
    faults.reach("fold.2.epochs")
    return folded


def _fold_step(
    connection: apsw.Connection, totals: CloseSums, step: StepId, table: str, epoch: Epoch, held: int
) -> None:
    """Write a table's rows of a step that has `held` rows, without keeping the replaced rows."""
    bindings = {"epoch": epoch, "step": step}
    execute: Callable[[str], Any] = lambda sql: connection.execute(sql.format(table=table), bindings).fetchall()  # noqa: E731
    [(touched,)] = execute("SELECT count(*) FROM {table}")
    most = touched > SCAN_SHARE * held
    [before] = execute(OF_STEP if most else REPLACED)
    execute(WRITE)
    execute(DISCARD)
    [after] = execute(OF_STEP if most else WRITTEN)
    count, high, low, size_bytes = (new - old for new, old in zip(after, before, strict=True))
    totals.gain(step, count, size_bytes)
    totals.digest += combine(high, low)


def collect(connection: apsw.Connection, floor: Epoch) -> int:
    """Delete rows that are only needed to go back below `floor`, and return their number. Inside a transaction.

    The rows are at the front of `superseded`, so the work is proportional to the garbage. The log and the snapshot
    below it stay.
    """
    [(index, collected, _)] = rows(connection, COMMITS)
    if floor <= collected:
        return 0
    newest = value(connection, "SELECT max(epoch) FROM epochs") or NO_EPOCH
    assert floor <= newest, f"epoch {floor} cannot be collected up to: the newest here is {newest}"
    floor = min(floor, folded_epoch(connection))
    if floor <= collected:
        return 0
    if (value(connection, "SELECT max(until_epoch) FROM superseded") or NO_EPOCH) <= floor:
        # Without a condition SQLite drops whole pages instead of rows.
        connection.execute("DELETE FROM superseded")
    else:
        connection.execute("DELETE FROM superseded WHERE until_epoch <= ?", (floor,))
    deleted = connection.changes()
    connection.execute("DELETE FROM epochs WHERE epoch < ?", (floor,))
    set_collected(connection, index, floor)
    return deleted
