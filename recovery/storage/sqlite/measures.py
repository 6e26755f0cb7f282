"""Measurements stored in the partitions: the size of each step's state, and one row per epoch that a run measured.

`sizes` is part of the snapshot: each transaction that changes `snaps` updates it too. So `sizes` is exact after a crash
and after a rewind, and reading the size of the state needs no scan. A full check compares the two.

`measures` are facts, like operational state: only in part-0, and no rewind removes them. Measures are written without
waiting for the disk, after an epoch is closed; the next epoch syncs them, or moving the log into the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apsw

from recovery.base.reserved import RESERVED_PREFIX
from recovery.errors import CorruptPartitionError
from recovery.planning.measures import Measure, StepSize, from_text, outdated, to_text
from recovery.storage.sqlite.columns import check_columns, checked_rows, columns_of
from recovery.storage.sqlite.digests import mismatch_text, record_digest
from recovery.storage.sqlite.file.statements import rows, transaction, translated, value
from recovery.storage.sqlite.file.tables import ROW_BYTES

SIZES = "SELECT step_id, live_rows, live_bytes FROM sizes"
MEASURES = f"SELECT {columns_of('measures')} FROM measures ORDER BY measure_id"

CHANGE_SIZE = """
INSERT INTO sizes VALUES (?, ?, ?)
ON CONFLICT (step_id) DO UPDATE
SET live_rows = live_rows + excluded.live_rows, live_bytes = live_bytes + excluded.live_bytes
"""
FORGET_EMPTY = "DELETE FROM sizes WHERE live_rows = 0"
LARGEST = f"""
SELECT step_id, state_key, {ROW_BYTES} FROM snaps
WHERE substr(step_id, 1, {len(RESERVED_PREFIX)}) <> '{RESERVED_PREFIX}' ORDER BY 3 DESC, 1, 2 LIMIT ?
"""


def change_sizes(connection: apsw.Connection, changes: Mapping[str, tuple[int, int]]) -> None:
    """Add the rows and bytes that steps gained or lost to `sizes`. To be called inside the transaction that changes
    `snaps`."""
    for step, (count, size_bytes) in changes.items():
        if count or size_bytes:
            connection.execute(CHANGE_SIZE, (step, count, size_bytes))
    connection.execute(FORGET_EMPTY)


def read_sizes(connection: apsw.Connection) -> dict[str, StepSize]:
    """Return the size of each step in one partition. Raises CorruptPartitionError."""
    found = rows(connection, SIZES)
    for row in found:
        check_columns("sizes", row)
    return {step: StepSize(*size) for step, *size in found}


def counted_rows(connection: apsw.Connection, step: str) -> int | None:
    """Return how many rows of a step `snaps` should have; None if the file's version is too old to record it."""
    if not has_measures(connection):
        return None
    return int(value(connection, "SELECT live_rows FROM sizes WHERE step_id = ?", (step,)) or 0)


def check_sizes(connection: apsw.Connection, counted: Mapping[str, StepSize]) -> list[str]:
    """Return a sentence for each problem of `sizes`, given the rows `counted` in `snaps`. A transaction is open."""
    if not has_measures(connection) or read_sizes(connection) == counted:
        return []
    return ["sizes does not say how many rows and bytes each step has"]


def check_measures(connection: apsw.Connection) -> list[str]:
    """Return a sentence for each problem of `measures`. A read transaction is open."""
    if not has_measures(connection):
        return []
    found = rows(connection, MEASURES)
    damaged = sum(record_digest(*row[:-1]) != row[-1] for row in found)
    if damaged:
        return [mismatch_text(damaged, "measures")]
    try:
        for row in checked_rows("measures", found):
            measure_of(*row)
    except CorruptPartitionError as error:
        return [error.found]
    return []


def add_measure(connection: apsw.Connection, path: Path, measure: Measure) -> None:
    """Store a measure and delete outdated ones, in one transaction that does not wait for the disk.

    The connection is a writer's: the connection waits for the disk again afterwards.
    """
    with translated(path):
        connection.pragma("synchronous", "NORMAL")
        try:
            with transaction(connection):
                last = value(connection, "SELECT max(measure_id) FROM measures") or 0
                fields = (last + 1, measure.execution, measure.epoch, measure.measured_ms, to_text(measure))
                connection.execute("INSERT INTO measures VALUES (?, ?, ?, ?, ?, ?)", (*fields, record_digest(*fields)))
                for measure_id in outdated(last + 1):
                    connection.execute("DELETE FROM measures WHERE measure_id = ?", (measure_id,))
        finally:
            with contextlib.suppress(apsw.Error):
                connection.pragma("synchronous", "FULL")


def checked_measures(
    found: list[tuple[Any, ...]], known: Mapping[tuple[Any, ...], Measure]
) -> dict[tuple[Any, ...], Measure]:
    """Return the measure of each row. known: rows that were checked before. Raises CorruptPartitionError."""
    new = [row for row in found if row not in known]
    made = {row: measure_of(*checked) for row, checked in zip(new, checked_rows("measures", new), strict=True)}
    return {row: known[row] if row in known else made[row] for row in found}


def measure_of(_id: int, _execution: int, _epoch: int, _measured_ms: int, content: str) -> Measure:
    return from_text(content, lambda why: CorruptPartitionError(f"a row of table measures cannot be read: {why}"))


def has_measures(connection: apsw.Connection) -> bool:
    """Return whether the file has these tables. An older file may lack these tables until a writer of this version
    opens it."""
    return bool(connection.pragma("user_version") >= 3)
