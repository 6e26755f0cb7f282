"""Where the input begins: one row, the same in every partition, durable before the first micro-batch may count.

That position is epoch 0: the position before any micro-batch, with no state. Unlike other epochs it is complete in each
partition, so one of them is enough: nothing is lost if a start is killed before it has written all of them, or if a
file is replaced by an older copy. If rows differ, the newest counts. No rewind removes the row, and it is never
collected.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import apsw

from recovery.base.ids import Lease
from recovery.errors import CorruptPartitionError
from recovery.storage.sqlite.columns import checked_rows, columns_of
from recovery.storage.sqlite.describe import check_lease
from recovery.storage.sqlite.digests import record_digest
from recovery.storage.sqlite.file.opening import has_beginning
from recovery.storage.sqlite.file.statements import rows, snapshot, transaction, translated

BEGINNING = f"SELECT {columns_of('beginning')} FROM beginning"


class Beginning(NamedTuple):
    """The row of one partition: number and id of the execution that found the position, and the position as text."""

    execution: int
    execution_id: str
    content: str


def keep_beginning(connection: apsw.Connection, path: Path, lease: Lease, content: str) -> None:
    """Write where the input begins, in one transaction that is synced to disk. Raises LeaseLostError if a later
    execution began."""
    with translated(path), transaction(connection):
        check_lease(connection, path, lease)
        fields = (lease.number, lease.id, content)
        connection.execute("DELETE FROM beginning")
        connection.execute("INSERT INTO beginning VALUES (0, ?, ?, ?, ?)", (*fields, record_digest(*fields)))


def read_beginning(connection: apsw.Connection, path: Path) -> Beginning | None:
    """Return where the input begins, or None if no execution has found it yet. Raises CorruptPartitionError."""
    with translated(path), snapshot(connection):
        problems = check_beginning(connection)
        if problems:
            raise CorruptPartitionError(problems[0], path=path)
        found = rows(connection, BEGINNING) if has_beginning(connection) else []
        return Beginning(*found[0][:-1]) if found else None


def check_beginning(connection: apsw.Connection) -> list[str]:
    """Return a sentence for each problem of the table. A transaction is open."""
    found = rows(connection, BEGINNING) if has_beginning(connection) else []
    if len(found) > 1:
        return ["beginning has more than one row"]
    try:
        checked_rows("beginning", found)
    except CorruptPartitionError as error:
        return [error.found]
    return []
