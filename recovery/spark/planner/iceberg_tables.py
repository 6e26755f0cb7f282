"""Iceberg tables that a flow reads. What their source would pass over without a word is an error here.

The source reads a table's snapshots one by one, and of each what it adds. Two things it does not notice:

- It begins at the oldest snapshot there is, or at the oldest one since a time. Rows from before the oldest one are
  never read if older ones have expired, also if that was after the time.
- A table without snapshots, which somebody made again or replaced, puts the position back before all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from recovery.base.ids import BatchId
from recovery.checkpoint.home import CheckpointHome
from recovery.checkpoint.offsets import labels, read_offsets
from recovery.checkpoint.snapshots import TableOffset, begin_at_position, table_offset
from recovery.checkpoint.source_places import SourcePlaces
from recovery.errors import InputLostError, InputRewrittenError
from recovery.spark.jvm.lost_input import table_emptied, table_expired, table_gap, table_rolled_back

_TABLE = "org.apache.iceberg.spark.source.SparkTable"
_FROM = "stream-from-timestamp"
"""The option of the source that says from when to read."""


@dataclass(frozen=True)
class IcebergTable:
    """A table as its source in a plan has it. handle: Iceberg's own, in the JVM. since: from when the flow wants to
    read, if it says so."""

    name: str
    handle: Any
    since: str | None
    spark: SparkSession

    def oldest(self) -> Any:
        """Return the oldest snapshot that leads to the current one."""
        return self._snapshots.oldestAncestor(self.handle)

    def leads_on(self, snapshot: int) -> bool:
        """Whether a snapshot leads to the current one, or is it."""
        return bool(self._snapshots.isAncestorOf(self.handle, snapshot))

    @property
    def _snapshots(self) -> Any:
        jvm = self.spark._jvm
        assert jvm is not None
        return jvm.org.apache.iceberg.util.SnapshotUtil


def iceberg_table(spark: SparkSession, node: Any) -> IcebergTable | None:
    """Return the table that a node of a plan reads as a stream; None if it reads something else."""
    if node.nodeName() != "StreamingRelationV2" or node.table().getClass().getName() != _TABLE:
        return None
    handle = node.table().table()
    return IcebergTable(str(handle.name()), handle, node.extraOptions().get(_FROM), spark)


class IcebergInput:
    """The tables that one run reads, by their places in the plan, and how far it has come."""

    def __init__(self, tables: Mapping[int, IcebergTable], places: SourcePlaces, home: CheckpointHome) -> None:
        self._tables = tables
        self._places = places
        self._home = home
        self._read: dict[int, TableOffset] = {}

    def described(self) -> str:
        """Return the tables and the positions in them, in the form that `lost_input` looks for."""
        read = {place: self._read.get(place) for place in self._tables}
        texts = {place: "-" if at is None else msgspec.json.encode(at).decode() for place, at in read.items()}
        return "\n".join(f"IcebergTable[{table.name}]: {texts[place]}" for place, table in self._tables.items())

    def begin(self, batch: BatchId | None) -> None:
        """Let the tables be read on from the position after `batch` in the restored checkpoint; None: there is none.
        Raises if one cannot be, or if one that was not read yet has lost its beginning."""
        if not self._tables:
            return
        offsets = {} if batch is None else self._offsets(batch)
        for place, table in self._tables.items():
            table.handle.refresh()
            at, is_empty = offsets.get(place), table.handle.currentSnapshot() is None
            if at is not None and at.begun:
                self._read[place] = at
                if is_empty:
                    raise table_emptied(table.name)
                if table.handle.snapshot(at.snapshot_id) is None:
                    raise table_expired(table.name, at.snapshot_id, _dated(table.oldest()))
                if not table.leads_on(at.snapshot_id):
                    raise _gone_between(table, at.snapshot_id)
            elif not is_empty:
                _check_whole(table)
        if batch is not None:
            begin_at_position(self._home.directory, batch, self._places.numbers)

    def check(self, batch: BatchId) -> None:
        """Raise if the planned micro-batch puts the position in a table back before all of its snapshots."""
        if not self._tables:
            return
        self._home.pull(batch)
        for place, at in self._offsets(batch).items():
            if at.begun:
                self._read[place] = at
            elif place in self._read:
                raise table_emptied(self._tables[place].name)

    def _offsets(self, batch: BatchId) -> dict[int, TableOffset]:
        """The positions after a micro-batch, by the places of the tables."""
        log = read_offsets(self._home.directory, batch)
        if log is None:
            return {}
        known = labels(self._places, log)
        found = {place: table_offset(log.offsets.get(known[place], "")) for place in self._tables}
        return {place: at for place, at in found.items() if at is not None}


def _gone_between(table: IcebergTable, read: int) -> InputLostError | InputRewrittenError:
    """The error for a snapshot that does not lead to the current one."""
    oldest = table.oldest()
    # What leads to the current one begins later, and not with the table: what was between has expired.
    if oldest.parentId() is not None and table.handle.snapshot(read).timestampMillis() < oldest.timestampMillis():
        return table_gap(table.name, read, _dated(oldest))
    return table_rolled_back(table.name, read)


def _check_whole(table: IcebergTable) -> None:
    """Raise if the oldest snapshot has files that neither it nor a later one adds, and the flow wants older rows."""
    oldest = table.oldest()
    if table.since is not None and not (table.since.isdecimal() and int(table.since) < oldest.timestampMillis()):
        return
    summary, operation = oldest.summary(), oldest.operation()
    total, added = (int(summary.get(f"{name}-data-files") or 0) for name in ("total", "added"))
    # Compaction adds files whose rows others have added. What removes rows is an error of the source itself.
    if (operation == "append" and total > added) or (operation == "replace" and total):
        raise InputLostError(
            f"the Iceberg table {table.name} has rows that were added before its oldest snapshot, {_dated(oldest)}",
            cause="Older snapshots were expired. The source reads what snapshots add, so it would leave these rows "
            "out.",
            remedy=f'To go without them, set .option("{_FROM}", "{oldest.timestampMillis()}"). To have them counted, '
            "read a copy of the table, whose snapshots add all of its rows.",
        )


def _dated(snapshot: Any) -> str:
    at = datetime.fromtimestamp(snapshot.timestampMillis() / 1000, UTC)
    return f"{snapshot.snapshotId()} of {at:%Y-%m-%d %H:%M:%S} UTC"
