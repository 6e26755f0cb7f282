"""The epoch log of a partition: the changes of closed epochs that are not folded into `snaps` yet.

Appending an epoch's changes costs a fraction of writing them to `snaps`, and the cost does not depend on the content of
the partition. A row of `changes` is a chunk: JSON, `[[key, value, timeout], …]`, of one step and epoch. NULL discards
the key, and bytes are `{"hex": …}`. Each chunk has a digest, and each epoch the sum of its chunks' digests.

Readers of a partition see the changes over `snaps`: within `overlaid`, queries of `snaps` and `superseded` return the
same rows as if everything was folded.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from recovery.base.ids import BatchId, Epoch, StepId
from recovery.errors import CorruptPartitionError
from recovery.storage.sqlite.columns import check_columns, is_digest, whole
from recovery.storage.sqlite.digests import MODULUS, load_digests, mismatch_text, record_digest, row_digest_sql
from recovery.storage.sqlite.file.opening import has_changes
from recovery.storage.sqlite.file.statements import rows, value

is_count = whole()
CHUNK_ROWS = 4096
FIRST_ROWS = 16
"""Rows in a step's first chunk, when the length of its values is not known yet."""
CHUNK_BYTES = 1 << 20

# An epoch's changes in a delta's table. For rows that an early task of the next micro-batch wrote, the value before. It
# is not known whether this epoch wrote that value; at worst it repeats what an earlier epoch has already logged.
TOUCHED = """
SELECT max(state_key), count(*), count(after), coalesce(sum(octet_length(state_key) + octet_length(after)), 0),
    json_group_array(json_array(state_key, after, after_timeout))
FROM (
    SELECT state_key, iif(batch > :batch, before, after) AS after,
        iif(batch > :batch, before_timeout, after_timeout) AS after_timeout
    FROM {table} WHERE {place} batch > :since AND (batch <= :batch OR had)
    ORDER BY state_key LIMIT :rows
)
"""
# Damaged text may not be valid UTF-8.
CHUNKS = "SELECT epoch, CAST(step_id AS BLOB), number, row_count, CAST(content AS BLOB), digest FROM changes"
SUMS = "SELECT epoch, row_count, digest FROM changes"
LOGGED = "SELECT epoch, row_count, changes_digest FROM logged"
# Chunks with a correct digest that are not a list, or a list of another length.
UNREADABLE = """
SELECT count(*) FROM changes
WHERE CASE WHEN json_valid(content) THEN json_type(content) <> 'array' OR json_array_length(content) <> row_count
    ELSE true END
"""

CONTENT = "SELECT content FROM changes WHERE step_id = ? ORDER BY epoch, number"
LAST = """
SELECT CAST(content AS BLOB), epoch, number, row_count, digest FROM changes
WHERE step_id = :step AND epoch = (SELECT max(epoch) FROM changes WHERE step_id = :step)
"""
_Change = tuple[str, str | dict[str, str] | None, int | None]

CHANGED = """
SELECT c.epoch, c.step_id, each.value ->> 0 AS state_key,
    iif(json_type(each.value, '$[1]') = 'object', unhex(each.value ->> '$[1].hex'), each.value ->> 1) AS ser_change,
    each.value ->> 2 AS timeout_ms
FROM {changes} AS c, json_each(c.content) AS each
"""

# The newest logged change of each key of one step; see the note on min() in `partition`.
NEWEST = f"""
SELECT state_key, ser_change, timeout_ms FROM (
    SELECT state_key, max(epoch), ser_change, timeout_ms
    FROM ({CHANGED.format(changes="changes")} WHERE c.step_id = :step) GROUP BY state_key
)
"""

# All changes of one step in one epoch.
OF_EPOCH = f"""
SELECT state_key, ser_change, timeout_ms
FROM ({CHANGED.format(changes="changes")} WHERE c.epoch = :epoch AND c.step_id = :step)
"""

_OF_CHANGE = row_digest_sql("c.step_id", "c.state_key", "c.epoch", "c.ser_change", "c.timeout_ms")
_NEXT = "(SELECT min(n.epoch) FROM temp.changed AS n WHERE {0}.step_id = n.step_id AND {0}.state_key = n.state_key{1})"
CREATE_CHANGED = """
CREATE TEMP TABLE changed (
    epoch INTEGER, step_id TEXT, state_key TEXT, ser_change ANY, timeout_ms INTEGER,
    PRIMARY KEY (step_id, state_key, epoch)
) STRICT, WITHOUT ROWID
"""
INSERT_STEPS = f"""
INSERT INTO temp.changed {CHANGED.format(changes="main.changes")}
WHERE c.step_id IN (SELECT value FROM json_each(:steps))
"""
INSERT_KEY = f"""
INSERT INTO temp.changed {CHANGED.format(changes="main.changes")}
WHERE c.step_id = :step AND instr(c.content, :text) AND each.value ->> 0 = :key
"""
PLAIN = re.compile(r"[ !#-\[\]-~]*")
"""Keys that JSON writes as they are, between quotes."""
OVERLAY = f"""
CREATE TEMP VIEW snaps AS
SELECT step_id, state_key, snap_epoch, ser_change, timeout_ms, digest FROM main.snaps AS s
WHERE NOT EXISTS (SELECT 1 FROM temp.changed AS c WHERE c.step_id = s.step_id AND c.state_key = s.state_key)
UNION ALL
SELECT step_id, state_key, epoch, ser_change, timeout_ms, {_OF_CHANGE} FROM temp.changed AS c
WHERE ser_change IS NOT NULL AND {_NEXT.format("c", " AND n.epoch > c.epoch")} IS NULL;

CREATE TEMP VIEW superseded AS
SELECT until_epoch, step_id, state_key, snap_epoch, ser_change, timeout_ms, digest FROM main.superseded
UNION ALL
SELECT {_NEXT.format("s", "")}, step_id, state_key, snap_epoch, ser_change, timeout_ms, digest FROM main.snaps AS s
WHERE EXISTS (SELECT 1 FROM temp.changed AS c WHERE c.step_id = s.step_id AND c.state_key = s.state_key)
UNION ALL
SELECT * FROM (
    SELECT {_NEXT.format("c", " AND n.epoch > c.epoch")} AS until_epoch, step_id, state_key, epoch, ser_change,
        timeout_ms, {_OF_CHANGE} FROM temp.changed AS c WHERE ser_change IS NOT NULL
) WHERE until_epoch IS NOT NULL;
"""
REMOVE_OVERLAY = "DROP VIEW temp.snaps; DROP VIEW temp.superseded; DROP TABLE temp.changed"


class Sealed(NamedTuple):
    """The place of an epoch's changes in a delta: the table, and the last micro-batch of the previous epoch."""

    table: str
    since: BatchId


class Logged(NamedTuple):
    """What was appended: the number of changes, the number without discards, the bytes of their keys and values, and
    the sum of the chunks' digests."""

    rows: int = 0
    written: int = 0
    size_bytes: int = 0
    digest: int = 0

    def __add__(self, other: Logged) -> Logged:  # type: ignore[override]
        return Logged(*map(sum, zip(self, other, strict=True)))


def append_touched(connection: apsw.Connection, epoch: Epoch, step: StepId, sealed: Sealed, batch: BatchId) -> Logged:
    """Append a delta's changes of an epoch that ends with `batch`. Inside a transaction."""
    total, number, chunk_rows = Logged(), 0, FIRST_ROWS
    statement = TOUCHED.format(table=sealed.table, place="")
    bindings = {"since": sealed.since, "batch": batch}
    while True:
        try:
            found = rows(connection, statement, {**bindings, "rows": chunk_rows})
        except apsw.TooBigError:
            if chunk_rows == 1:
                raise
            chunk_rows = 1
            continue
        [(last, row_count, written, size_bytes, content)] = found
        if not row_count:
            return total
        total += Logged(row_count, written, size_bytes, _append(connection, epoch, step, number, row_count, content))
        if row_count < chunk_rows:
            return total
        average = max(1, len(content) // row_count)
        chunk_rows = max(1, min(CHUNK_ROWS, 8 * chunk_rows, CHUNK_BYTES // average))
        number += 1
        statement = TOUCHED.format(table=sealed.table, place="state_key > :last AND")
        bindings["last"] = last


def append_rows(
    connection: apsw.Connection,
    epoch: Epoch,
    step: StepId,
    given: Iterable[tuple[str, str | bytes | None, int | None]],
) -> Logged:
    """Append keys with value and timeout, read one by one from `given`. Inside a transaction."""
    total, number = Logged(), 0
    chunk: list[Any] = []
    written = size_bytes = 0

    def flush() -> None:
        nonlocal total, number, written, size_bytes
        content = msgspec.json.encode(chunk).decode()
        digest = _append(connection, epoch, step, number, len(chunk), content)
        total += Logged(len(chunk), written, size_bytes, digest)
        chunk.clear()
        number, written, size_bytes = number + 1, 0, 0

    for key, change, timeout_ms in given:
        chunk.append((key, {"hex": change.hex()} if isinstance(change, bytes) else change, timeout_ms))
        if change is not None:
            written += 1
            size_bytes += len(key.encode()) + len(change if isinstance(change, bytes) else change.encode())
        if len(chunk) == CHUNK_ROWS or size_bytes >= CHUNK_BYTES:
            flush()
    if chunk:
        flush()
    return total


def _append(connection: apsw.Connection, epoch: Epoch, step: StepId, number: int, row_count: int, content: str) -> int:
    digest = _chunk_digest(epoch, step.encode(), number, row_count, content.encode())
    connection.execute(
        "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", (epoch, step, number, row_count, content, digest)
    )
    return digest


def _chunk_digest(epoch: int, step: bytes, number: int, row_count: int, content: bytes) -> int:
    """Return the digest of a row of `changes`. The digest covers a SHA-1 of the content, which is quicker than the
    content."""
    return record_digest(epoch, step.decode(errors="replace"), number, row_count, hashlib.sha1(content).hexdigest())


def is_logged(connection: apsw.Connection) -> bool:
    """Return whether a partition has epochs that are not folded. Files of older versions have none."""
    found = "SELECT 1 FROM changes UNION ALL SELECT 1 FROM logged LIMIT 1"
    return has_changes(connection) and value(connection, found) is not None


def logged_steps(connection: apsw.Connection) -> dict[StepId, int]:
    """Return the steps that have logged changes, each with the number of its changes."""
    if not has_changes(connection):
        return {}
    found = rows(connection, "SELECT step_id, sum(row_count) FROM changes GROUP BY step_id")
    return {StepId(step): changes for step, changes in found}


def is_written_last(connection: apsw.Connection, step: StepId) -> bool:
    """Return whether the newest logged epoch with changes of a step writes a key of it: then the step has rows. False:
    that is not known without reading all changes."""
    for content, *of_chunk, digest in connection.execute(LAST, {"step": step}):
        epoch, number, row_count = of_chunk
        if _chunk_digest(epoch, step.encode(), number, row_count, content) != digest:
            return False
        with contextlib.suppress(msgspec.DecodeError):
            if any(value is not None for _, value, _ in msgspec.json.decode(content, type=list[_Change])):
                return True
    return False


def changes_of(connection: apsw.Connection, step: StepId) -> Iterator[list[tuple[str, str | bytes | None, int | None]]]:
    """Yield the logged changes of a step, the oldest first, in lists of a chunk each: key, value, timeout. Raises
    CorruptPartitionError for a chunk that cannot be read."""
    for (content,) in connection.execute(CONTENT, (step,)):
        try:
            found = msgspec.json.decode(content, type=list[_Change])
            yield [
                (key, bytes.fromhex(value["hex"]) if isinstance(value, dict) else value, at) for key, value, at in found
            ]
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            raise CorruptPartitionError(f"a row of changes cannot be read: {error}") from None


@contextlib.contextmanager
def overlaid(
    connection: apsw.Connection,
    path: Path,
    steps: Collection[str] | None = None,
    keys: Collection[str] | None = None,
    unread: Collection[StepId] = (),
) -> Iterator[None]:
    """Let queries of `snaps` and `superseded` return the same rows as if everything was folded. To be used inside a
    transaction that only reads. Raises CorruptPartitionError if the log is damaged.

    steps, keys: the queries are about these steps, and about these keys of each; None: about all. All of the log is
    compared with its digests, but for the chunks of the steps in `unread`; laid over are only the chunks of the steps
    and, with keys, of these only those with the text of such a key.
    """
    if not is_logged(connection):
        yield
        return
    check_sound(connection, path, unread)
    load_digests(connection)
    laid = list(logged_steps(connection) if steps is None else steps)
    connection.execute(CREATE_CHANGED).fetchall()
    if keys is None or not all(PLAIN.fullmatch(key) for key in keys):
        connection.execute(INSERT_STEPS, {"steps": msgspec.json.encode(laid).decode()}).fetchall()
    else:
        for step, key in product(laid, dict.fromkeys(keys)):
            connection.execute(INSERT_KEY, {"step": step, "key": key, "text": f'"{key}"'}).fetchall()
    connection.execute(OVERLAY).fetchall()
    try:
        yield
    finally:
        connection.execute(REMOVE_OVERLAY).fetchall()


def check_sound(connection: apsw.Connection, path: Path, unread: Collection[StepId] = ()) -> None:
    """Raise CorruptPartitionError if `check_log` finds a problem."""
    problems = check_log(connection, unread)
    if problems:
        raise CorruptPartitionError(problems[0], path=path)


def check_log(connection: apsw.Connection, unread: Collection[StepId] = ()) -> list[str]:
    """Return a sentence for each problem of the log. A transaction is open. unread: steps whose chunks are not read."""
    if not has_changes(connection):
        return []
    found: dict[int, tuple[int, int]] = {}
    for epoch, row_count, digest in connection.execute(SUMS):
        if not (is_count(epoch) and is_count(row_count) and is_digest(digest)):
            return ["a row of changes holds what no run writes there"]
        before = found.get(epoch, (0, 0))
        found[epoch] = before[0] + row_count, (before[1] + digest) % MODULUS
    looked_at = f"{CHUNKS} WHERE step_id NOT IN ({', '.join('?' * len(unread))})"
    damaged = 0
    for chunk in connection.execute(looked_at, tuple(unread)):
        check_columns("changes", chunk[:-1])
        damaged += _chunk_digest(*chunk[:-1]) != chunk[-1]
    problems = [mismatch_text(damaged, "changes")] if damaged else []
    recorded = rows(connection, LOGGED)
    for epoch, *sums in recorded:
        if found.pop(epoch, (0, 0)) != tuple(sums):
            problems.append(f"the changes of epoch {epoch} are not all there")
    problems += [f"there are changes of epoch {epoch}, which is not logged" for epoch in found]
    return problems


def check_chunks(connection: apsw.Connection) -> list[str]:
    """Return a sentence for each problem in the content of a log whose digests are correct."""
    unreadable = value(connection, UNREADABLE) if has_changes(connection) else 0
    return [f"{unreadable} rows of changes cannot be read"] if unreadable else []


def logged_keys(connection: apsw.Connection, step: StepId) -> Iterator[str]:
    """Yield the keys of a step in the log."""
    if has_changes(connection):
        sql = f"SELECT DISTINCT state_key FROM ({CHANGED.format(changes='changes')} WHERE c.step_id = ?)"
        for (key,) in connection.execute(sql, (step,)):
            yield key
