"""Checking a partition: every digest, every sum, and SQLite's own structure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import apsw.sqlite_extra

from recovery.errors import CorruptPartitionError
from recovery.storage.digests import SNAPS_DIGEST, SUM_SQL, combine
from recovery.storage.partition import describe
from recovery.storage.schema import open_partition, rows, translated

SNAPS = f"SELECT {SUM_SQL}, coalesce(sum(digest <> {SNAPS_DIGEST}), 0) FROM snaps"
SUPERSEDED = f"""
SELECT until_epoch, {SUM_SQL}, sum(digest <> {SNAPS_DIGEST}) FROM superseded GROUP BY until_epoch
"""
DAMAGED = "SELECT step_id, state_key FROM {table} WHERE digest <> " + SNAPS_DIGEST + " LIMIT 3"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a full check of one partition found: the rows read, and a sentence for each thing that is wrong."""

    path: Path
    rows: int
    problems: tuple[str, ...]

    def raise_if_damaged(self) -> None:
        """Raises CorruptPartitionError naming the first problems."""
        if self.problems:
            raise CorruptPartitionError("; ".join(self.problems[:3]), path=self.path)


class PartitionCheck:
    """One full check of one partition, in one read transaction; it can be cancelled from another thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = open_partition(path, "ro")
        with translated(path):
            apsw.sqlite_extra.load(self._connection, "sha1")
            self._connection.pragma("cache_size", -8192)

    def cancel(self) -> None:
        """Let a running `run` raise apsw.InterruptError."""
        self._connection.interrupt()

    def run(self) -> Verdict:
        """Read everything once. Damage is reported in the verdict, not raised. Closes its connection."""
        try:
            with translated(self.path), self._connection:
                return self._check()
        except CorruptPartitionError as error:
            return Verdict(self.path, 0, (error.found,))
        finally:
            self._connection.close()

    def _check(self) -> Verdict:
        description = describe(self._connection, self.path)
        problems: list[str] = []
        live_rows, high, low, damaged = self._one(SNAPS)
        newest = description.newest
        expected = (newest.live_rows, newest.live_digest) if newest else (0, 0)
        if damaged:
            problems.append(self._damaged("snaps", damaged))
        if live_rows != expected[0]:
            problems.append(f"snaps holds {live_rows} rows where epoch {description.newest_epoch} left {expected[0]}")
        elif combine(high, low) != expected[1]:
            problems.append(f"the rows of snaps are not those that epoch {description.newest_epoch} left")
        held = {e.epoch: (e.superseded_rows, e.superseded_digest) for e in description.epochs}
        total = live_rows
        for until, count, high, low, damaged in rows(self._connection, SUPERSEDED):
            total += count
            if damaged:
                problems.append(self._damaged("superseded", damaged))
            if held.pop(until, None) != (count, combine(high, low)):
                problems.append(f"the rows that epoch {until} superseded are not all there")
        for epoch, (count, _) in held.items():
            if count and epoch > description.collected:
                problems.append(f"the {count} rows that epoch {epoch} superseded are missing")
        problems += [f"SQLite says: {row[0]}" for row in rows(self._connection, "PRAGMA integrity_check(3)")]
        return Verdict(self.path, total, tuple(p for p in problems if p != "SQLite says: ok"))

    def _damaged(self, table: str, count: int) -> str:
        found = rows(self._connection, DAMAGED.format(table=table))
        named = ", ".join(f"step {step!r} key {key!r}" for step, key in found)
        return f"{count} rows of {table} do not match their digest ({named})"

    def _one(self, sql: str) -> tuple[Any, ...]:
        return rows(self._connection, sql)[0]
