"""Closing an epoch in one partition: one transaction, by moving deltas or by appending to the epoch log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import apsw

from recovery.base import faults
from recovery.base.ids import Epoch, Lease, StepId
from recovery.base.reserved import RESERVED_PREFIX
from recovery.planning.measures import ClosedPartition, StepSize
from recovery.planning.values import ClosedEpoch, StepEdit
from recovery.storage.seam import CloseRequest
from recovery.storage.sqlite.describe import closed_epoch, insert_epoch, next_epoch_after
from recovery.storage.sqlite.digests import MODULUS
from recovery.storage.sqlite.epoch_log import (
    Logged,
    Sealed,
    append_rows,
    append_touched,
)
from recovery.storage.sqlite.file.statements import transaction, translated
from recovery.storage.sqlite.fold import collect, fold_into_snaps
from recovery.storage.sqlite.measures import read_sizes
from recovery.storage.sqlite.snap_rows import (
    DRIVER_TABLE,
    CloseSums,
    create_driver_table,
    live_rows_of,
    move,
    move_rows,
    sums_after,
)


def close_epoch(
    connection: apsw.Connection,
    path: Path,
    lease: Lease,
    request: CloseRequest,
    sealed: Mapping[StepId, str],
    elapsed_s: Callable[[], float] = lambda: 0.0,
) -> ClosedPartition:
    """Close an epoch in this partition: step 2 of the closing protocol, one transaction, synced to disk.

    1. Check in storage that the lease is the newest and the epoch the next one. Fold the log.
    2. Collect below the floor: newly superseded rows reuse the pages.
    3. Move the sealed rows of each step's delta into `snaps`, keeping the rows they supersede.
    4. Write the driver's own rows in the same way, and edit steps.
    5. Insert the row in `epochs`, with the sums that show that the snapshot is complete.
    6. Commit.

    `sealed` names the table of each step's delta in an attached file; `elapsed_s` is a clock. Closing an epoch that
    this execution has already closed changes nothing.
    """
    with translated(path):
        create_driver_table(connection)
        with transaction(connection):
            # 1
            before = next_epoch_after(connection, path, lease, request)
            if before is not None and before.epoch == request.epoch:
                return _closed_before(connection, before)
            if before is not None and before.is_logged:
                before = fold_into_snaps(connection, path, before.epoch, {}, request.floor)
            faults.reach("close.2.checked")
            # 2
            began_s = elapsed_s()
            collected = collect(connection, request.floor)
            collect_s = elapsed_s() - began_s
            faults.reach("close.2.collected")
            # 3
            totals = CloseSums(notes_made=request.notes_made)
            sizes = read_sizes(connection)
            for step, table in sealed.items():
                move(connection, totals, step, table, request.epoch, sizes.get(step, StepSize(0, 0)).rows)
            faults.reach("close.2.snaps")
            # 4
            for step, values in request.driver_rows.items():
                given = ((key, value, None) for key, value in values.items())
                move_rows(connection, totals, step, given, request.epoch)
            for step, states in request.state_rows.items():
                edited = ((key, *state) for key, state in states.items())
                move_rows(connection, totals, step, edited, request.epoch)
            for edit in request.edits:
                _edit_step(connection, totals, edit, request.epoch)
            faults.reach("close.2.driver")
            # 5
            live, superseded = sums_after(connection, totals, before, request.epoch)
            insert_epoch(connection, closed_epoch(lease, request, totals.written, live, superseded=superseded))
            faults.reach("close.2.epochs")
            sizes = read_sizes(connection)
        # 6
        faults.reach("close.2.committed")
    return ClosedPartition(totals.states, totals.written, totals.size_bytes, collected, collect_s, sizes)


def log_epoch(
    connection: apsw.Connection,
    path: Path,
    lease: Lease,
    request: CloseRequest,
    sealed: Mapping[StepId, Sealed],
) -> ClosedPartition:
    """Close an epoch in this partition by appending its changes to the log: one transaction, synced to disk.

    `log_epoch` does what `close_epoch` does, but leaves updating `snaps` and collecting to `fold`, and makes no edits.
    The cost is proportional to what was touched since the last fold, and does not depend on the partition's content.
    If a transaction is already open, in which only deltas were read, this continues it.
    """
    edited = (*request.edits, *request.state_rows)
    assert not edited, f"an epoch that edits {edited} cannot be logged"
    with translated(path), transaction(connection, joined=True):
        # Takes the write lock before anything is read: a reader cannot get it once others have written meanwhile.
        connection.execute("DELETE FROM changes WHERE false")
        before = next_epoch_after(connection, path, lease, request)
        if before is not None and before.epoch == request.epoch:
            return _closed_before(connection, before)
        faults.reach("close.2.checked")
        total, states = Logged(), 0
        for step, each in sealed.items():
            logged = append_touched(connection, request.epoch, step, each, request.batch)
            total += logged
            if not step.startswith(RESERVED_PREFIX):
                states += logged.written
        faults.reach("close.2.logged")
        for step, values in request.driver_rows.items():
            given = ((key, value, None) for key, value in values.items())
            total += append_rows(connection, request.epoch, step, given)
        faults.reach("close.2.driver")
        insert_epoch(
            connection,
            closed_epoch(
                lease, request, total.written, live_rows_of(before), logged=(total.rows, total.digest % MODULUS)
            ),
        )
        sizes = read_sizes(connection)
        faults.reach("close.2.epochs")
    faults.reach("close.2.committed")
    return ClosedPartition(states, total.written, total.size_bytes, 0, 0.0, sizes)


def _edit_step(connection: apsw.Connection, totals: CloseSums, edit: StepEdit, epoch: Epoch) -> None:
    """Drop, rename or convert a step: write its rows in the new form, and discard them under the old id."""
    if edit.new is not None:
        value_sql = "ser_change"
        if edit.convert is not None:
            convert: Any = edit.convert
            connection.create_scalar_function("convert_state", convert, 2)
            value_sql = "convert_state(state_key, ser_change)"
        connection.execute(f"DELETE FROM temp.{DRIVER_TABLE}")
        connection.execute(
            f"INSERT INTO temp.{DRIVER_TABLE} SELECT state_key, {value_sql}, timeout_ms FROM snaps WHERE step_id = ?",
            (edit.old,),
        )
        if edit.convert is not None:
            connection.create_scalar_function("convert_state", None, 2)
        move(connection, totals, edit.new, f"temp.{DRIVER_TABLE}", epoch)
    if edit.new == edit.old:
        return
    connection.execute(f"DELETE FROM temp.{DRIVER_TABLE}")
    connection.execute(
        f"INSERT INTO temp.{DRIVER_TABLE} SELECT state_key, NULL, NULL FROM snaps WHERE step_id = ?", (edit.old,)
    )
    move(connection, totals, edit.old, f"temp.{DRIVER_TABLE}", epoch)


def _closed_before(connection: apsw.Connection, closed: ClosedEpoch) -> ClosedPartition:
    return ClosedPartition(closed.written, closed.written, 0, 0, 0.0, read_sizes(connection))
