"""Erasing keys from one partition: their rows of every epoch, and then whatever else its files still have of them.

A sum of digests is a sum over rows, so the sums of an epoch without a key are its sums less the digests of the key's
rows. Nothing has to be read but these rows and the epochs.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import apsw

from recovery.base.reserved import RESERVED_PREFIX, quarantined_step
from recovery.errors import CorruptPartitionError, ForeignPartitionError, StorageError, UnsupportedVersionError
from recovery.planning.values import ClosedEpoch
from recovery.storage.initialize import clear_killed_attempt
from recovery.storage.moving.arriving import clear
from recovery.storage.seam import HeldRows, KeyToErase
from recovery.storage.sqlite.describe import EPOCHS, STEPS, closed_epochs, describe, insert_epoch
from recovery.storage.sqlite.digests import MODULUS
from recovery.storage.sqlite.epoch_log import is_logged
from recovery.storage.sqlite.file.log_files import ENDS, draft_of
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.sqlite.file.statements import rows, translated
from recovery.storage.sqlite.file.tables import ROW_BYTES
from recovery.storage.sqlite.measures import change_sizes
from recovery.values.keys import WAITING_SEPARATOR
from recovery.values.quarantine import note_key, parse_waiting_key

EVERY_STEP = f"{STEPS} UNION SELECT DISTINCT step_id FROM superseded"
# A search for each held epoch: without the list, SQLite reads all rows of the table.
HELD = "until_epoch IN (SELECT epoch FROM epochs)"
# All names of a key's rows in quarantine begin with that of its note.
WAITING = f"""
SELECT state_key FROM snaps WHERE step_id = :step AND state_key >= :begin AND state_key < :end
UNION
SELECT state_key FROM superseded WHERE {HELD} AND step_id = :step AND state_key >= :begin AND state_key < :end
"""
ROWS = f"""
SELECT snap_epoch, NULL, digest, {ROW_BYTES} FROM snaps WHERE step_id = :step AND state_key = :key
UNION ALL
SELECT snap_epoch, until_epoch, digest, 0 FROM superseded WHERE {HELD} AND step_id = :step AND state_key = :key
"""
DELETE = (
    "DELETE FROM snaps WHERE step_id = :step AND state_key = :key",
    f"DELETE FROM superseded WHERE {HELD} AND step_id = :step AND state_key = :key",
)
AFTER_WAITING = chr(ord(WAITING_SEPARATOR) + 1)
OLDER = re.compile(rf"part-[0-9]+\.sqlite3\.replaced({'|'.join(ENDS)})?|\.part-[0-9]+\.sqlite3\.draft")


class _Row(NamedTuple):
    """A row of a key: the epochs from and up to before which it was the key's state. until: None: it still is. since:
    None: it only notes that the key did not exist."""

    since: int | None
    until: int | None
    digest: int
    size_bytes: int


class ErasedKeys:
    """Keys to erase, and whether a row belongs to one of them."""

    def __init__(self, keys: Iterable[KeyToErase]) -> None:
        self._steps: dict[str, set[str | None]] = {}
        for each in keys:
            self._steps.setdefault(each.key, set()).add(each.step)

    def has(self, stored: str, name: str) -> bool:
        """Return whether a row belongs to one of the keys: as its state, or as rows of it in quarantine. stored, name:
        the step and the key of the row."""
        of_quarantine = quarantined_step(stored)
        if of_quarantine is None and stored.startswith(RESERVED_PREFIX):
            return False
        step, key = (stored, name) if of_quarantine is None else (of_quarantine, parse_waiting_key(name)[0])
        steps = self._steps.get(key, ())
        return None in steps or step in steps


def _stored(connection: apsw.Connection, keys: Sequence[KeyToErase]) -> dict[tuple[str, str], int]:
    """Return step and key, as they are stored, of everything that may belong to keys, with the position of that key."""
    found: dict[tuple[str, str], int] = {}
    wanted = [ErasedKeys([each]) for each in keys]
    for (stored,) in rows(connection, EVERY_STEP):
        for position, each in enumerate(keys):
            names = [each.key]
            if quarantined_step(stored) is not None:
                within = {"begin": note_key(each.key), "end": f"{each.key}{AFTER_WAITING}"}
                names = [name for (name,) in rows(connection, WAITING, {"step": stored, **within})]
            for name in names:
                if wanted[position].has(stored, name):
                    found.setdefault((stored, name), position)
    return found


def count_rows(connection: apsw.Connection, keys: Sequence[KeyToErase]) -> list[HeldRows]:
    """Return how many rows there are of keys, by the id under which they are stored. Inside a transaction."""
    found: dict[str, HeldRows] = {}
    for (stored, name), position in _stored(connection, keys).items():
        of_name = _rows_of(connection, stored, name)
        if of_name:
            before = found.get(stored, HeldRows(stored, 0, False))
            newest = before.newest or any(each.until is None for each in of_name)
            positions = tuple(sorted({*before.keys, position}))
            found[stored] = HeldRows(stored, before.rows + len(of_name), newest, positions)
    return sorted(found.values())


def _rows_of(connection: apsw.Connection, step: str, key: str) -> list[_Row]:
    return [_Row(*row) for row in rows(connection, ROWS, {"step": step, "key": key})]


def erase_keys(connection: apsw.Connection, keys: Sequence[KeyToErase]) -> None:
    """Delete all rows of keys, and subtract them from the sums of each epoch and from the sizes of steps. Inside a
    transaction, in which the log is folded."""
    assert not is_logged(connection), "logged changes have to be folded before keys are erased"
    gone: list[_Row] = []
    sizes: dict[str, tuple[int, int]] = {}
    for step, key in _stored(connection, keys):
        found = _rows_of(connection, step, key)
        gone += found
        count, size_bytes = sizes.get(step, (0, 0))
        live = [each for each in found if each.until is None]
        sizes[step] = count - len(live), size_bytes - sum(each.size_bytes for each in live)
        for delete in DELETE:
            connection.execute(delete, {"step": step, "key": key})
    change_sizes(connection, sizes)
    for before, after in _without(closed_epochs(rows(connection, EPOCHS.format(where="")), ()), gone):
        connection.execute("DELETE FROM epochs WHERE epoch = ?", (before.epoch,))
        insert_epoch(connection, after)


def _without(epochs: Sequence[ClosedEpoch], gone: Sequence[_Row]) -> Iterator[tuple[ClosedEpoch, ClosedEpoch]]:
    """Yield each epoch whose sums include some of the rows, and the epoch without them."""
    lived = [each for each in gone if each.since is not None]
    changes = sorted(
        [(each.since or 0, 1, each.digest) for each in lived]
        + [(each.until, -1, -each.digest) for each in lived if each.until is not None]
    )
    superseded: dict[int, tuple[int, int]] = {}
    for each in gone:
        if each.until is not None:
            count, digest = superseded.get(each.until, (0, 0))
            superseded[each.until] = count + 1, digest + each.digest
    live_rows = live_digest = at = 0
    for closed in epochs:
        while at < len(changes) and changes[at][0] <= closed.epoch:
            live_rows, live_digest = live_rows + changes[at][1], live_digest + changes[at][2]
            at += 1
        count, digest = superseded.get(closed.epoch, (0, 0))
        if live_rows or count:
            yield (
                closed,
                replace(
                    closed,
                    live_rows=closed.live_rows - live_rows,
                    live_digest=(closed.live_digest - live_digest) % MODULUS,
                    superseded_rows=closed.superseded_rows - count,
                    superseded_digest=(closed.superseded_digest - digest) % MODULUS,
                ),
            )


def scrub(connection: apsw.Connection, path: Path) -> None:
    """Rewrite a file without what deleted rows have left in it, and empty its log.

    Nobody else may write to the file. Repeatable. Raises StorageError.
    """
    with translated(path):
        connection.execute("VACUUM")
        try:
            connection.wal_checkpoint("main", mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            raise StorageError(
                "its log still holds what was deleted",
                path=path,
                cause="A backup, a page of `recovery ui`, Litestream or another program reads the file.",
                remedy="End the reader, and run the same command again: it completes what it has begun.",
            ) from None


def remove_older_copies(directory: Path) -> None:
    """Remove the copies of partitions in a directory that no command reads: those that were replaced, and what killed
    moves, restores and standbys left, also beside the file to which a link leads; of a replaced link, also the file
    that it leads to, unless that is a partition in use. Nobody else may bring partitions here. Raises
    DirectoryLockedError or StorageError.
    """
    with translated(directory):
        partitions = sorted(directory.glob("part-*.sqlite3"))
        used = {os.path.realpath(path) for path in partitions}
        for each in used:
            draft_of(Path(each)).unlink(missing_ok=True)
        for path in filter(lambda each: OLDER.fullmatch(each.name), list(directory.iterdir())):
            real = Path(os.path.realpath(path))
            if path.is_symlink() and str(real) not in used and real.exists():
                _check_copy(path, real, partitions)
                for end in ("", *ENDS):
                    real.with_name(f"{real.name}{end}").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
    clear(directory)
    clear_killed_attempt(directory)


def _check_copy(link: Path, real: Path, partitions: Sequence[Path]) -> None:
    """Raise StorageError unless a link leads to a partition of the store that has these: whoever can write to the
    directory could have made a link to any file of this user."""
    if real.is_file():
        with contextlib.suppress(CorruptPartitionError, ForeignPartitionError, UnsupportedVersionError):
            paths = (real, *partitions[:1])
            if len({read_partition(path, partial(describe, path=path)).store_id for path in paths}) == 1:
                return
    raise StorageError(
        f"{link.name} leads to {real}, which is no partition of this store",
        path=link.parent,
        cause="Somebody else has made the link, or put another file where it leads.",
        remedy="If that file is an older copy of a partition, remove it. Remove the link, and run the same command "
        "again: it completes what it has begun.",
    )
