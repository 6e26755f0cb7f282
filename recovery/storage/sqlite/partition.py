"""Operations on one recovery partition: describe it, start an execution in it, close an epoch in it.

Every public function here is one transaction on one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import apsw

from recovery.base import faults
from recovery.base.ids import NO_EPOCH, Epoch, ExecutionNumber, Lease, PartitionIndex, StepId
from recovery.base.reserved import RESERVED_PREFIX
from recovery.base.wording import counted
from recovery.errors import CorruptPartitionError, LeaseLostError
from recovery.planning.measures import ClosedPartition, StepSize
from recovery.planning.values import ClosedEpoch, Execution, PartitionDescription, StepEdit
from recovery.storage.seam import CloseRequest
from recovery.storage.sqlite.columns import checked_rows
from recovery.storage.sqlite.digests import MODULUS, SUM_SQL, combine, record_digest, row_digest_sql
from recovery.storage.sqlite.epoch_log import (
    NEWEST,
    Logged,
    Sealed,
    append_rows,
    append_touched,
    check_log,
    is_logged,
    logged_steps,
    overlaid,
)
from recovery.storage.sqlite.measures import change_sizes, read_sizes
from recovery.storage.sqlite.schema import has_changes, rows, snapshot, transaction, translated, value
from recovery.storage.sqlite.tables import ROW_BYTES

PARTS = "SELECT part_index, part_count, store_id, flow_id, created_ms, digest FROM parts"
COMMITS = "SELECT part_index, commit_epoch, digest FROM commits"
EXECUTIONS = """
SELECT ex_num, ex_id, flow_id, resume_epoch, started_ms, snapshot_interval_s, backup_interval_s,
       host, pid, version, digest
FROM exs ORDER BY ex_num
"""
EPOCHS = """
SELECT epoch, ex_num, ex_id, batch_id, closed_ms, clock_ms, written,
       live_rows, live_digest, superseded_rows, superseded_digest, digest
FROM epochs {where} ORDER BY epoch
"""
LOGGED = "SELECT epoch, row_count, changes_digest, digest FROM logged"

# Every step id that has a row, by skipping from one to the next: as many seeks as steps.
STEPS = """
WITH RECURSIVE steps(id) AS (
    SELECT min(step_id) FROM snaps
    UNION ALL
    SELECT (SELECT min(step_id) FROM snaps WHERE step_id > id) FROM steps WHERE id IS NOT NULL
)
SELECT id FROM steps WHERE id IS NOT NULL
"""

# The same as of an earlier epoch. Rows live at that epoch: unchanged ones, and those superseded later.
STEPS_BEFORE = f"""
WITH known(id) AS ({STEPS})
SELECT id FROM known WHERE EXISTS (SELECT 1 FROM snaps WHERE step_id = id AND snap_epoch < :epoch)
UNION
SELECT step_id FROM superseded WHERE until_epoch >= :epoch AND snap_epoch < :epoch
"""

MOVED_DIGEST = row_digest_sql(":step", "state_key", ":epoch", "after", "after_timeout")

# The values of a step before an epoch: live rows written before it, and the value that a key's first successor from
# that epoch on superseded, if that value was written before it. A key made later has no row that marks its beginning.
VALUES_BEFORE = """
SELECT state_key, ser_change FROM (
    SELECT state_key, min(until_epoch), snap_epoch, ser_change FROM superseded
    WHERE until_epoch >= :epoch AND step_id = :step GROUP BY state_key
) WHERE snap_epoch < :epoch
UNION ALL
SELECT state_key, ser_change FROM snaps WHERE step_id = :step AND snap_epoch < :epoch
"""

# `{table}` holds the keys that the epoch touched, each with its value and timeout after the epoch.
SUPERSEDE = """
INSERT INTO superseded
SELECT :epoch, :step, m.state_key, s.snap_epoch, s.ser_change, s.timeout_ms, s.digest
FROM {table} AS m CROSS JOIN snaps AS s WHERE s.step_id = :step AND s.state_key = m.state_key
"""
WRITE = f"""
INSERT INTO snaps
SELECT :step, state_key, :epoch, after, after_timeout, {MOVED_DIGEST}
FROM {{table}} WHERE after IS NOT NULL
ON CONFLICT (step_id, state_key) DO UPDATE SET
    snap_epoch = excluded.snap_epoch,
    ser_change = excluded.ser_change,
    timeout_ms = excluded.timeout_ms,
    digest     = excluded.digest
"""
DISCARD = """
DELETE FROM snaps WHERE step_id = :step AND state_key IN (SELECT state_key FROM {table} WHERE after IS NULL)
"""
WRITTEN = f"""
SELECT {SUM_SQL}, coalesce(sum(octet_length(m.state_key) + octet_length(s.ser_change)), 0)
FROM {{table}} AS m CROSS JOIN snaps AS s
WHERE s.step_id = :step AND s.state_key = m.state_key AND s.snap_epoch = :epoch
"""
# The same for a step to which nothing else in the epoch has written, by reading the whole step in order. A row costs a
# quarter of a search, so this is faster once a third of the rows was touched.
WRITTEN_OF_STEP = f"""
SELECT {SUM_SQL}, coalesce(sum({ROW_BYTES}), 0) FROM snaps WHERE step_id = :step AND snap_epoch = :epoch
"""
SCAN_SHARE = 1 / 3

# The rows that folding will replace, and all rows of a step: see SCAN_SHARE.
REPLACED = f"""
SELECT {SUM_SQL}, coalesce(sum(octet_length(m.state_key) + octet_length(s.ser_change)), 0)
FROM {{table}} AS m CROSS JOIN snaps AS s WHERE s.step_id = :step AND s.state_key = m.state_key
"""
OF_STEP = f"SELECT {SUM_SQL}, coalesce(sum({ROW_BYTES}), 0) FROM snaps WHERE step_id = :step"

# Rows that the epoch superseded, by step.
SUPERSEDED = f"""
SELECT step_id, {SUM_SQL}, sum({ROW_BYTES}) FROM superseded WHERE until_epoch = ? GROUP BY step_id
"""

# The state of a key before an epoch is the value that its first successor from that epoch on superseded. SQLite takes
# the other columns of a min() from the row that has the minimum. If snap_epoch of that row is not earlier, the key was
# made later and had no state before the epoch.
UNDO = """
CREATE TEMP TABLE undo AS
SELECT step_id, state_key, min(until_epoch), snap_epoch, ser_change, timeout_ms, digest
FROM superseded WHERE until_epoch >= ? GROUP BY step_id, state_key
"""
# Each by step: the rows now in place of those, the rows that come back, and the rows made since.
UNDONE = f"""
SELECT step_id, {SUM_SQL}, sum({ROW_BYTES}) FROM (
    SELECT s.* FROM temp.undo AS u CROSS JOIN snaps AS s WHERE s.step_id = u.step_id AND s.state_key = u.state_key
) GROUP BY step_id
"""
RESTORED = f"SELECT step_id, {SUM_SQL}, sum({ROW_BYTES}) FROM temp.undo WHERE snap_epoch < :epoch GROUP BY step_id"
MADE_SINCE = f"SELECT step_id, {SUM_SQL}, sum({ROW_BYTES}) FROM snaps WHERE snap_epoch >= :epoch GROUP BY step_id"
RESTORE = """
INSERT INTO snaps SELECT step_id, state_key, snap_epoch, ser_change, timeout_ms, digest
FROM temp.undo WHERE snap_epoch < ?
"""


def describe(connection: apsw.Connection, path: Path) -> PartitionDescription:
    """Return the description of the partition after checking its rows' digests. One read transaction."""
    with translated(path), snapshot(connection):
        parts = checked_rows("parts", rows(connection, PARTS))
        commits = checked_rows("commits", rows(connection, COMMITS))
        if len(parts) != 1 or len(commits) != 1:
            raise CorruptPartitionError("it does not say which partition it is", path=path)
        [(index, count, store_id, flow_id, _)] = parts
        executions = checked_rows("exs", rows(connection, EXECUTIONS))
        epochs = checked_rows("epochs", rows(connection, EPOCHS.format(where="")))
        logged = checked_rows("logged", _logged_rows(connection))
        size = connection.pragma("page_count") * connection.pragma("page_size")
    return PartitionDescription(
        path=path,
        index=PartitionIndex(index),
        count=count,
        store_id=store_id,
        flow_id=flow_id,
        collected=Epoch(commits[0][1]),
        executions=tuple(Execution(*row) for row in executions),
        epochs=_closed_epochs(epochs, logged),
        size_bytes=size,
    )


def insert_parts(
    connection: apsw.Connection, index: PartitionIndex, count: int, store_id: str, created_ms: int
) -> None:
    """Insert the two rows of a new partition. Inside the caller's transaction."""
    parts = (index, count, store_id, None, created_ms)
    connection.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?)", (*parts, record_digest(*parts)))
    _set_collected(connection, index, NO_EPOCH)


def start(
    connection: apsw.Connection, path: Path, execution: Execution, planned: PartitionDescription | None = None
) -> None:
    """Begin an execution: abandon everything at or above its resume epoch, fold the log, and record the execution.
    Repeatable.

    planned: the partition as the plan saw it. The cost is proportional to the abandoned and the logged changes; if
    abandoned epochs made keys, to the whole state. Raises LeaseLostError if a later execution began, or an epoch was
    closed since the plan was made.
    """
    with translated(path), transaction(connection):
        begin(connection, path, execution, planned)


def begin(
    connection: apsw.Connection, path: Path, execution: Execution, planned: PartitionDescription | None = None
) -> None:
    """Do what `start` does, inside the caller's transaction."""
    newest = value(connection, "SELECT max(ex_num) FROM exs") or 0
    if rows(connection, "SELECT 1 FROM exs WHERE ex_num = ? AND ex_id = ?", (newest, execution.id)):
        return
    if newest >= execution.number:
        raise LeaseLostError(f"execution {newest} began before {execution.number}", path=path)
    if planned is not None and _newest_epoch(connection) != planned.newest:
        # That epoch was already acknowledged, so a plan that does not know it must not abandon it.
        raise LeaseLostError(
            "an epoch was closed since this was planned",
            path=path,
            cause="The state was edited by force, or a run that was fenced closed its last epoch at that moment.",
            remedy="Run the same command again.",
        )
    [(_, collected, _)] = rows(connection, COMMITS)
    if execution.resume_epoch <= collected:
        raise CorruptPartitionError(
            f"it cannot start at epoch {execution.resume_epoch}: it has collected up to {collected}", path=path
        )
    if value(connection, "SELECT max(epoch) FROM epochs WHERE epoch >= ?", (execution.resume_epoch,)):
        _abandon(connection, path, execution.resume_epoch)
    last = value(connection, "SELECT max(epoch) FROM epochs") or 0
    if last != execution.resume_epoch - 1 or (last == 0 and rows(connection, "SELECT 1 FROM snaps LIMIT 1")):
        raise CorruptPartitionError(
            f"it cannot start at epoch {execution.resume_epoch}: its newest epoch is {last}", path=path
        )
    if is_logged(connection):
        # All partitions hold the epoch, so none has to go back to an earlier one.
        _create_driver_table(connection)
        _fold(connection, path, Epoch(last), {})
    fields = (
        execution.number, execution.id, execution.flow_id, execution.resume_epoch, execution.started_ms,
        execution.snapshot_interval_s, execution.backup_interval_s, execution.host, execution.pid,
        execution.version,
    )  # fmt: skip
    connection.execute(
        f"INSERT INTO exs VALUES ({', '.join('?' * (len(fields) + 1))})", (*fields, record_digest(*fields))
    )
    [parts] = rows(connection, PARTS)
    bound = (*parts[:3], execution.flow_id, parts[4])
    connection.execute("UPDATE parts SET flow_id = ?, digest = ?", (execution.flow_id, record_digest(*bound)))


def check_lease(connection: apsw.Connection, path: Path, lease: Lease) -> None:
    """Raise LeaseLostError if a later execution began. One read."""
    with translated(path):
        if not _is_newest(connection, lease):
            raise LeaseLostError(f"execution {lease.number} may not go on: a later one began", path=path)


def rewind(connection: apsw.Connection, path: Path, newest: Epoch) -> bool:
    """Make `newest` the newest epoch, discarding later ones, in one transaction. Return whether there were any.

    For a copy that no run uses: unlike `start`, it does not begin an execution.
    """
    with translated(path), transaction(connection):
        found = bool(rows(connection, "SELECT 1 FROM epochs WHERE epoch > ? LIMIT 1", (newest,)))
        if found:
            _abandon(connection, path, Epoch(newest + 1))
        return found


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
        _create_driver_table(connection)
        with transaction(connection):
            # 1
            before = _next_epoch_after(connection, path, lease, request)
            if before is not None and before.epoch == request.epoch:
                return _closed_before(connection, before)
            if before is not None and before.is_logged:
                before = _fold(connection, path, before.epoch, {})
            faults.reach("close.2.checked")
            # 2
            began_s = elapsed_s()
            collected = collect(connection, request.floor)
            collect_s = elapsed_s() - began_s
            faults.reach("close.2.collected")
            # 3
            totals = _Totals()
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
            _insert_epoch(connection, _closing_row(connection, before, lease, request, totals))
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

    It does what `close_epoch` does, but leaves updating `snaps` and collecting to `fold`, and makes no edits.
    The cost is proportional to what was touched since the last fold, and does not depend on the partition's content.
    If a transaction is already open, in which only deltas were read, this continues it.
    """
    edited = (*request.edits, *request.state_rows)
    assert not edited, f"an epoch that edits {edited} cannot be logged"
    with translated(path), transaction(connection, joined=True):
        # Takes the write lock before anything is read: a reader cannot get it once others have written meanwhile.
        connection.execute("DELETE FROM changes WHERE false")
        before = _next_epoch_after(connection, path, lease, request)
        if before is not None and before.epoch == request.epoch:
            return _closed_before(connection, before)
        faults.reach("close.2.checked")
        total, states = Logged(), 0
        for step, each in sealed.items():
            logged = append_touched(connection, request.epoch, step, each, request.batch)
            total, states = total + logged, states + logged.written
        faults.reach("close.2.logged")
        for step, values in request.driver_rows.items():
            given = ((key, value, None) for key, value in values.items())
            total += append_rows(connection, request.epoch, step, given)
        faults.reach("close.2.driver")
        _insert_epoch(
            connection,
            _closed_epoch(lease, request, total.written, _live(before), logged=(total.rows, total.digest % MODULUS)),
        )
        sizes = read_sizes(connection)
        faults.reach("close.2.epochs")
    faults.reach("close.2.committed")
    return ClosedPartition(states, total.written, total.size_bytes, 0, 0.0, sizes)


def fold(
    connection: apsw.Connection, path: Path, lease: Lease, epoch: Epoch, sealed: Mapping[StepId, str]
) -> Mapping[str, StepSize]:
    """Bring `snaps` to an epoch that all partitions have closed, and stop holding earlier epochs. One transaction.
    Repeatable. Returns the size of each step.

    `sealed` names the table of each step's delta, which has everything touched since the last fold; for other steps
    the log is read. Raises LeaseLostError if a later execution began.
    """
    with translated(path):
        _create_driver_table(connection)
        with transaction(connection):
            if not _is_newest(connection, lease):
                raise LeaseLostError(f"execution {lease.number} may not write any more", path=path)
            newest = _newest_epoch(connection)
            if newest is not None and newest.is_logged:
                assert newest.epoch == epoch, f"epoch {epoch} cannot be folded: the newest here is {newest.epoch}"
                _fold(connection, path, epoch, sealed)
            sizes = read_sizes(connection)
        faults.reach("fold.2.committed")
    return sizes


def fold_log(connection: apsw.Connection, path: Path, epoch: Epoch) -> int:
    """Fold the log if `epoch`, which all partitions have closed, is the newest. Return the number of logged changes.
    Inside a transaction. Raises CorruptPartitionError if the log is damaged."""
    newest = _newest_epoch(connection)
    if newest is None or newest.epoch != epoch or not newest.is_logged:
        return 0
    changes = int(value(connection, "SELECT sum(row_count) FROM logged") or 0)
    _create_driver_table(connection)
    _fold(connection, path, epoch, {})
    return changes


def _fold(connection: apsw.Connection, path: Path, epoch: Epoch, sealed: Mapping[StepId, str]) -> ClosedEpoch:
    """Fold as `fold` does, inside a transaction, and return the epoch. Raises CorruptPartitionError if the log is
    damaged."""
    problems = check_log(connection, sealed)
    if problems:
        raise CorruptPartitionError(problems[0], path=path)
    connection.execute("DELETE FROM superseded")
    faults.reach("fold.2.collected")
    totals, sizes = _Totals(), read_sizes(connection)
    for step, table in sealed.items():
        _fold_step(connection, totals, step, table, epoch, sizes.get(step, StepSize(0, 0)).rows)
    for step in sorted(logged_steps(connection).difference(sealed)):
        connection.execute(f"DELETE FROM temp.{_DRIVER_TABLE}")
        connection.execute(f"INSERT INTO temp.{_DRIVER_TABLE} {NEWEST}", {"step": step})
        held = sizes.get(step, StepSize(0, 0)).rows
        _fold_step(connection, totals, step, f"temp.{_DRIVER_TABLE}", epoch, held)
    faults.reach("fold.2.snaps")
    change_sizes(connection, totals.changes)
    newest = _newest_epoch(connection)
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
    _insert_epoch(connection, folded)
    _set_collected(connection, rows(connection, COMMITS)[0][0], epoch)
    faults.reach("fold.2.epochs")
    return folded


def _fold_step(connection: apsw.Connection, totals: _Totals, step: StepId, table: str, epoch: Epoch, held: int) -> None:
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
    floor = min(floor, _folded_epoch(connection))
    if floor <= collected:
        return 0
    if (value(connection, "SELECT max(until_epoch) FROM superseded") or NO_EPOCH) <= floor:
        # Without a condition SQLite drops whole pages instead of rows.
        connection.execute("DELETE FROM superseded")
    else:
        connection.execute("DELETE FROM superseded WHERE until_epoch <= ?", (floor,))
    deleted = connection.changes()
    connection.execute("DELETE FROM epochs WHERE epoch < ?", (floor,))
    _set_collected(connection, index, floor)
    return deleted


def known_steps(connection: apsw.Connection, path: Path, resume_epoch: Epoch | None = None) -> set[StepId]:
    """Return the step ids that have rows, in the newest snapshot or as the resume epoch will find it."""
    with translated(path), snapshot(connection), overlaid(connection, path):
        found = rows(connection, *((STEPS,) if resume_epoch is None else (STEPS_BEFORE, {"epoch": resume_epoch})))
        return {StepId(row[0]) for row in found}


def step_values(
    connection: apsw.Connection, path: Path, step: StepId, resume_epoch: Epoch | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield all keys and values of a step, as of the newest closed epoch or as the resume epoch will find them. They
    are read lazily."""
    with translated(path), snapshot(connection), overlaid(connection, path):
        if resume_epoch is not None:
            yield from connection.execute(VALUES_BEFORE, {"step": step, "epoch": resume_epoch})
        else:
            yield from connection.execute("SELECT state_key, ser_change FROM snaps WHERE step_id = ?", (step,))


_DRIVER_TABLE = "driver_rows"


class _Totals:
    """Running sums of one closing."""

    def __init__(self) -> None:
        self.states = self.written = 0
        self.digest = 0
        self.size_bytes = 0
        self.changes: dict[str, tuple[int, int]] = {}

    def gain(self, step: str, count: int, size_bytes: int) -> None:
        """Add the rows and bytes by which a step grows."""
        before = self.changes.get(step, (0, 0))
        self.changes[step] = before[0] + count, before[1] + size_bytes


def _move(
    connection: apsw.Connection, totals: _Totals, step: StepId, table: str, epoch: Epoch, held: int | None = None
) -> None:
    """Write a table's rows of a step. held: the number of the step's rows before, if this is the epoch's first write to
    the step."""
    bindings = {"epoch": epoch, "step": step}
    execute: Callable[[str], Any] = lambda sql: connection.execute(sql.format(table=table), bindings).fetchall()  # noqa: E731
    execute(SUPERSEDE)
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


def _create_driver_table(connection: apsw.Connection) -> None:
    """Create a temporary table with a delta's columns, so that the driver's rows are moved like all others."""
    connection.execute(
        f"CREATE TEMP TABLE IF NOT EXISTS {_DRIVER_TABLE}"
        " (state_key TEXT PRIMARY KEY, after ANY, after_timeout INTEGER) STRICT, WITHOUT ROWID"
    )


def _move_rows(
    connection: apsw.Connection,
    totals: _Totals,
    step: StepId,
    given: Iterable[tuple[str, str | bytes | None, int | None]],
    epoch: Epoch,
) -> None:
    """Write keys with value and timeout, read one by one from `given`, which need not fit in memory."""
    connection.execute(f"DELETE FROM temp.{_DRIVER_TABLE}")
    connection.executemany(f"INSERT INTO temp.{_DRIVER_TABLE} VALUES (?, ?, ?)", given)
    _move(connection, totals, step, f"temp.{_DRIVER_TABLE}", epoch)


def _edit_step(connection: apsw.Connection, totals: _Totals, edit: StepEdit, epoch: Epoch) -> None:
    """Drop, rename or convert a step: write its rows in the new form, and discard them under the old id."""
    if edit.new is not None:
        value_sql = "ser_change"
        if edit.convert is not None:
            convert: Any = edit.convert
            connection.create_scalar_function("convert_state", convert, 2)
            value_sql = "convert_state(state_key, ser_change)"
        connection.execute(f"DELETE FROM temp.{_DRIVER_TABLE}")
        connection.execute(
            f"INSERT INTO temp.{_DRIVER_TABLE} SELECT state_key, {value_sql}, timeout_ms FROM snaps WHERE step_id = ?",
            (edit.old,),
        )
        if edit.convert is not None:
            connection.create_scalar_function("convert_state", None, 2)
        _move(connection, totals, edit.new, f"temp.{_DRIVER_TABLE}", epoch)
    if edit.new == edit.old:
        return
    connection.execute(f"DELETE FROM temp.{_DRIVER_TABLE}")
    connection.execute(
        f"INSERT INTO temp.{_DRIVER_TABLE} SELECT state_key, NULL, NULL FROM snaps WHERE step_id = ?", (edit.old,)
    )
    _move(connection, totals, edit.old, f"temp.{_DRIVER_TABLE}", epoch)


def _closing_row(
    connection: apsw.Connection,
    before: ClosedEpoch | None,
    lease: Lease,
    request: CloseRequest,
    totals: _Totals,
) -> ClosedEpoch:
    """Return the row of the epoch. Its sums are the previous live rows, minus superseded, plus written ones. Also
    updates the steps' sizes."""
    superseded = digest = 0
    for step, count, high, low, size_bytes in rows(connection, SUPERSEDED, (request.epoch,)):
        superseded, digest = superseded + count, digest + combine(high, low)
        totals.gain(step, -count, -size_bytes)
    change_sizes(connection, totals.changes)
    live_rows, live_digest = _live(before)
    live = live_rows - superseded + totals.written, (live_digest - digest + totals.digest) % MODULUS
    return _closed_epoch(lease, request, totals.written, live, superseded=(superseded, digest % MODULUS))


def _live(closed: ClosedEpoch | None) -> tuple[int, int]:
    """Return number and digest sum of the rows in `snaps` as of an epoch."""
    return (closed.live_rows, closed.live_digest) if closed else (0, 0)


def _closed_epoch(
    lease: Lease,
    request: CloseRequest,
    written: int,
    live: tuple[int, int],
    *,
    superseded: tuple[int, int] = (0, 0),
    logged: tuple[int, int] | tuple[()] = (),
) -> ClosedEpoch:
    """Return the row of the requested epoch. Each pair is a number of rows and their digest sum."""
    when = request.closed_ms, request.clock_ms
    return ClosedEpoch(request.epoch, lease, request.batch, *when, written, *live, *superseded, *logged)


def _abandon(connection: apsw.Connection, path: Path, resume_epoch: Epoch) -> None:
    """Restore the rows that abandoned epochs superseded, and remove the keys that these epochs made. The cost is
    proportional to the rows they touched; if they made keys that were not replaced since, it is a scan of the state.
    Logged epochs need no restoring."""
    folded = _folded_epoch(connection)
    for table in ("changes", "logged"):
        connection.execute(f"DELETE FROM {table} WHERE epoch >= ?", (resume_epoch,))
    if folded < resume_epoch:
        connection.execute("DELETE FROM epochs WHERE epoch >= ?", (resume_epoch,))
        return
    before = _newest_epoch(connection)
    left = _live(before)
    connection.execute("DROP TABLE IF EXISTS temp.undo")
    connection.execute(UNDO, (resume_epoch,))
    left = _counted(connection, UNDONE, resume_epoch, left, -1)
    left = _counted(connection, RESTORED, resume_epoch, left, 1)
    connection.execute("DELETE FROM snaps WHERE (step_id, state_key) IN (SELECT step_id, state_key FROM temp.undo)")
    connection.execute(RESTORE, (resume_epoch,))
    connection.execute("DELETE FROM superseded WHERE until_epoch >= ?", (resume_epoch,))
    connection.execute("DELETE FROM epochs WHERE epoch >= ?", (resume_epoch,))
    connection.execute("DROP TABLE temp.undo")
    newest = _newest_epoch(connection)
    expected = _live(newest)
    if left != expected:
        left = _counted(connection, MADE_SINCE, resume_epoch, left, -1)
        connection.execute("DELETE FROM snaps WHERE snap_epoch >= ?", (resume_epoch,))
        if left != expected:
            rows_left = "other rows" if left[0] == expected[0] else counted(left[0], "row")
            raise CorruptPartitionError(
                f"going back to epoch {resume_epoch - 1} leaves {rows_left} where it had {expected[0]}",
                path=path,
            )


def _counted(
    connection: apsw.Connection, sql: str, resume_epoch: Epoch, before: tuple[int, int], sign: int
) -> tuple[int, int]:
    """Return rows and digest sum of the state after adding (1) or removing (-1) the rows of a query. Also updates the
    steps' sizes."""
    count, digest = before
    changes: dict[str, tuple[int, int]] = {}
    for step, found, high, low, size_bytes in rows(connection, sql, {"epoch": resume_epoch}):
        changes[step] = sign * found, sign * size_bytes
        count, digest = count + sign * found, (digest + sign * combine(high, low)) % MODULUS
    change_sizes(connection, changes)
    return count, digest


def _is_newest(connection: apsw.Connection, lease: Lease) -> bool:
    """Return whether no execution began after this one."""
    newest = rows(connection, "SELECT ex_num, ex_id FROM exs ORDER BY ex_num DESC LIMIT 1")
    return newest == [(lease.number, lease.id)]


def _next_epoch_after(
    connection: apsw.Connection, path: Path, lease: Lease, request: CloseRequest
) -> ClosedEpoch | None:
    """Return the newest epoch if the requested one may be closed after it, or is the same. Raises LeaseLostError,
    CorruptPartitionError."""
    if not _is_newest(connection, lease):
        raise LeaseLostError(f"execution {lease.number} may not close an epoch any more", path=path)
    newest = _newest_epoch(connection)
    if newest is not None and newest.cut == (request.epoch, lease.id, request.batch):
        return newest
    if (newest.epoch if newest else 0) != request.epoch - 1:
        raise CorruptPartitionError(
            f"it cannot close epoch {request.epoch}: its newest is {newest.epoch if newest else 0}", path=path
        )
    return newest


def _closed_before(connection: apsw.Connection, closed: ClosedEpoch) -> ClosedPartition:
    return ClosedPartition(closed.written, closed.written, 0, 0, 0.0, read_sizes(connection))


def _newest_epoch(connection: apsw.Connection) -> ClosedEpoch | None:
    found = rows(connection, EPOCHS.format(where="WHERE epoch = (SELECT max(epoch) FROM epochs)"))
    closed = _closed_epochs(found, _logged_rows(connection))
    return closed[0] if closed else None


def _folded_epoch(connection: apsw.Connection) -> Epoch:
    """Return the epoch of `snaps`."""
    sql = "SELECT max(epoch) FROM epochs WHERE epoch NOT IN (SELECT epoch FROM logged)"
    return Epoch(value(connection, sql) or NO_EPOCH)


def _logged_rows(connection: apsw.Connection) -> list[tuple[Any, ...]]:
    return rows(connection, LOGGED) if has_changes(connection) else []


def _closed_epochs(epochs: Sequence[Sequence[Any]], logged: Sequence[Sequence[Any]]) -> tuple[ClosedEpoch, ...]:
    of_log = {row[0]: (row[1], row[2]) for row in logged}
    return tuple(
        ClosedEpoch(epoch, Lease(ExecutionNumber(ex_num), ex_id), *rest[:8], *of_log.get(epoch, ()))
        for epoch, ex_num, ex_id, *rest in epochs
    )


def _insert_epoch(connection: apsw.Connection, closed: ClosedEpoch) -> None:
    epoch, (number, ex_id), *rest = astuple(closed)
    fields = (epoch, number, ex_id, *rest[:8])
    connection.execute(
        f"INSERT INTO epochs VALUES ({', '.join('?' * (len(fields) + 1))})", (*fields, record_digest(*fields))
    )
    if closed.is_logged:
        fields = (epoch, *rest[8:])
        connection.execute("INSERT INTO logged VALUES (?, ?, ?, ?)", (*fields, record_digest(*fields)))


def _set_collected(connection: apsw.Connection, index: int, floor: Epoch) -> None:
    connection.execute("INSERT OR REPLACE INTO commits VALUES (?, ?, ?)", (index, floor, record_digest(index, floor)))
