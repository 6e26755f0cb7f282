"""A new partition file: rows are appended in the order of their keys, and `finish` makes it a partition."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apsw

from recovery.base.ids import Epoch, PartitionIndex
from recovery.base.reserved import EPOCH_STEP, QUARANTINE_PREFIX
from recovery.errors import CorruptPartitionError
from recovery.host.durable import sync
from recovery.planning.values import ClosedEpoch, Execution
from recovery.storage.sqlite.beginning import Beginning
from recovery.storage.sqlite.describe import bind, insert_epoch, insert_execution, insert_parts, set_collected
from recovery.storage.sqlite.digests import load_digests, record_digest
from recovery.storage.sqlite.file.connections import connect, file_uri, use_log
from recovery.storage.sqlite.file.log_files import reading_mode
from recovery.storage.sqlite.file.statements import rows, translated, value
from recovery.storage.sqlite.file.tables import APPLICATION_ID, CREATE_ALL, CREATE_TIMEOUT_INDEX, SCHEMA_VERSION
from recovery.storage.sqlite.measures import change_sizes
from recovery.storage.sqlite.transfer.tally import Tally
from recovery.storage.sqlite.transfer.versions import Versions, sizes_if_sound

LIVE = "INSERT INTO snaps VALUES (?, ?, ?, ?, ?, ?)"
EARLIER = "INSERT INTO superseded VALUES (?, ?, ?, ?, ?, ?, ?)"
# The keys come in order, so the pages to read and to append to are in the cache.
PULL = """
INSERT INTO main.snaps
SELECT s.* FROM carray(?) AS k CROSS JOIN {source}.snaps AS s WHERE s.step_id = ? AND s.state_key = k.value
"""
# One branch for each source; the rows of all come in the order of the keys.
COPY = """
SELECT * FROM {source}.snaps
WHERE step_id = :step AND state_key >= :since AND state_key < :until
    AND crc32(CAST({placing} AS BLOB)) % :count = :index
"""
# A row in a quarantine is in the partition of its key, to which the separator and the entry's number are added.
PLACING = f"""
CASE WHEN substr(:step, 1, {len(QUARANTINE_PREFIX)}) = '{QUARANTINE_PREFIX}'
    THEN substr(rtrim(state_key, '0123456789'), 1, length(rtrim(state_key, '0123456789')) - 1)
    ELSE state_key END
"""
COPY_ORDER = "ORDER BY step_id, state_key"
WRITTEN_IN = """
SELECT (SELECT count(*) FROM snaps WHERE snap_epoch = :epoch)
    + (SELECT count(*) FROM superseded WHERE snap_epoch = :epoch)
"""
MOST_ATTACHED = 64
"""Sources times targets; SQLite attaches at most 125 files to a connection."""
DOCUMENTS = ("states", "totals", "measures")
"""The tables that only part-0 fills, into which its rows are copied unchanged."""


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """The record of a new store, which each of its partitions holds. epochs: all that it holds, with the counts of any
    partition; collected: the oldest epoch that it can go back to."""

    store_id: str
    created_ms: int
    count: int
    flow_id: str | None
    collected: Epoch
    executions: Sequence[Execution]
    epochs: Sequence[ClosedEpoch]
    beginning: Beginning | None


class DraftPartition:
    """A new partition file; until `finish` it is worthless, and a crash leaves any part of it. The draft's rows come in
    the order of its keys, so that they are appended. Used by one thread."""

    def __init__(self, path: Path, cache_bytes: int) -> None:
        self.path = path
        with translated(path):
            self._connection = connect(path, "rwc")
            self._connection.pragma("journal_mode", "OFF")
            self._connection.pragma("synchronous", "OFF")
            self._connection.pragma("cache_size", -(cache_bytes >> 10))
            self._connection.pragma("application_id", APPLICATION_ID)
            self._connection.pragma("user_version", SCHEMA_VERSION)
            self._connection.execute("BEGIN")
            # Building an index over all rows is quicker than adding each of them.
            self._connection.execute(CREATE_ALL.replace(f"{CREATE_TIMEOUT_INDEX};", "")).fetchall()

    def add_live(self, found: Iterable[Sequence[Any]]) -> None:
        """Append rows of `snaps`."""
        self._add(LIVE, found)

    def add_earlier(self, found: Iterable[Sequence[Any]]) -> None:
        """Append rows of `superseded`."""
        self._add(EARLIER, found)

    def attach(self, sources: Sequence[Path], cache_bytes: int) -> None:
        """Let `copy` and `pull` read from these partitions, as long as nobody writes to them."""
        for number, path in enumerate(sources):
            how = "immutable=1" if reading_mode(path) == "unshared" else "mode=ro"
            with translated(path):
                self._connection.execute(f"ATTACH ? AS {_source(number)}", (file_uri(path, f"?{how}"),))
                self._connection.pragma("cache_size", -(cache_bytes >> 10), schema=_source(number))
        # SQLite calls it without a frame of Python. The types know no function of bytes alone.
        self._connection.create_scalar_function("crc32", zlib.crc32, 1, deterministic=True)  # type: ignore[arg-type]
        found = " UNION ALL ".join(
            COPY.format(source=_source(number), placing=PLACING) for number in range(len(sources))
        )
        self._copy = f"INSERT INTO main.snaps {found} {COPY_ORDER}"

    def copy(self, index: int, count: int, step: str, since: str, until: str | bytes) -> int:
        """Append the rows of a step with keys from `since` up to `until` that belong to partition `index` of `count`,
        from all attached partitions; return their number."""
        # All high-water marks are in partition 0.
        count = 1 if step == EPOCH_STEP else count
        bindings = {"step": step, "since": since, "until": until, "count": count, "index": index}
        self._run(lambda: self._connection.execute(self._copy, bindings))
        return self._connection.changes()

    def pull(self, number: int, step: str, keys: Sequence[str]) -> None:
        """Append the rows of a step with these keys, in order, from an attached partition."""
        if any("\0" in key for key in keys):
            raise CorruptPartitionError(f"step {step!r:.80} has a key with a NUL character, which no run writes")
        self._run(lambda: self._connection.execute(
            PULL.format(source=_source(number)), (apsw.carray(tuple(keys)), step)
        ))  # fmt: skip
        if self._connection.changes() != len(keys):
            raise CorruptPartitionError(f"rows of step {step!r:.80} cannot be found by their keys")

    def copy_documents(self, source: apsw.Connection, path: Path) -> None:
        """Copy operational state and measures unchanged from a partition, which may be of an older version."""
        known = {name for (name,) in rows(source, "SELECT name FROM sqlite_schema WHERE type = 'table'")}
        for table in filter(known.__contains__, DOCUMENTS):
            columns = len(rows(source, f"SELECT 1 FROM pragma_table_info('{table}')"))
            self._add(
                f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})",
                _rows(source, path, f"SELECT * FROM {table}"),
            )

    def _add(self, sql: str, found: Iterable[Sequence[Any]]) -> None:
        self._run(lambda: self._connection.executemany(sql, found))

    def _run(self, statement: Callable[[], Any]) -> None:
        try:
            statement()
        except apsw.ConstraintError as error:
            raise CorruptPartitionError(
                f"a row does not fit into the new {self.path.name}: {error}",
                cause="A partition holds a row that belongs to another partition, or that no run writes.",
                remedy="See which: python -m recovery verify DIR",
            ) from error
        except apsw.Error:
            with translated(self.path):
                raise

    def finish(self, index: PartitionIndex, store: StoreRecord) -> Tally:
        """Make the draft partition `index` of a store, complete and synced, and return what it holds. Closes it.

        Every row is read again. Raises CorruptPartitionError if one does not match its digest.
        """
        with translated(self.path), contextlib.closing(self._connection) as connection:
            load_digests(connection)
            connection.execute(CREATE_TIMEOUT_INDEX)
            insert_parts(connection, index, store.count, store.store_id, store.created_ms)
            bind(connection, store.flow_id)
            set_collected(connection, index, store.collected)
            for execution in store.executions:
                insert_execution(connection, execution)
            if store.beginning is not None:
                fields = tuple(store.beginning)
                connection.execute("INSERT INTO beginning VALUES (0, ?, ?, ?, ?)", (*fields, record_digest(*fields)))
            sizes = sizes_if_sound(connection)
            if sizes is None:
                raise CorruptPartitionError("rows of it do not match their digest", path=self.path)
            change_sizes(connection, sizes)
            tally = self._insert_epochs(connection, store)
            connection.execute("COMMIT")
            use_log(connection, self.path)
        with translated(self.path):
            sync(self.path)
        return tally

    def _insert_epochs(self, connection: apsw.Connection, store: StoreRecord) -> Tally:
        """Insert the epochs with the counts of this partition's rows."""
        if not store.epochs:
            return Tally()
        last = store.epochs[-1].epoch
        tally = Versions(connection, self.path, last, store.collected, last).tally()
        written, ended = tally.by_epoch()
        live = tally.all(closed.epoch for closed in store.epochs)
        for closed, (live_rows, live_digest) in zip(store.epochs, live, strict=True):
            superseded_rows, superseded_digest = ended.get(closed.epoch, (0, 0))
            wrote, _ = written.get(closed.epoch, (0, 0))
            if closed.epoch == store.collected:
                # The tally adds what earlier epochs wrote.
                wrote = value(connection, WRITTEN_IN, {"epoch": closed.epoch})
            insert_epoch(connection, replace(
                closed, written=wrote, live_rows=live_rows, live_digest=live_digest, superseded_rows=superseded_rows,
                superseded_digest=superseded_digest, logged_rows=None, logged_digest=None,
            ))  # fmt: skip
        return tally

    def abandon(self) -> None:
        """Close the draft without finishing it. Safe to repeat."""
        self._connection.close()


def can_attach(sources: int, targets: int) -> bool:
    """Return whether `copy` and `pull` work here, and with so many partitions."""
    return hasattr(apsw, "carray") and "ENABLE_CARRAY" in apsw.compile_options and sources * targets <= MOST_ATTACHED


def _source(number: int) -> str:
    return f"source_{number}"


def _rows(connection: apsw.Connection, path: Path, sql: str) -> Iterator[tuple[Any, ...]]:
    with translated(path):
        yield from connection.execute(sql)
