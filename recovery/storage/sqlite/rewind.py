"""Starting an execution in one partition, which abandons everything at or above its resume epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw

from recovery.base.ids import Epoch
from recovery.base.wording import counted
from recovery.errors import CorruptPartitionError, LeaseLostError
from recovery.planning.values import Execution, PartitionDescription
from recovery.storage.seam import KeyToErase
from recovery.storage.sqlite.describe import COMMITS, bind, folded_epoch, insert_execution, newest_epoch
from recovery.storage.sqlite.digests import MODULUS, SUM_SQL, combine
from recovery.storage.sqlite.epoch_log import check_sound, is_logged
from recovery.storage.sqlite.erase import erase_keys
from recovery.storage.sqlite.file.statements import rows, transaction, translated, value
from recovery.storage.sqlite.file.tables import ROW_BYTES
from recovery.storage.sqlite.fold import fold_into_snaps
from recovery.storage.sqlite.measures import change_sizes
from recovery.storage.sqlite.snap_rows import create_driver_table, live_rows_of

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


def start(
    connection: apsw.Connection,
    path: Path,
    execution: Execution,
    planned: PartitionDescription | None = None,
    *,
    keeps_log: bool = False,
    erases: Sequence[KeyToErase] = (),
) -> None:
    """Begin an execution: abandon everything at or above its resume epoch, fold the log, and record the execution.
    Repeatable.

    planned: the partition as the plan saw it. keeps_log: check the log instead of folding it. erases: keys of which
    nothing stays, at any epoch. The cost is proportional
    to the abandoned and the logged changes; if abandoned epochs made keys, to the whole state. Raises LeaseLostError if
    a later execution began, or an epoch was closed since the plan was made.
    """
    with translated(path), transaction(connection):
        begin(connection, path, execution, planned, keeps_log=keeps_log, erases=erases)


def begin(
    connection: apsw.Connection,
    path: Path,
    execution: Execution,
    planned: PartitionDescription | None = None,
    *,
    keeps_log: bool = False,
    erases: Sequence[KeyToErase] = (),
) -> None:
    """Do what `start` does, inside the caller's transaction."""
    newest = value(connection, "SELECT max(ex_num) FROM exs") or 0
    if rows(connection, "SELECT 1 FROM exs WHERE ex_num = ? AND ex_id = ?", (newest, execution.id)):
        return
    if newest >= execution.number:
        raise LeaseLostError(f"execution {newest} began before {execution.number}", path=path)
    if planned is not None and newest_epoch(connection) != planned.newest:
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
        abandon(connection, path, execution.resume_epoch)
    last = value(connection, "SELECT max(epoch) FROM epochs") or 0
    if last != execution.resume_epoch - 1 or (last == 0 and rows(connection, "SELECT 1 FROM snaps LIMIT 1")):
        raise CorruptPartitionError(
            f"it cannot start at epoch {execution.resume_epoch}: its newest epoch is {last}", path=path
        )
    if keeps_log:
        check_sound(connection, path)
    elif is_logged(connection):
        create_driver_table(connection)
        # All partitions hold the epoch, so none has to go back to an earlier one, unless the user wants to. Erasing
        # gives no epoch up.
        floor = Epoch(collected if execution.backup_interval_s or execution.erases else last)
        fold_into_snaps(connection, path, Epoch(last), {}, floor)
    if execution.erases:
        erase_keys(connection, erases)
    insert_execution(connection, execution)
    bind(connection, execution.flow_id)


def rewind(connection: apsw.Connection, path: Path, newest: Epoch) -> bool:
    """Make `newest` the newest epoch, discarding later ones, in one transaction. Return whether there were any.

    For a copy that no run uses: unlike `start`, it does not begin an execution.
    """
    with translated(path), transaction(connection):
        found = bool(rows(connection, "SELECT 1 FROM epochs WHERE epoch > ? LIMIT 1", (newest,)))
        if found:
            abandon(connection, path, Epoch(newest + 1))
        return found


def abandon(connection: apsw.Connection, path: Path, resume_epoch: Epoch) -> None:
    """Restore the rows that abandoned epochs superseded, and remove the keys that these epochs made. The cost is
    proportional to the rows they touched; if they made keys that were not replaced since, it is a scan of the state.
    Logged epochs need no restoring."""
    folded = folded_epoch(connection)
    for table in ("changes", "logged"):
        connection.execute(f"DELETE FROM {table} WHERE epoch >= ?", (resume_epoch,))
    if folded < resume_epoch:
        connection.execute("DELETE FROM epochs WHERE epoch >= ?", (resume_epoch,))
        return
    before = newest_epoch(connection)
    left = live_rows_of(before)
    connection.execute("DROP TABLE IF EXISTS temp.undo")
    connection.execute(UNDO, (resume_epoch,))
    left = _counted(connection, UNDONE, resume_epoch, left, -1)
    left = _counted(connection, RESTORED, resume_epoch, left, 1)
    connection.execute("DELETE FROM snaps WHERE (step_id, state_key) IN (SELECT step_id, state_key FROM temp.undo)")
    connection.execute(RESTORE, (resume_epoch,))
    connection.execute("DELETE FROM superseded WHERE until_epoch >= ?", (resume_epoch,))
    connection.execute("DELETE FROM epochs WHERE epoch >= ?", (resume_epoch,))
    connection.execute("DROP TABLE temp.undo")
    newest = newest_epoch(connection)
    expected = live_rows_of(newest)
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
