"""Reading the recovery directory of Bytewax 0.20 or 0.21. Nothing in that directory changes, and no file appears
there."""

from __future__ import annotations

import contextlib
import re
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import apsw

from recovery.base.outside import Answers, CannotTell, Checked, Moment, Question
from recovery.base.threads import is_stopped
from recovery.errors import (
    CorruptPartitionError,
    DirectoryLockedError,
    ForeignPartitionError,
    NoPartitionsError,
    StorageError,
)
from recovery.host.locks import locked_by
from recovery.planning.bytewax import TheirExecution, TheirPartition
from recovery.storage.copies import copy_with_log
from recovery.storage.sqlite.file.connections import connect
from recovery.storage.sqlite.file.log_files import beside, refuse_odd_logs, stamp
from recovery.storage.sqlite.file.opening import OPS_PER_LOOK
from recovery.storage.sqlite.file.statements import rows, translated, value
from recovery.storage.sqlite.file.tables import APPLICATION_ID

PATTERN = "*.sqlite3"
VERSION = 5
"""The number of Bytewax's migrations: equal in 0.20 and 0.21."""
COLUMNS = {
    "parts": ("created_at", "part_index", "part_count"),
    "exs": ("created_at", "ex_num", "worker_count", "resume_epoch"),
    "fronts": ("created_at", "ex_num", "worker_index", "worker_frontier"),
    "commits": ("created_at", "part_index", "commit_epoch"),
    "snaps": ("created_at", "step_id", "state_key", "snap_epoch", "ser_change"),
}
_AT = (Moment.START,)
_OF_LITESTREAM = re.compile(r"_litestream_\w+")
# SQLite's locks: of every connection on the file itself, and on the index of the log.
_FILE_LOCKS = (0x40000000, 512)
_INDEX_LOCKS = (120, 9)

OBJECTS = "SELECT type, name, sql FROM sqlite_schema"
COLUMN_NAMES = "SELECT name FROM pragma_table_info(?)"
PARTS = "SELECT part_index, part_count FROM parts"
EXECUTIONS = "SELECT ex_num, worker_count, resume_epoch, created_at FROM exs"
FRONTIERS = "SELECT ex_num, worker_index, worker_frontier FROM fronts"
COLLECTED = "SELECT max(commit_epoch) FROM commits"
EPOCHS = "SELECT snap_epoch, max(created_at) FROM snaps GROUP BY snap_epoch"
FLOWS = "SELECT DISTINCT substr(step_id, 1, instr(step_id || '.', '.') - 1) FROM snaps"
# SQLite takes the other columns from the row that has the maximum.
SNAPSHOTS = """
SELECT step_id, state_key, max(snap_epoch), created_at, ser_change
FROM snaps WHERE snap_epoch < ?
GROUP BY step_id, state_key
"""


class TheirSnapshot(NamedTuple):
    """The newest snapshot of a key. created: when its row first appeared, as sortable text. pickled: None: the key was
    discarded."""

    step: str
    key: str
    epoch: int
    created: str
    pickled: bytes | None


@dataclass(slots=True)
class TheirFile:
    """One open partition. size_bytes: the size with SQLite's log."""

    answers: ClassVar[Answers] = {
        Question.SAME: CannotTell("a directory is imported once, and nothing is remembered of it"),
        Question.THERE: Checked("the partitions that each file says there are, and how far each one reached", _AT),
        Question.CHANGED: Checked("inode, size and time of each file and log, before and after they are read", _AT),
        Question.ABLE: Checked("tables, columns, version, and SQLite's own check of the file", _AT),
        Question.OWNER: Checked("SQLite's locks: nobody has the file or the index of its log open", _AT),
    }

    path: Path
    said: TheirPartition
    size_bytes: int
    _connection: apsw.Connection

    def snapshots(self, below: int) -> Iterator[TheirSnapshot]:
        """Yield the newest snapshot of every key below an epoch. Raises CorruptPartitionError or StorageError."""
        with translated(self.path):
            for step, key, epoch, created, pickled in self._connection.execute(SNAPSHOTS, (below,)):
                if not all(isinstance(each, str) for each in (step, key, created)) or not isinstance(
                    pickled, bytes | None
                ):
                    raise CorruptPartitionError(f"a snapshot of step {step!r:.80} has impossible types")
                yield TheirSnapshot(step, key, epoch, created, pickled)


@contextlib.contextmanager
def their_files(directory: Path) -> Iterator[list[TheirFile]]:
    """Open the partitions of a directory that nobody uses. A file with a log beside it is read from a copy of both.

    Raises NoPartitionsError, DirectoryLockedError, ForeignPartitionError, CorruptPartitionError, and StorageError, also
    if something wrote to the files meanwhile.
    """
    paths = sorted(directory.glob(PATTERN))
    if not paths:
        raise NoPartitionsError(
            "it holds no recovery partitions of Bytewax",
            path=directory,
            cause="The path is wrong.",
            remedy="Name the directory that was given to Bytewax with -r.",
        )
    for path in paths:
        _check_unused(path)
    before = [_stamps(path) for path in paths]
    with contextlib.ExitStack() as held:
        scratch = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="recovery-import-")))
        yield [_opened(path, scratch, held) for path in paths]
        if [_stamps(path) for path in paths] != before:
            raise StorageError(
                "it was written to while it was read",
                path=directory,
                cause="Bytewax was started meanwhile.",
                remedy="Stop it, and run the same command again.",
            )


def _stamps(path: Path) -> tuple[Any, Any]:
    return stamp(path), stamp(beside(path, "-wal"))


def _check_unused(path: Path) -> None:
    with translated(path):
        if not stat.S_ISREG(path.stat().st_mode):
            raise StorageError("it is not a file", path=path, cause="", remedy="Move the file out of the directory.")
    refuse_odd_logs(path)
    if beside(path, "-journal").exists():
        raise StorageError(
            "it has a journal that was not finished",
            path=path,
            cause="The making of this partition was interrupted.",
            remedy="Make Bytewax's partitions again.",
        )
    holder = locked_by(path, *_FILE_LOCKS)
    if holder is None:
        holder = locked_by(beside(path, "-shm"), *_INDEX_LOCKS)
    if holder is not None:
        raise DirectoryLockedError(
            f"it is in use by {f'process {holder}' if holder else 'a process of another container'}",
            path=path,
            cause="The dataflow is still running, or a tool has the file open.",
            remedy="Stop it, then run the same command again.",
        )


def _opened(path: Path, scratch: Path, held: contextlib.ExitStack) -> TheirFile:
    log = beside(path, "-wal")
    with translated(path):
        size = path.stat().st_size
        log_size = log.stat().st_size if log.exists() else 0
        if log_size:
            copied = scratch / path.name
            copy_with_log(path, copied)
            connection = connect(copied, "ro")
        else:
            connection = connect(path, "unshared")
        held.callback(connection.close)
        connection.set_progress_handler(is_stopped, OPS_PER_LOOK)
        _check_tables(connection, path)
        return TheirFile(path, _said(connection, path), size + log_size, connection)


def _check_tables(connection: apsw.Connection, path: Path) -> None:
    found = {(kind, name) for kind, name, sql in rows(connection, OBJECTS) if sql is not None}
    if not found:
        raise CorruptPartitionError(
            "it has no tables", path=path, cause="The file was copied without its -wal file, or Bytewax was "
            "stopped before it made the tables.",
            remedy="Put the -wal file beside the file.",
        )  # fmt: skip
    others = [f"{kind} {name}" for kind, name in found if name not in COLUMNS and not _OF_LITESTREAM.fullmatch(name)]
    wrong = [
        name
        for name, columns in COLUMNS.items()
        if ("table", name) not in found or tuple(row[0] for row in rows(connection, COLUMN_NAMES, (name,))) != columns
    ]
    version = connection.pragma("user_version")
    if connection.pragma("application_id") == APPLICATION_ID:
        raise ForeignPartitionError(
            "it is a recovery partition of this package already",
            path=path,
            cause="SRC is not Bytewax's directory.",
            remedy="Run the flow on the directory; or name the directory that was given to Bytewax with -r.",
        )
    if others or wrong or version != VERSION:
        what = ", ".join(sorted(others) or wrong) or f"version {version}"
        raise ForeignPartitionError(
            f"it is not a partition of Bytewax 0.20 or 0.21: {what}",
            path=path,
            cause="The file is of another version or program, or was edited.",
            remedy="Only directories of Bytewax 0.20 and 0.21 can be taken over.",
        )
    damage = value(connection, "PRAGMA integrity_check(1)")
    if damage != "ok":
        raise CorruptPartitionError(f"SQLite says: {damage}", path=path)


def _said(connection: apsw.Connection, path: Path) -> TheirPartition:
    parts = rows(connection, PARTS)
    if len(parts) != 1 or not 0 <= parts[0][0] < parts[0][1] <= 1_000_000:
        raise CorruptPartitionError("it does not say which partition it is", path=path)
    [(index, count)] = parts
    return TheirPartition(
        path=path,
        index=index,
        count=count,
        executions=tuple(TheirExecution(*row) for row in rows(connection, EXECUTIONS)),
        frontiers={(number, worker): reached for number, worker, reached in rows(connection, FRONTIERS)},
        collected=value(connection, COLLECTED),
        snapshots=dict(rows(connection, EPOCHS)),
        flows=frozenset(row[0] for row in rows(connection, FLOWS)),
    )
