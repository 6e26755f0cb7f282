"""What is measured, in the partitions: the size of each step's state, and a row per epoch of what a run measured.

`sizes` is a part of the snapshot: each transaction that changes `snaps` changes it by as much, so it is exact after a
crash and after a rewind, and nobody has to scan the state to know how large it is. A full check compares the two.

`measures` are facts, like operational state: in part-0 alone, of no epoch that could be taken back. They are written
without waiting for the disk, between a closing and the moving of its log into the file, which syncs them too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import apsw

from recovery.base.reserved import RESERVED_PREFIX
from recovery.errors import CorruptPartitionError
from recovery.planning.measures import Measure, StepSize, from_text, outdated, to_text
from recovery.storage.sqlite.columns import check_columns, checked_rows
from recovery.storage.sqlite.digests import mismatch_text, record_digest
from recovery.storage.sqlite.schema import rows, transaction, translated, value
from recovery.storage.sqlite.tables import ROW_BYTES

SIZES = "SELECT step_id, live_rows, live_bytes FROM sizes"
MEASURES = "SELECT measure_id, ex_num, epoch, measured_ms, content, digest FROM measures ORDER BY measure_id"

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
    """Count rows and bytes that steps gained, or lost. Inside the transaction that changes `snaps`."""
    for step, (count, size_bytes) in changes.items():
        if count or size_bytes:
            connection.execute(CHANGE_SIZE, (step, count, size_bytes))
    connection.execute(FORGET_EMPTY)


def read_sizes(connection: apsw.Connection) -> dict[str, StepSize]:
    """The steps of one partition."""
    found = rows(connection, SIZES)
    for row in found:
        check_columns("sizes", row)
    return {step: StepSize(*size) for step, *size in found}


def counted_rows(connection: apsw.Connection, step: str) -> int | None:
    """How many rows of a step `snaps` should have; None when the file is of an older version, and does not know."""
    if not has_measures(connection):
        return None
    return int(value(connection, "SELECT live_rows FROM sizes WHERE step_id = ?", (step,)) or 0)


def check_sizes(connection: apsw.Connection, counted: Mapping[str, StepSize]) -> list[str]:
    """What is wrong with `sizes`, a sentence each, when `snaps` holds what was `counted`. A transaction is open."""
    if not has_measures(connection) or read_sizes(connection) == counted:
        return []
    return ["sizes does not say how many rows and bytes each step has"]


def check_measures(connection: apsw.Connection) -> list[str]:
    """What is wrong with `measures`, a sentence each. A read transaction is open."""
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
    """Keep a measure, and give up older ones. One transaction, which does not wait for the disk.

    The connection is a writer's: it waits for the disk again afterwards.
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


def measure_of(_id: int, _execution: int, _epoch: int, _measured_ms: int, content: str) -> Measure:
    return from_text(content, lambda why: CorruptPartitionError(f"a row of table measures cannot be read: {why}"))


def has_measures(connection: apsw.Connection) -> bool:
    """Whether the file has the tables: before its first writer of this version it may lack them."""
    return bool(connection.pragma("user_version") >= 3)
