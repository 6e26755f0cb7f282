"""Operational state in a recovery directory: documents by id, durable at once.

They live in `part-0.sqlite3`, all of them: several can then change in one transaction, and a copy of the partitions
is a copy of them too. They belong to no epoch: a rewind leaves them as they are. A document that was removed
leaves a row without content, so that its generation goes on and an older copy is recognised as older.

Rows carry digests and the table has a sum, as snapshots do. What is read is checked; and before anything is said to be
missing, the whole table is: an id whose bytes flipped is no reason to begin anew.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from recovery.base.wording import counted
from recovery.errors import CorruptPartitionError, DuplicatePartitionError, MissingPartitionsError, NoPartitionsError
from recovery.storage.sqlite.columns import ODD_DOCUMENT, check_columns
from recovery.storage.sqlite.digests import (
    MODULUS,
    SUM_SQL,
    combine,
    load_digests,
    mismatch_text,
    record_digest,
    row_digest_sql,
)
from recovery.storage.sqlite.schema import (
    beside,
    has_states,
    open_partition,
    partition_path,
    read_partition,
    rows,
    snapshot,
    transaction,
    translated,
    value,
)
from recovery.storage.sqlite.watched_files import check_opened, missing_file

DIGEST = row_digest_sql("'$state'", "state_id", "generation", "content", "changed_ms")
SELECT = f"SELECT state_id, generation, content, changed_ms, digest IS {DIGEST} FROM states"
ONE = f"{SELECT} WHERE state_id = ?"
SOME = f"{SELECT} WHERE state_id >= :prefix AND substr(state_id, 1, length(:prefix)) = :prefix ORDER BY state_id"

WRITE = """
INSERT INTO states VALUES (?, ?, ?, ?, 0)
ON CONFLICT (state_id) DO UPDATE
SET generation = excluded.generation, content = excluded.content, changed_ms = excluded.changed_ms
"""
SIGN = f"UPDATE states SET digest = {DIGEST} WHERE state_id = ? RETURNING digest"
SUM = f"SELECT {SUM_SQL} FROM states"
DAMAGED = f"SELECT count(*) FROM states WHERE digest IS NOT {DIGEST}"
ODD = f"SELECT count(*) FROM states WHERE {ODD_DOCUMENT}"
NO_TOTALS = "the row of totals is missing or damaged"
TOTALS = "SELECT one, states, states_digest, digest FROM totals"


@dataclass(frozen=True, slots=True)
class StoredState:
    """One document as it is stored. `content` is JSON text, None when it was removed; `generation` only grows."""

    state_id: str
    generation: int
    content: str | None
    changed_ms: int


class BusyPartition(Exception):  # noqa: N818 - no error yet: whoever called may try again
    """Another process writes to the partition, and went on doing so for as long as was to be waited."""


Change = Callable[[StoredState | None], str | None]
"""Gives the new content, from the document as it stands; None removes it. What it raises undoes everything."""


def home(directory: Path) -> Path:
    """The partition that holds the operational state. Raises NoPartitionsError or MissingPartitionsError, and
    StorageError for a link that leads nowhere."""
    path = partition_path(directory, 0)
    with translated(directory):
        if path.exists():
            return path
        if path.is_symlink():
            raise missing_file(path)
        if any(directory.glob("part-*.sqlite3")):
            raise MissingPartitionsError(f"{path.name}, which holds the operational state, is missing", path=directory)
        what = "it holds no recovery partition" if directory.is_dir() else "there is no such directory"
        raise NoPartitionsError(what, path=directory)


def read_states(path: Path, ids: Sequence[str]) -> dict[str, StoredState]:
    """The documents of these ids, as of one moment; those that never were are left out. Removed ones have no content.

    Raises CorruptPartitionError, also when a document may be missing because of damage.
    """

    def read(connection: apsw.Connection) -> dict[str, StoredState]:
        with _ready(connection, path) as exists:
            return _read(connection, path, ids) if exists else {}

    return read_partition(path, read)


def read_prefix(path: Path, prefix: str) -> list[StoredState]:
    """All documents whose id begins with `prefix`, removed ones too, sorted by id. Raises CorruptPartitionError."""

    def read(connection: apsw.Connection) -> list[StoredState]:
        with _ready(connection, path) as exists:
            if not exists:
                return []
            _check_table(connection, path)
            return [_checked(path, row) for row in rows(connection, SOME, {"prefix": prefix})]

    return read_partition(path, read)


def change_states(path: Path, changes: Mapping[str, Change], now_ms: int, *, busy_ms: int) -> dict[str, StoredState]:
    """Change documents, all of them or none, in one transaction that is synced to disk; returns them as they are now.

    Waits at most `busy_ms` for other writers. Raises BusyPartition, CorruptPartitionError or StorageError, and
    whatever a change raises.
    """
    with _writing(path, busy_ms) as connection:
        before = _read(connection, path, list(changes))
        wanted = {state_id: change(before.get(state_id)) for state_id, change in changes.items()}
        changed = [
            _successor(state_id, before.get(state_id), content, now_ms)
            for state_id, content in wanted.items()
            if content != (before[state_id].content if state_id in before else None)
        ]
        _write(connection, path, before, changed)
        return {**before, **{state.state_id: state for state in changed}}


def forget_states(path: Path, ids: Sequence[str], *, busy_ms: int) -> int:
    """Remove documents without a trace, in one transaction; returns how many there were. Raises as `change_states`."""
    with _writing(path, busy_ms) as connection:
        _check_table(connection, path)
        count, total = _known_totals(connection, path)
        gone = [
            digest
            for each in ids
            for (digest,) in rows(connection, "DELETE FROM states WHERE state_id = ? RETURNING digest", (each,))
        ]
        _set_totals(connection, count - len(gone), total - sum(gone))
        return len(gone)


def place_states(path: Path, states: Sequence[StoredState], *, busy_ms: int) -> None:
    """Write documents as they are, generation and time included, in one transaction. Raises as `change_states`."""
    with _writing(path, busy_ms) as connection:
        _write(connection, path, _read(connection, path, [each.state_id for each in states]), states)


def check_states(connection: apsw.Connection) -> list[str]:
    """What is wrong with the table, a sentence each. Digests are at hand, a read transaction is open."""
    if not has_states(connection):
        return []
    problems = []
    damaged = value(connection, DAMAGED)
    if damaged:
        problems.append(mismatch_text(damaged, "states"))
    odd = value(connection, ODD)
    if odd:
        problems.append(f"{odd} rows of states hold what no program writes there")
    expected = _totals(connection)
    if expected is None:
        problems.append(NO_TOTALS)
    else:
        count, high, low = rows(connection, SUM)[0]
        if (count, combine(high, low)) != expected:
            problems.append(f"states holds {counted(count, 'row')} where {expected[0]} were written, or not those")
    return problems


def writer_of(path: Path) -> int | None:
    """The process that holds the write lock of a partition, as far as the operating system tells; None: unknown."""
    try:
        inode = beside(path, "-shm").stat().st_ino
        with open("/proc/locks", encoding="ascii") as locks:  # noqa: PTH123 - no file of ours
            for line in locks:
                fields = line.split()
                # SQLite's lock for writing is byte 120 of the log's index.
                if "WRITE" in fields and fields[-3].endswith(f":{inode}") and int(fields[-2]) <= 120 <= int(fields[-1]):
                    holder = int(fields[fields.index("WRITE") + 1])
                    # One in another PID namespace has number 0 here.
                    return holder if holder not in (0, os.getpid()) else None
    except (OSError, ValueError):
        return None
    return None


def _successor(state_id: str, old: StoredState | None, content: str | None, now_ms: int) -> StoredState:
    """A clock that went back must not make a change look older than the one before."""
    if old is None:
        return StoredState(state_id, 1, content, now_ms)
    return StoredState(state_id, old.generation + 1, content, max(now_ms, old.changed_ms))


def _write(
    connection: apsw.Connection, path: Path, before: Mapping[str, StoredState], states: Sequence[StoredState]
) -> None:
    count, total = _known_totals(connection, path)
    for state in states:
        if state.state_id in before:
            total -= value(connection, "SELECT digest FROM states WHERE state_id = ?", (state.state_id,))
        else:
            count += 1
        connection.execute(WRITE, (state.state_id, state.generation, state.content, state.changed_ms))
        total += value(connection, SIGN, (state.state_id,))
    if states:
        _set_totals(connection, count, total)


def _known_totals(connection: apsw.Connection, path: Path) -> tuple[int, int]:
    known = _totals(connection)
    if known is None:
        raise CorruptPartitionError(NO_TOTALS, path=path)
    return known


def _set_totals(connection: apsw.Connection, count: int, digests: int) -> None:
    fields = (1, count, digests % MODULUS)
    connection.execute("INSERT OR REPLACE INTO totals VALUES (?, ?, ?, ?)", (*fields, record_digest(*fields)))


def _totals(connection: apsw.Connection) -> tuple[int, int] | None:
    """Rows and sum of digests that the table should have; None when that is not known any more."""
    found = rows(connection, TOTALS)
    if not found and not value(connection, "SELECT 1 FROM states LIMIT 1"):
        return 0, 0
    if len(found) != 1 or record_digest(*found[0][:-1]) != found[0][-1]:
        return None
    check_columns("totals", found[0][:-1])
    return found[0][1], found[0][2]


def _read(connection: apsw.Connection, path: Path, ids: Sequence[str]) -> dict[str, StoredState]:
    found = {each: row for each in ids for row in rows(connection, ONE, (each,))}
    if len(found) < len(ids):
        _check_table(connection, path)
    return {each: _checked(path, row) for each, row in found.items()}


def _checked(path: Path, row: tuple[Any, ...]) -> StoredState:
    if not row[4]:
        raise CorruptPartitionError(f"the state {str(row[0])[:80]!r} does not match its digest", path=path)
    check_columns("states", row[:4])
    return StoredState(*row[:4])


def _check_table(connection: apsw.Connection, path: Path) -> None:
    """Raises CorruptPartitionError unless every row is as it was written, and none is missing."""
    problems = check_states(connection)
    if problems:
        raise CorruptPartitionError("; ".join(problems), path=path)


def _check_home(connection: apsw.Connection, path: Path) -> None:
    index = value(connection, "SELECT part_index FROM parts")
    if index != 0:
        raise DuplicatePartitionError(f"by its content this file is part-{index}.sqlite3", path=path)


@contextlib.contextmanager
def _ready(connection: apsw.Connection, path: Path) -> Iterator[bool]:
    """A read transaction with the digests at hand; whether there is anything to read."""
    with translated(path):
        load_digests(connection)
        with snapshot(connection):
            _check_home(connection, path)
            yield has_states(connection)


@contextlib.contextmanager
def _writing(path: Path, busy_ms: int) -> Iterator[apsw.Connection]:
    """One write transaction, synced to disk, in the file that has this name afterwards. Being kept waiting is told
    apart from every other refusal."""
    connection = open_partition(path, "rw")
    try:
        with _busy_is_no_error(), translated(path):
            connection.set_busy_timeout(busy_ms)
            connection.pragma("synchronous", "FULL")
            load_digests(connection)
            with transaction(connection):
                _check_home(connection, path)
                yield connection
            check_opened(connection, path)
    finally:
        connection.close()


@contextlib.contextmanager
def _busy_is_no_error() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if error.__cause__ is not None else error
        if isinstance(cause, apsw.BusyError | apsw.LockedError):
            raise BusyPartition(str(cause)) from error
        raise
