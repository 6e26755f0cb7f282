"""Operational state in a recovery directory: documents by id, immediately durable.

All documents live in `part-0.sqlite3`, so several can change in one transaction, and a copy of the partitions includes
them. Documents belong to no epoch, and a rewind does not change them. A removed document leaves a row without content,
so that its generation continues and an older copy is recognised as older.

Rows carry digests and the table has a sum, as snapshots do. Every row read is checked. Before a document is reported
missing, the whole table is checked: flipped bytes in an id must not make a caller start from scratch.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from recovery.base.intervals import format_interval
from recovery.base.wording import counted
from recovery.errors import (
    CorruptPartitionError,
    DuplicatePartitionError,
    MissingPartitionsError,
    StateLockedError,
)
from recovery.host.processes import describe_holder
from recovery.storage.no_partitions import no_partitions
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
from recovery.storage.sqlite.file.connections import connect
from recovery.storage.sqlite.file.log_files import beside
from recovery.storage.sqlite.file.opening import has_states, open_partition, partition_path
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.sqlite.file.statements import rows, snapshot, transaction, translated, value
from recovery.storage.sqlite.file.watched_files import check_opened, missing_file
from recovery.storage.standby import refuse_standby

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
_SEE_PLAN = "See which file to rename or to put back: python -m recovery plan"
NO_TOTALS = "the row of totals is missing or damaged"
TOTALS = "SELECT one, states, states_digest, digest FROM totals"


@dataclass(frozen=True, slots=True)
class StoredState:
    """One stored document. `content` is JSON text, or None if it was removed; `generation` only grows."""

    state_id: str
    generation: int
    content: str | None
    changed_ms: int


class BusyPartition(Exception):  # noqa: N818 - not an error yet: the caller may try again
    """Another process kept writing to the partition for the whole waiting time."""


Change = Callable[[StoredState | None], str | None]
"""Return the new content for the current document; None removes it. An exception undoes the whole transaction."""


def home(directory: Path) -> Path:
    """Return the partition that holds the operational state. Raises NoPartitionsError or MissingPartitionsError, and
    StorageError for a dangling link."""
    path = partition_path(directory, 0)
    with translated(directory):
        if path.exists():
            return path
        if path.is_symlink():
            raise missing_file(path)
        if any(directory.glob("part-*.sqlite3")):
            raise MissingPartitionsError(
                f"{path.name}, which holds the operational state, is missing",
                path=directory,
                remedy=f"{_SEE_PLAN} {shlex.quote(str(directory))}",
            )
        raise no_partitions(directory)


def read_states(path: Path, ids: Sequence[str]) -> dict[str, StoredState]:
    """Return the documents of these ids, as of one moment. Ids that never existed are left out; removed documents have
    no content.

    Raises CorruptPartitionError, also when a document may be missing because of damage.
    """

    def read(connection: apsw.Connection) -> dict[str, StoredState]:
        with _ready(connection, path) as exists:
            return _read(connection, path, ids) if exists else {}

    return read_partition(path, read)


def read_prefix(path: Path, prefix: str) -> list[StoredState]:
    """Return all documents whose id begins with `prefix`, including removed ones, sorted by id. Raises
    CorruptPartitionError."""

    def read(connection: apsw.Connection) -> list[StoredState]:
        with _ready(connection, path) as exists:
            if not exists:
                return []
            _check_table(connection, path)
            return [_checked(path, row) for row in rows(connection, SOME, {"prefix": prefix})]

    return read_partition(path, read)


def change_states(path: Path, changes: Mapping[str, Change], now_ms: int, *, busy_ms: int) -> dict[str, StoredState]:
    """Change documents, all or none, in one transaction that is synced to disk. Return the documents' new versions.

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
    """Remove documents without a trace, in one transaction. Return how many existed. Raises like `change_states`."""
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
    """Write documents unchanged, with their generation and time, in one transaction. Raises like `change_states`."""
    with _writing(path, busy_ms) as connection:
        _write(connection, path, _read(connection, path, [each.state_id for each in states]), states)


def state_totals(path: Path) -> tuple[int, int]:
    """Return the number of documents and the sum of their digests, which change with every document. Raises
    CorruptPartitionError."""

    def read(connection: apsw.Connection) -> tuple[int, int]:
        with _ready(connection, path) as exists:
            return _known_totals(connection, path) if exists else (0, 0)

    return read_partition(path, read)


@contextlib.contextmanager
def unwritten(path: Path) -> Iterator[None]:
    """Keep all writers away from a partition until the block ends, without writing to it. Raises StorageError after
    waiting in vain."""
    with translated(path), contextlib.closing(connect(path, "rw")) as connection:
        # Closing it must not move the log into the file, nor remove a log of this name: by then the name may be that of
        # another file.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.execute("BEGIN IMMEDIATE")
        yield


def check_states(connection: apsw.Connection) -> list[str]:
    """Return a sentence for each problem of the table. Needs loaded digests and an open read transaction."""
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


def still_locked(path: Path, waited_s: float, run: Mapping[str, Any] | None = None) -> StateLockedError:
    """Return the error for a partition that another process kept locked for `waited_s`.

    run: the holder of the directory's lock, which is named if the system does not name another process.
    """
    writer = writer_of(path)
    if run is not None and writer in (None, run["pid"]):
        who = describe_holder(run)
    else:
        who = "another process" if writer is None else f"process {writer}"
    return StateLockedError(f"{who} held the lock of the operational state for {format_interval(waited_s)}", path=path)


def writer_of(path: Path) -> int | None:
    """Return the process that holds the write lock of a partition, or None if the operating system does not say."""
    try:
        inode = beside(path, "-shm").stat().st_ino
        with open("/proc/locks", encoding="ascii") as locks:  # noqa: PTH123 - not a file of this package
            for line in locks:
                fields = line.split()
                # SQLite's write lock is byte 120 of the log's index.
                if "WRITE" in fields and fields[-3].endswith(f":{inode}") and int(fields[-2]) <= 120 <= int(fields[-1]):
                    holder = int(fields[fields.index("WRITE") + 1])
                    # A process in another PID namespace appears as 0 here.
                    return holder if holder not in (0, os.getpid()) else None
    except (OSError, ValueError):
        return None
    return None


def _successor(state_id: str, old: StoredState | None, content: str | None, now_ms: int) -> StoredState:
    """Return the next version of a document. The version's time never goes back, even if the clock did."""
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
    """Return the number of rows and the digest sum that the table should have; None if that record is damaged."""
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
    """Raise CorruptPartitionError unless every row is as it was written, and none is missing."""
    problems = check_states(connection)
    if problems:
        raise CorruptPartitionError("; ".join(problems), path=path)


def _check_home(connection: apsw.Connection, path: Path) -> None:
    index = value(connection, "SELECT part_index FROM parts")
    if index != 0:
        raise DuplicatePartitionError(
            f"by its content this file is part-{index}.sqlite3",
            path=path,
            cause="Files were renamed.",
            remedy=f"{_SEE_PLAN} {shlex.quote(str(path.parent))}",
        )


@contextlib.contextmanager
def _ready(connection: apsw.Connection, path: Path) -> Iterator[bool]:
    """Open a read transaction with loaded digests. Yields whether there is anything to read."""
    with translated(path):
        load_digests(connection)
        with snapshot(connection):
            _check_home(connection, path)
            yield has_states(connection)


@contextlib.contextmanager
def _writing(path: Path, busy_ms: int) -> Iterator[apsw.Connection]:
    """Run one write transaction, synced to disk, and check that the file still has this name afterwards. Raises
    BusyPartition after waiting in vain, StandbyDirectoryError, and other errors otherwise."""
    refuse_standby(path.parent)
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
