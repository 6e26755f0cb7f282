"""The full check of a partition: every digest, every sum, and SQLite's own structure."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import apsw

from recovery.base.ids import FIRST_EPOCH
from recovery.base.reserved import CHECKPOINT_STEP
from recovery.base.threads import each
from recovery.base.wording import counted
from recovery.checkpoint.rows import row_objection
from recovery.errors import CorruptPartitionError, RecoveryError
from recovery.planning.measures import StepSize
from recovery.planning.values import PartitionDescription
from recovery.storage.documents import check_states
from recovery.storage.sqlite.beginning import check_beginning
from recovery.storage.sqlite.columns import ODD_STATE
from recovery.storage.sqlite.describe import describe
from recovery.storage.sqlite.digests import SNAPS_DIGEST, SUM_SQL, combine, load_digests, mismatch_text
from recovery.storage.sqlite.epoch_log import check_chunks, check_log, logged_keys
from recovery.storage.sqlite.file.forked import opened_paths
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.sqlite.file.statements import rows, snapshot, translated
from recovery.storage.sqlite.file.tables import ROW_BYTES
from recovery.storage.sqlite.measures import check_measures, check_sizes

SNAPS = f"""
SELECT CAST(step_id AS BLOB), {SUM_SQL}, sum(digest IS NOT {SNAPS_DIGEST}), sum({ODD_STATE}),
    sum({ROW_BYTES})
FROM snaps GROUP BY step_id
"""
SUPERSEDED = f"""
SELECT until_epoch, {SUM_SQL}, sum(digest IS NOT {SNAPS_DIGEST}),
    sum(ser_change IS NOT NULL AND ({ODD_STATE}))
FROM superseded GROUP BY until_epoch
"""
AT_ONCE = 4
LIVE_KEYS = "SELECT state_key FROM snaps WHERE step_id = ?"
OLD_KEYS = "SELECT state_key FROM superseded WHERE until_epoch = ? AND step_id = ?"
# Damaged text may not be valid UTF-8.
DAMAGED = f"""
SELECT CAST(step_id AS BLOB), CAST(state_key AS BLOB) FROM {{table}} WHERE digest IS NOT {SNAPS_DIGEST} LIMIT 3
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a full check of one partition: the number of rows read, and a sentence for each problem."""

    path: Path
    rows: int
    problems: tuple[str, ...]

    def raise_if_damaged(self) -> None:
        """Raise CorruptPartitionError naming the first problems, if there are any."""
        if self.problems:
            raise CorruptPartitionError("; ".join(self.problems[:3]), path=self.path)


class FullCheck(Protocol):
    """A full check of one partition, wherever it is."""

    path: Path

    def run(self) -> Verdict:
        """Read everything once and return the verdict, which reports damage. Raises StorageError."""
        ...

    def cancel(self) -> None:
        """Let `run` end early. Harmless after the check has ended."""
        ...


def check_all(paths: Sequence[Path]) -> list[Verdict]:
    """Check several partitions fully and return the verdicts in the order of `paths`. Raises StorageError."""
    return run_all([PartitionCheck(path) for path in paths])


def run_all(checks: Sequence[FullCheck]) -> list[Verdict]:
    """Make several checks and return the verdicts in their order. Raises StorageError."""
    return each(lambda check: check.run(), checks, at_once=AT_ONCE, name="check")


def damage_behind(error: Exception, within: Path | None = None) -> CorruptPartitionError | None:
    """Return the error that explains an unexpected error: the damage of a partition that this process opened and whose
    full check finds damage. None if all partitions are sound: then `error` is a defect of this package.

    SQLite keeps the types of a column, so code that reads a partition relies on them. Only a forger can put a text
    where a number belongs, or a second row where there is one; whatever such a value does, the partition is to blame.
    It causes no error of the operating system, and none that has an exit code, such as a mistake on the command line:
    for these nothing is checked, because a check reads whole partitions.

    within: check the partitions of this directory only, because the process serves others, too.
    """
    if isinstance(error, apsw.InterruptError | MemoryError | OSError) or hasattr(error, "exit_code"):
        return None
    served = None if within is None else {path.resolve() for path in within.glob("part-*.sqlite3")}
    for path in opened_paths():
        if served is not None and path.resolve() not in served:
            continue
        try:
            PartitionCheck(path).run().raise_if_damaged()
        except CorruptPartitionError as damage:
            damage.cause = "Somebody edited or made the file: no run writes that, and SQLite alone would not keep it."
            damage.__cause__ = error
            return damage
        except (RecoveryError, apsw.Error):
            continue
    return None


@contextlib.contextmanager
def naming(copies: Path, whole: str, files: Mapping[str, str] | None = None) -> Iterator[None]:
    """Let errors of the block that name a temporary directory of copies name what was copied: the copies are gone when
    somebody reads the error. Damage behind an unexpected error becomes a typed error, as in `damage_behind`.

    whole: what the directory stands for. files: what files in it are copies of, by their names; others are in `whole`.
    """
    try:
        yield
    except Exception as error:
        typed = error if isinstance(error, RecoveryError) else damage_behind(error)
        if typed is None:
            raise
        originals = {str(copies / name): original for name, original in (files or {}).items()}
        for copy, original in (*originals.items(), (str(copies), whole)):
            typed.found, typed.cause, typed.remedy = (
                text.replace(copy, original) for text in (typed.found, typed.cause, typed.remedy)
            )
            typed.path = typed.path and typed.path.replace(copy, original)
        if typed is not error:
            raise typed from error
        raise


class PartitionCheck:
    """One full check of one partition, in one read transaction. Another thread can cancel the check."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: apsw.Connection | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Make `run` raise apsw.InterruptError, now or when it is called. Harmless after the check has ended."""
        self._cancelled = True
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(apsw.ConnectionClosedError):
                connection.interrupt()

    def run(self) -> Verdict:
        """Read everything once and return the verdict, which reports damage. Raises StorageError."""
        try:
            return read_partition(self.path, self._run)
        except CorruptPartitionError as error:
            return Verdict(self.path, 0, (error.found,))

    def _run(self, connection: apsw.Connection) -> Verdict:
        self._connection = connection
        if self._cancelled:
            raise apsw.InterruptError("cancelled")
        with translated(self.path):
            load_digests(connection)
            connection.pragma("cache_size", -8192)
            with snapshot(connection):
                return self._check(connection)

    def _check(self, connection: apsw.Connection) -> Verdict:
        description = describe(connection, self.path)
        problems = _gaps(description)
        steps = rows(connection, SNAPS)
        live_rows, high, low, damaged, odd = (sum(step[index] for step in steps) for index in range(1, 6))
        folded = description.folded_epoch
        newest = next((closed for closed in description.epochs if closed.epoch == folded), None)
        expected = (newest.live_rows, newest.live_digest) if newest else (0, 0)
        if damaged:
            problems.append(_damaged(connection, "snaps", damaged))
        if odd:
            problems.append(f"{odd} rows of snaps hold what no run writes there")
        if live_rows != expected[0]:
            problems.append(f"snaps holds {counted(live_rows, 'row')} where epoch {folded} left {expected[0]}")
        elif combine(high, low) != expected[1]:
            problems.append(f"the rows of snaps are not those that epoch {folded} left")
        elif not damaged:
            problems += check_sizes(connection, {_text(step): StepSize(each[0], each[-1]) for step, *each in steps})
        held = {e.epoch: (e.superseded_rows, e.superseded_digest) for e in description.epochs}
        total = live_rows
        for until, count, high, low, damaged, odd in rows(connection, SUPERSEDED):
            total += count
            if odd:
                problems.append(f"{odd} rows of superseded hold what no run writes there")
            if damaged:
                problems.append(_damaged(connection, "superseded", damaged))
            if held.pop(until, None) != (count, combine(high, low)):
                problems.append(f"the rows that epoch {until} superseded are not all there")
        for epoch, (count, _) in held.items():
            if count and epoch > description.collected:
                verb = "is" if count == 1 else "are"
                problems.append(f"the {counted(count, 'row')} that epoch {epoch} superseded {verb} missing")
        total += sum(closed.logged_rows or 0 for closed in description.epochs)
        problems += check_log(connection) or check_chunks(connection) or _paths(connection)
        problems += [*check_measures(connection), *check_states(connection), *check_beginning(connection)]
        problems += [f"SQLite says: {row[0]}" for row in rows(connection, "PRAGMA integrity_check(3)")]
        return Verdict(self.path, total, tuple(p for p in problems if p != "SQLite says: ok"))


def _paths(connection: apsw.Connection) -> list[str]:
    """Return, as a sentence, the first row of Spark's checkpoint that must not become a file, if any: restoring or
    exporting it would write to a path outside the checkpoint."""
    superseded = rows(connection, "SELECT DISTINCT until_epoch FROM superseded")
    queries = [(LIVE_KEYS, (CHECKPOINT_STEP,)), *((OLD_KEYS, (*until, CHECKPOINT_STEP)) for until in superseded)]
    found = (key for sql, bindings in queries for (key,) in connection.execute(sql, bindings))
    wrong = map(row_objection, itertools.chain(found, logged_keys(connection, CHECKPOINT_STEP)))
    return list(itertools.islice(filter(None, wrong), 1))


def _damaged(connection: apsw.Connection, table: str, count: int) -> str:
    found = rows(connection, DAMAGED.format(table=table))
    named = ", ".join(f"step {_text(step)!r} key {_text(key)!r}" for step, key in found)
    return f"{mismatch_text(count, table)} ({named})"


def _gaps(description: PartitionDescription) -> list[str]:
    """Return a sentence for each missing epoch or execution: every epoch from the collected one on must be there, and
    the execution that closed it."""
    problems = []
    first = max(description.collected, FIRST_EPOCH)
    # Walk along the epochs that exist: a damaged number could make the missing range too long to count.
    wanted = int(first)
    for held in sorted({closed.epoch for closed in description.epochs if closed.epoch >= first}):
        if held != wanted:
            break
        wanted += 1
    if wanted <= max(description.newest_epoch, description.collected):
        problems.append(f"epoch {wanted} is missing between {first} and {description.newest_epoch}")
    known = {execution.lease for execution in description.executions}
    for closed in description.epochs:
        if closed.execution not in known:
            problems.append(f"the execution {closed.execution.number} that closed epoch {closed.epoch} is missing")
    return problems


def _text(data: bytes | None) -> str:
    return "" if data is None else data.decode(errors="replace")
