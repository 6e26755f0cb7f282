"""Replaying changes files on the copy of a partition that they continue: the result equals a whole copy.

replay.1  Go back to the epoch that the link continues, if the copy holds later ones; fold its log. What the copy then
          holds must be what the link says.
replay.2  Repeat each epoch of the link as closing did it: what it replaces is superseded, what it wrote is live. The
          sums must be those of the epoch's row.
replay.3  Collect what the partition had collected by then, unless all epochs of the chain are wanted.
replay.4  After the file's last link: replace operational state, measures and the beginning of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw

from recovery.base.ids import NO_EPOCH, Epoch
from recovery.errors import CorruptPartitionError
from recovery.planning.measures import outdated
from recovery.planning.values import ClosedEpoch
from recovery.storage.sqlite.describe import newest_epoch
from recovery.storage.sqlite.digests import MODULUS, SUM_SQL, combine, load_digests, row_digest_sql
from recovery.storage.sqlite.epoch_log import is_logged
from recovery.storage.sqlite.file.opening import open_partition
from recovery.storage.sqlite.file.statements import rows, transaction, translated, value
from recovery.storage.sqlite.file.tables import ROW_BYTES
from recovery.storage.sqlite.fold import collect, fold_into_snaps
from recovery.storage.sqlite.measures import change_sizes
from recovery.storage.sqlite.rewind import abandon
from recovery.storage.sqlite.snap_rows import create_driver_table, live_rows_of
from recovery.storage.sqlite.transfer.changes_file import ATTACHED, EPOCHS, EXS, attached, replace_unlinked

OF_EPOCH = f"FROM {ATTACHED}.changed WHERE link = :link AND epoch = :epoch"
SUPERSEDE = f"""
INSERT INTO superseded
SELECT c.epoch, c.step_id, c.state_key, s.snap_epoch, s.ser_change, s.timeout_ms, s.digest
FROM {ATTACHED}.changed AS c CROSS JOIN main.snaps AS s
WHERE c.link = :link AND c.epoch = :epoch AND s.step_id = c.step_id AND s.state_key = c.state_key
"""
MADE = f"""
INSERT INTO superseded
SELECT epoch, step_id, state_key, NULL, NULL, NULL, {row_digest_sql("step_id", "state_key", "NULL", "NULL", "NULL")}
{OF_EPOCH} AND made
"""
WRITE = f"""
INSERT INTO main.snaps SELECT step_id, state_key, epoch, ser_change, timeout_ms, digest
{OF_EPOCH} AND ser_change IS NOT NULL
ON CONFLICT (step_id, state_key) DO UPDATE SET
    snap_epoch = excluded.snap_epoch,
    ser_change = excluded.ser_change,
    timeout_ms = excluded.timeout_ms,
    digest     = excluded.digest
"""
DISCARD = f"""
DELETE FROM main.snaps
WHERE (step_id, state_key) IN (SELECT step_id, state_key {OF_EPOCH} AND ser_change IS NULL)
"""
# By step: the rows that the epoch wrote, and those that it superseded, without marks of keys that it made.
WROTE = f"SELECT step_id, {SUM_SQL}, sum({ROW_BYTES}) {OF_EPOCH} AND ser_change IS NOT NULL GROUP BY step_id"
REPLACED = f"""
SELECT step_id, {SUM_SQL}, sum({ROW_BYTES}) FROM superseded
WHERE until_epoch = :epoch AND snap_epoch IS NOT NULL GROUP BY step_id
"""
SUPERSEDED = f"SELECT {SUM_SQL} FROM superseded WHERE until_epoch = :epoch"
SUMS_THERE = f"""
SELECT live_rows, live_digest, superseded_rows, superseded_digest FROM {ATTACHED}.epochs WHERE link = ? AND epoch = ?
"""
FIRST_MEASURE = f"SELECT min(measure_id) FROM {ATTACHED}.measures"
LINKS = f"SELECT link, after_epoch, after_rows, after_digest, collected FROM {ATTACHED}.links ORDER BY link"


def replay(
    path: Path, files: Sequence[Path], links: int, *, done: int = 0, collects: bool = True, follows: bool = False
) -> None:
    """Replay changes files, the oldest first, on the copy at `path`, up to the chain's link number `links`. done: the
    number of the link up to which the copy goes. collects: give up the epochs that the partition had collected.

    Not durable, and the copy is unusable after an error. follows: durable, each file whole or not at all; links up to
    `done`, which merged files hold too, are left out. Raises CorruptPartitionError if the files do not continue the
    copy, or are not what was stored; UnsupportedVersionError or StorageError.
    """
    connection = open_partition(path, "rw")
    try:
        with translated(path):
            load_digests(connection)
            connection.pragma("synchronous", "FULL" if follows else "OFF")
            create_driver_table(connection)
        for file in files:
            with attached(connection, file), translated(file), transaction(connection):
                for link, *start in rows(connection, LINKS):
                    if follows and link <= done:
                        continue
                    if link != done + 1:
                        raise CorruptPartitionError(f"link {link} follows link {done}", path=file)
                    if link <= links:
                        collected = _replay(connection, file, link, *start)
                        # replay.3
                        if collects:
                            collect(connection, collected)
                    done = link
                # replay.4
                known = value(connection, "SELECT max(measure_id) FROM main.measures") or 0
                if follows:
                    # Those of earlier links may be outdated.
                    known = min(known, (value(connection, FIRST_MEASURE) or known + 1) - 1)
                replace_unlinked(connection)
                # Also the measures that were outdated by measures which are gone themselves.
                added = value(connection, "SELECT max(measure_id) FROM main.measures") or 0
                for measure in range(known + 1, added + 1):
                    for old in outdated(measure):
                        connection.execute("DELETE FROM main.measures WHERE measure_id = ?", (old,))
        with translated(path):
            connection.wal_checkpoint("main", mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        connection.close()


def _replay(
    connection: apsw.Connection,
    file: Path,
    link: int,
    after: Epoch,
    after_rows: int,
    after_digest: int,
    collected: Epoch,
) -> Epoch:
    """Steps replay.1 and replay.2; returns the epoch up to which the partition had collected."""
    # replay.1
    if value(connection, "SELECT max(epoch) FROM main.epochs WHERE epoch > ?", (after,)):
        abandon(connection, file, Epoch(after + 1))
    newest = newest_epoch(connection)
    if is_logged(connection):
        newest = _fold_as_there(connection, file, link, after)
    if (newest.epoch if newest else 0, *live_rows_of(newest)) != (after, after_rows, after_digest):
        raise CorruptPartitionError(
            f"link {link} continues epoch {after}, and does not follow what lies before it", path=file
        )
    connection.execute(f"INSERT INTO main.exs SELECT {EXS} FROM {ATTACHED}.exs WHERE link = ?", (link,))
    # replay.2
    live = after_rows, after_digest
    of_link, bindings = f"FROM {ATTACHED}.epochs WHERE link = ? AND epoch > ? ORDER BY epoch", (link, after)
    for epoch, *sums in rows(
        connection, f"SELECT epoch, live_rows, live_digest, superseded_rows, superseded_digest {of_link}", bindings
    ):
        live, superseded = _repeat(connection, link, epoch, live)
        if (*live, *superseded) != tuple(sums):
            raise CorruptPartitionError(f"its changes do not lead to what epoch {epoch} left", path=file)
    connection.execute(f"INSERT INTO main.epochs SELECT {EPOCHS} {of_link}", bindings)
    newest = newest_epoch(connection)
    if collected > (newest.epoch if newest else 0):
        raise CorruptPartitionError(
            f"it has collected up to epoch {collected}, an epoch that is not in the file", path=file
        )
    return collected


def _repeat(
    connection: apsw.Connection, link: int, epoch: Epoch, live: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Repeat one epoch; return number and digest sum of the rows that are live then, and of those superseded by it."""
    bindings = {"link": link, "epoch": epoch}
    for sql in (SUPERSEDE, MADE, WRITE, DISCARD):
        connection.execute(sql, bindings)
    count, digest = live
    sizes: dict[str, tuple[int, int]] = {}
    for sql, sign in ((WROTE, 1), (REPLACED, -1)):
        for step, found, high, low, size_bytes in rows(connection, sql, bindings):
            before = sizes.get(step, (0, 0))
            sizes[step] = before[0] + sign * found, before[1] + sign * size_bytes
            count, digest = count + sign * found, (digest + sign * combine(high, low)) % MODULUS
    change_sizes(connection, sizes)
    [(superseded, high, low)] = rows(connection, SUPERSEDED, {"epoch": epoch})
    return (count, digest), (superseded, combine(high, low))


def _fold_as_there(connection: apsw.Connection, file: Path, link: int, epoch: Epoch) -> ClosedEpoch:
    """Fold the log as the partition did later, and return the newest epoch. The partition has kept each epoch of the
    log or only the newest, which the sums in the link's row of that epoch show."""
    connection.execute("SAVEPOINT folding")
    folded = fold_into_snaps(connection, file, epoch, {}, NO_EPOCH)
    sums = folded.live_rows, folded.live_digest, folded.superseded_rows, folded.superseded_digest
    if rows(connection, SUMS_THERE, (link, epoch)) != [sums]:
        connection.execute("ROLLBACK TO folding")
        folded = fold_into_snaps(connection, file, epoch, {}, epoch)
    connection.execute("RELEASE folding")
    return folded
