"""Where the input begins: one row, the same in every partition, durable before the first micro-batch may count.

It is epoch 0: the position before any micro-batch, with no state. Unlike an epoch it is whole in each partition, so one
of them is enough: a start that was killed before it had written all of them loses nothing, and neither does an older
copy of a file. Of rows that differ the newest counts. No rewind takes it away, and nothing is collected of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import apsw

from recovery.base.ids import Lease
from recovery.errors import CorruptPartitionError
from recovery.storage.sqlite.columns import checked_rows
from recovery.storage.sqlite.digests import record_digest
from recovery.storage.sqlite.partition import check_lease
from recovery.storage.sqlite.schema import has_beginning, rows, snapshot, transaction, translated

BEGINNING = "SELECT ex_num, ex_id, content, digest FROM beginning"


class Beginning(NamedTuple):
    """What one partition says: the number and the id of the execution that found it, and the position as text."""

    execution: int
    execution_id: str
    content: str


def keep_beginning(connection: apsw.Connection, path: Path, lease: Lease, content: str) -> None:
    """Write where the input begins. One transaction, synced to disk. Raises LeaseLostError when a later execution
    began."""
    with translated(path), transaction(connection):
        check_lease(connection, path, lease)
        fields = (lease.number, lease.id, content)
        connection.execute("DELETE FROM beginning")
        connection.execute("INSERT INTO beginning VALUES (0, ?, ?, ?, ?)", (*fields, record_digest(*fields)))


def read_beginning(connection: apsw.Connection, path: Path) -> Beginning | None:
    """Where the input begins; None when no execution has found it yet. Raises CorruptPartitionError."""
    with translated(path), snapshot(connection):
        problems = check_beginning(connection)
        if problems:
            raise CorruptPartitionError(problems[0], path=path)
        found = rows(connection, BEGINNING) if has_beginning(connection) else []
        return Beginning(*found[0][:-1]) if found else None


def check_beginning(connection: apsw.Connection) -> list[str]:
    """What is wrong with it, a sentence each. A transaction is open."""
    found = rows(connection, BEGINNING) if has_beginning(connection) else []
    if len(found) > 1:
        return ["beginning has more than one row"]
    try:
        checked_rows("beginning", found)
    except CorruptPartitionError as error:
        return [error.found]
    return []
