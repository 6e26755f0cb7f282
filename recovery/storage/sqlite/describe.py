"""The description of one partition: its executions, epochs and steps, and who may write to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import apsw

from recovery.base.ids import NO_EPOCH, Epoch, ExecutionNumber, Lease, PartitionIndex, StepId
from recovery.errors import CorruptPartitionError, LeaseLostError
from recovery.planning.held import continued, is_without_gap, unsettled_from
from recovery.planning.values import ClosedEpoch, Execution, PartitionDescription
from recovery.storage.seam import CloseRequest
from recovery.storage.sqlite.columns import checked_rows, columns_of
from recovery.storage.sqlite.digests import record_digest
from recovery.storage.sqlite.epoch_log import is_written_last, logged_steps, overlaid
from recovery.storage.sqlite.file.opening import has_changes
from recovery.storage.sqlite.file.statements import rows, snapshot, translated, value
from recovery.storage.sqlite.measures import counted_rows

PARTS = f"SELECT {columns_of('parts')} FROM parts"
COMMITS = f"SELECT {columns_of('commits')} FROM commits"
EXECUTIONS = f"SELECT {columns_of('exs')} FROM exs ORDER BY ex_num"
EPOCHS = f"SELECT {columns_of('epochs')} FROM epochs {{where}} ORDER BY epoch"
LOGGED = f"SELECT {columns_of('logged')} FROM logged"
SINCE = "WHERE epoch >= min(:since, (SELECT max(epoch) FROM epochs))"
BEFORE = "SELECT count(*) FROM epochs WHERE epoch < :first"
# Digests of 56 bits, in two halves: a sum of thousands of whole ones would not fit.
CONTENT = "SELECT count(*), sum(digest & 0xFFFFFFF), sum(digest >> 28) FROM {table}"
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


def describe(connection: apsw.Connection, path: Path, since: Epoch = NO_EPOCH) -> PartitionDescription:
    """Return the description of the partition after checking its rows' digests. One read transaction.

    since: list and check only the epochs from this one on, and the newest (see `recovery.planning.held`); if the others
    have gaps, all.
    """
    with translated(path), snapshot(connection):
        parts = checked_rows("parts", rows(connection, PARTS))
        commits = checked_rows("commits", rows(connection, COMMITS))
        if len(parts) != 1 or len(commits) != 1:
            raise CorruptPartitionError("it does not say which partition it is", path=path)
        [(index, count, store_id, flow_id, _)] = parts
        executions = checked_rows("exs", rows(connection, EXECUTIONS))
        epochs = checked_rows("epochs", rows(connection, EPOCHS.format(where=SINCE if since else ""), {"since": since}))
        unlisted = value(connection, BEFORE, {"first": epochs[0][0]}) if since and epochs else 0
        logged = checked_rows("logged", _logged_rows(connection))
        size = connection.pragma("page_count") * connection.pragma("page_size")
    found = PartitionDescription(
        path=path,
        index=PartitionIndex(index),
        count=count,
        store_id=store_id,
        flow_id=flow_id,
        collected=Epoch(commits[0][1]),
        executions=tuple(Execution(*row) for row in executions),
        epochs=closed_epochs(epochs, logged),
        size_bytes=size,
        unlisted=unlisted,
    )
    return found if is_without_gap(found) else describe(connection, path)


def describe_again(connection: apsw.Connection, path: Path, before: PartitionDescription) -> PartitionDescription:
    """Return what `describe` does. before: an earlier description of the file, whose settled epochs are not read and
    checked again."""
    with translated(path), snapshot(connection):
        return continued(before, describe(connection, path, unsettled_from(before))) or describe(connection, path)


def content_digest(connection: apsw.Connection, path: Path, description: PartitionDescription) -> int:
    """Return a digest that changes with each change of the partition's epochs and executions, and of what it is."""
    d = description
    with translated(path):
        tables = ("epochs", "logged") if has_changes(connection) else ("epochs",)
        sums = [rows(connection, CONTENT.format(table=table)) for table in tables]
    executions = [[e.number, e.id] for e in d.executions]
    return record_digest(d.store_id, d.index, d.count, d.flow_id, d.collected, executions, sums)


def insert_parts(
    connection: apsw.Connection, index: PartitionIndex, count: int, store_id: str, created_ms: int
) -> None:
    """Insert the two rows of a new partition. Inside the caller's transaction."""
    parts = (index, count, store_id, None, created_ms)
    connection.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?)", (*parts, record_digest(*parts)))
    set_collected(connection, index, NO_EPOCH)


def set_store(connection: apsw.Connection, store_id: str) -> None:
    """Make the partition a part of another store. Inside the caller's transaction."""
    [(index, count, _, flow_id, created_ms, _)] = rows(connection, PARTS)
    parts = (index, count, store_id, flow_id, created_ms)
    connection.execute("UPDATE parts SET store_id = ?, digest = ?", (store_id, record_digest(*parts)))


def bind(connection: apsw.Connection, flow_id: str | None) -> None:
    """Bind a partition to a flow. Inside the caller's transaction."""
    [parts] = rows(connection, PARTS)
    bound = (*parts[:3], flow_id, parts[4])
    connection.execute("UPDATE parts SET flow_id = ?, digest = ?", (flow_id, record_digest(*bound)))


def insert_execution(connection: apsw.Connection, execution: Execution) -> None:
    """Record an execution. Inside the caller's transaction."""
    fields = astuple(execution)
    connection.execute(
        f"INSERT INTO exs VALUES ({', '.join('?' * (len(fields) + 1))})", (*fields, record_digest(*fields))
    )


def check_lease(connection: apsw.Connection, path: Path, lease: Lease) -> None:
    """Raise LeaseLostError if a later execution began. One read."""
    with translated(path):
        if not is_newest(connection, lease):
            raise LeaseLostError(f"execution {lease.number} may not write any more: a later one began", path=path)


def known_steps(connection: apsw.Connection, path: Path, resume_epoch: Epoch | None = None) -> set[StepId]:
    """Return the step ids that have rows, in the newest snapshot or as the resume epoch will find it."""
    with translated(path), snapshot(connection):
        # A step with more rows than changes keeps some of them, whatever the changes are.
        unsure = {
            step
            for step, changes in logged_steps(connection).items()
            if changes >= (counted_rows(connection, step) or 0)
        }
        with overlaid(connection, path, unsure):
            return _steps(connection, resume_epoch)


def newest_steps(connection: apsw.Connection, path: Path) -> set[StepId]:
    """Return the step ids that have rows in the newest snapshot, as `known_steps` does; reads only as much of the log
    as that needs. A read transaction is open."""
    logged = logged_steps(connection)
    certain = {step for step in logged if is_written_last(connection, step)}
    if all(step in certain or changes < (counted_rows(connection, step) or 0) for step, changes in logged.items()):
        return _steps(connection, None) | certain
    return known_steps(connection, path)


def _steps(connection: apsw.Connection, resume_epoch: Epoch | None) -> set[StepId]:
    found = rows(connection, *((STEPS,) if resume_epoch is None else (STEPS_BEFORE, {"epoch": resume_epoch})))
    return {StepId(row[0]) for row in found}


def step_values(
    connection: apsw.Connection, path: Path, step: StepId, resume_epoch: Epoch | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield all keys and values of a step, as of the newest closed epoch or as the resume epoch will find them. Keys
    and values are read lazily."""
    with translated(path), snapshot(connection), overlaid(connection, path, (step,)):
        if resume_epoch is not None:
            yield from connection.execute(VALUES_BEFORE, {"step": step, "epoch": resume_epoch})
        else:
            yield from connection.execute("SELECT state_key, ser_change FROM snaps WHERE step_id = ?", (step,))


def closed_epoch(
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


def is_newest(connection: apsw.Connection, lease: Lease) -> bool:
    """Return whether no execution began after the given one."""
    newest = rows(connection, "SELECT ex_num, ex_id FROM exs ORDER BY ex_num DESC LIMIT 1")
    return newest == [(lease.number, lease.id)]


def next_epoch_after(
    connection: apsw.Connection, path: Path, lease: Lease, request: CloseRequest
) -> ClosedEpoch | None:
    """Return the newest epoch if the requested epoch may be closed after it, or is that epoch. Raises LeaseLostError,
    CorruptPartitionError."""
    if not is_newest(connection, lease):
        raise LeaseLostError(f"execution {lease.number} may not close an epoch any more", path=path)
    newest = newest_epoch(connection)
    if newest is not None and newest.cut == (request.epoch, lease.id, request.batch):
        return newest
    if (newest.epoch if newest else 0) != request.epoch - 1:
        raise CorruptPartitionError(
            f"it cannot close epoch {request.epoch}: its newest is {newest.epoch if newest else 0}", path=path
        )
    return newest


def newest_epoch(connection: apsw.Connection) -> ClosedEpoch | None:
    found = rows(connection, EPOCHS.format(where="WHERE epoch = (SELECT max(epoch) FROM epochs)"))
    closed = closed_epochs(found, _logged_rows(connection))
    return closed[0] if closed else None


def folded_epoch(connection: apsw.Connection) -> Epoch:
    """Return the epoch of `snaps`."""
    sql = "SELECT max(epoch) FROM epochs WHERE epoch NOT IN (SELECT epoch FROM logged)"
    return Epoch(value(connection, sql) or NO_EPOCH)


def _logged_rows(connection: apsw.Connection) -> list[tuple[Any, ...]]:
    return rows(connection, LOGGED) if has_changes(connection) else []


def closed_epochs(epochs: Sequence[Sequence[Any]], logged: Sequence[Sequence[Any]]) -> tuple[ClosedEpoch, ...]:
    of_log = {row[0]: (row[1], row[2]) for row in logged}
    return tuple(
        ClosedEpoch(epoch, Lease(ExecutionNumber(ex_num), ex_id), *rest[:8], *of_log.get(epoch, ()))
        for epoch, ex_num, ex_id, *rest in epochs
    )


def insert_epoch(connection: apsw.Connection, closed: ClosedEpoch) -> None:
    epoch, (number, ex_id), *rest = astuple(closed)
    fields = (epoch, number, ex_id, *rest[:8])
    connection.execute(
        f"INSERT INTO epochs VALUES ({', '.join('?' * (len(fields) + 1))})", (*fields, record_digest(*fields))
    )
    if closed.is_logged:
        fields = (epoch, *rest[8:])
        connection.execute("INSERT INTO logged VALUES (?, ?, ?, ?)", (*fields, record_digest(*fields)))


def set_collected(connection: apsw.Connection, index: int, floor: Epoch) -> None:
    connection.execute("INSERT OR REPLACE INTO commits VALUES (?, ?, ?)", (index, floor, record_digest(index, floor)))
