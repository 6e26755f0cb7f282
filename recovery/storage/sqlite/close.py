"""Closing an epoch in one partition: one transaction, by moving deltas or by appending to the epoch log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from recovery.storage.sqlite.digests import MODULUS, SUM_SQL, combine, row_digest_sql
from recovery.storage.sqlite.epoch_log import (
    Logged,
    Sealed,
    append_rows,
    append_touched,
)
from recovery.storage.sqlite.file.statements import rows, transaction, translated
from recovery.storage.sqlite.file.tables import ROW_BYTES
from recovery.storage.sqlite.fold import collect, fold_into_snaps
from recovery.storage.sqlite.measures import change_sizes, read_sizes
from recovery.storage.sqlite.snap_rows import (
    DISCARD,
    DRIVER_TABLE,
    SCAN_SHARE,
    WRITE,
    WRITTEN,
    CloseSums,
    create_driver_table,
    live_rows_of,
)

# `{table}` holds the keys that the epoch touched, each with its value and timeout after the epoch.
SUPERSEDE = """
INSERT INTO superseded
SELECT :epoch, :step, m.state_key, s.snap_epoch, s.ser_change, s.timeout_ms, s.digest
FROM {table} AS m CROSS JOIN snaps AS s WHERE s.step_id = :step AND s.state_key = m.state_key
"""
# The same with a row, without snap_epoch, for each key that the epoch makes.
ABSENT_DIGEST = row_digest_sql(":step", "m.state_key", "NULL", "NULL", "NULL")
SUPERSEDE_AND_NOTE = f"""
INSERT INTO superseded
SELECT :epoch, :step, m.state_key, s.snap_epoch, s.ser_change, s.timeout_ms, coalesce(s.digest, {ABSENT_DIGEST})
FROM {{table}} AS m LEFT JOIN snaps AS s ON s.step_id = :step AND s.state_key = m.state_key
WHERE s.digest IS NOT NULL OR m.after IS NOT NULL
"""
# The same for a step to which nothing else in the epoch has written, by reading the whole step in order. A row costs a
# quarter of a search, so this is faster once a third of the rows was touched.
WRITTEN_OF_STEP = f"""
SELECT {SUM_SQL}, coalesce(sum({ROW_BYTES}), 0) FROM snaps WHERE step_id = :step AND snap_epoch = :epoch
"""
# Rows that the epoch superseded, by step.
SUPERSEDED = f"""
SELECT step_id, {SUM_SQL}, sum({ROW_BYTES}) FROM superseded WHERE until_epoch = ? GROUP BY step_id
"""
NOTED = "SELECT step_id, count(*) FROM superseded WHERE until_epoch = ? AND snap_epoch IS NULL GROUP BY step_id"
NOTED_DIGESTS = f"SELECT {SUM_SQL} FROM superseded WHERE until_epoch = ? AND snap_epoch IS NULL"


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
                before = fold_into_snaps(connection, path, before.epoch, {})
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
                _move(connection, totals, step, table, request.epoch, sizes.get(step, StepSize(0, 0)).rows)
            faults.reach("close.2.snaps")
            # 4
            for step, values in request.driver_rows.items():
                given = ((key, value, None) for key, value in values.items())
                _move_rows(connection, totals, step, given, request.epoch)
            for step, states in request.state_rows.items():
                edited = ((key, *state) for key, state in states.items())
                _move_rows(connection, totals, step, edited, request.epoch)
            for edit in request.edits:
                _edit_step(connection, totals, edit, request.epoch)
            faults.reach("close.2.driver")
            # 5
            insert_epoch(connection, _closing_row(connection, before, lease, request, totals))
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


def _move(
    connection: apsw.Connection, totals: CloseSums, step: StepId, table: str, epoch: Epoch, held: int | None = None
) -> None:
    """Write a table's rows of a step. held: the number of the step's rows before, if this is the epoch's first write to
    the step."""
    bindings = {"epoch": epoch, "step": step}

    def execute(sql: str) -> Any:
        return connection.execute(sql.format(table=table), bindings).fetchall()

    execute(SUPERSEDE_AND_NOTE if totals.notes_made else SUPERSEDE)
    execute(WRITE)
    wrote = connection.changes()
    execute(DISCARD)
    if not wrote:
        return
    most = held is not None and wrote > SCAN_SHARE * held
    [(written, high, low, size_bytes)] = execute(WRITTEN_OF_STEP if most else WRITTEN)
    totals.written += written
    if not step.startswith(RESERVED_PREFIX):
        totals.states += written
    totals.size_bytes += size_bytes
    totals.gain(step, written, size_bytes)
    totals.digest += combine(high, low)


def _move_rows(
    connection: apsw.Connection,
    totals: CloseSums,
    step: StepId,
    given: Iterable[tuple[str, str | bytes | None, int | None]],
    epoch: Epoch,
) -> None:
    """Write keys with value and timeout, read one by one from `given`, which need not fit in memory."""
    connection.execute(f"DELETE FROM temp.{DRIVER_TABLE}")
    connection.executemany(f"INSERT INTO temp.{DRIVER_TABLE} VALUES (?, ?, ?)", given)
    _move(connection, totals, step, f"temp.{DRIVER_TABLE}", epoch)


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
        _move(connection, totals, edit.new, f"temp.{DRIVER_TABLE}", epoch)
    if edit.new == edit.old:
        return
    connection.execute(f"DELETE FROM temp.{DRIVER_TABLE}")
    connection.execute(
        f"INSERT INTO temp.{DRIVER_TABLE} SELECT state_key, NULL, NULL FROM snaps WHERE step_id = ?", (edit.old,)
    )
    _move(connection, totals, edit.old, f"temp.{DRIVER_TABLE}", epoch)


def _closing_row(
    connection: apsw.Connection,
    before: ClosedEpoch | None,
    lease: Lease,
    request: CloseRequest,
    totals: CloseSums,
) -> ClosedEpoch:
    """Return the row of the epoch. The row's sums are those of the previous live rows, minus superseded, plus written
    ones. Also updates the steps' sizes."""
    superseded = digest = 0
    for step, count, high, low, size_bytes in rows(connection, SUPERSEDED, (request.epoch,)):
        superseded, digest = superseded + count, digest + combine(high, low)
        totals.gain(step, -count, -(size_bytes or 0))
    live_rows, live_digest = live_rows_of(before)
    live_rows, live_digest = live_rows - superseded + totals.written, live_digest - digest + totals.digest
    if totals.notes_made:
        # A noted key was not live before.
        for step, count in rows(connection, NOTED, (request.epoch,)):
            totals.gain(step, count, 0)
        [(count, high, low)] = rows(connection, NOTED_DIGESTS, (request.epoch,))
        live_rows, live_digest = live_rows + count, live_digest + combine(high, low)
    change_sizes(connection, totals.changes)
    live = live_rows, live_digest % MODULUS
    return closed_epoch(lease, request, totals.written, live, superseded=(superseded, digest % MODULUS))


def _closed_before(connection: apsw.Connection, closed: ClosedEpoch) -> ClosedPartition:
    return ClosedPartition(closed.written, closed.written, 0, 0, 0.0, read_sizes(connection))
