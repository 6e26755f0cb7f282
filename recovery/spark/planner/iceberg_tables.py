"""Iceberg tables that a flow reads. What the tables' source would skip silently is an error here.

The source reads a table's snapshots one by one, and the rows that each snapshot adds. Two things it does not notice:

- It begins at the oldest snapshot there is, or at the oldest one since a time. Rows from before the oldest one are
  never read if older ones have expired, also if that was after the time.
- A table without snapshots, which somebody made again or replaced, puts the position back before all of them.

Where a table cannot be read on from its position, the flow goes on as its option `recovery-lost-between` says.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from recovery.base.ids import BatchId
from recovery.base.outside import Answers, Checked, DoesNotApply, Moment, Question
from recovery.checkpoint.home import CheckpointHome
from recovery.checkpoint.offsets import NOTHING_READ, labels, move_offsets, read_offsets
from recovery.checkpoint.snapshots import TableOffset, begin_at_position, table_offset
from recovery.checkpoint.source_places import SourcePlaces
from recovery.errors import ConfigurationError, InputLostError, InputRewrittenError, UnsupportedPlanError
from recovery.planning.lag import PartLag
from recovery.spark.jvm.lost_input import (
    LOST_BETWEEN,
    table_emptied,
    table_expired,
    table_gap,
    table_replaced,
    table_rolled_back,
)

_PACKAGE = "org.apache.iceberg."
_BY_NAMES = (f"{_PACKAGE}hadoop.HadoopTableOperations", f"{_PACKAGE}hadoop.HadoopFileIO")
"""The classes that find a table's newest metadata by the names of files, and read files as they are."""
_FROM = "stream-from-timestamp"
"""The option of the source that says from when to read."""
_LOOKS = (Moment.START, Moment.GOING_BACK)
_log = logging.getLogger("recovery")


@dataclass(frozen=True)
class IcebergTable:
    """A table as its source in a plan has it. handle: Iceberg's own, in the JVM. since: from when the flow wants to
    read, if it says so. lost_between: the snapshot that was read last, and the one with which the flow is to go on, if
    it says so. directory: where the table is, if the names of the files there say which metadata are the newest."""

    name: str
    handle: Any
    since: str | None
    lost_between: tuple[int, int] | None
    spark: SparkSession
    directory: str | None = None

    def oldest(self) -> Any:
        """Return the oldest snapshot that leads to the current one."""
        return self._snapshots.oldestAncestor(self.handle)

    def leads_on(self, snapshot: int) -> bool:
        """Whether a snapshot leads to the current one, or is it."""
        return bool(self._snapshots.isAncestorOf(self.handle, snapshot))

    def has(self, snapshot: int) -> bool:
        """Whether a snapshot is there, be it for a tag or a branch alone."""
        return self.handle.snapshot(snapshot) is not None

    def after_loss(self, read: int) -> int | None:
        """Return the snapshot with which the flow is to go on after `read`; None if the option does not say so for that
        snapshot. Raises ConfigurationError if that snapshot is not in the table, or was read."""
        if self.lost_between is None or self.lost_between[0] != read:
            return None
        after = self.lost_between[1]
        if not self.leads_on(after):
            oldest = self.oldest()
            raise ConfigurationError(
                f"{LOST_BETWEEN} names snapshot {after}, which does not lead to the newest one of the Iceberg table "
                f"{self.name}",
                cause="The snapshot has expired meanwhile, or is another table's.",
                remedy=f'The oldest one is {_dated(oldest)}: "{read},{oldest.snapshotId()}".',
            )
        if self.has(read) and self._snapshots.isAncestorOf(self.handle, read, after):
            raise ConfigurationError(
                f"{LOST_BETWEEN} names snapshot {after} of the Iceberg table {self.name}, which the flow has read",
                remedy=f"Name a snapshot that comes after snapshot {read}.",
            )
        return after

    def behind(self, at: TableOffset) -> PartLag | None:
        """Return the snapshots beyond a position; None if the table has none."""
        # As other queries of a session do, with which a catalog lets a stream share its table.
        self.handle.refresh()
        newest = self.handle.currentSnapshot()
        if newest is None:
            return None
        end, read, behind = newest.timestampMillis(), 0, self._snapshots.currentAncestorIds(self.handle).size()
        if at.begun:
            last, is_newest = self.handle.snapshot(at.snapshot_id), at.snapshot_id == newest.snapshotId()
            read = last.timestampMillis()
            # Between a snapshot and itself, Iceberg finds all that lead to it.
            behind = 0 if is_newest else self._snapshots.snapshotIdsBetween(
                self.handle, at.snapshot_id, newest.snapshotId()
            ).size()  # fmt: skip
            files = int(last.summary().get(f"{'total' if at.scan_all_files else 'added'}-data-files") or 0)
            if at.position < files:
                read, behind = read - 1, behind + 1
        return PartLag(self.name, "", "", "snapshot", read, end, behind)

    @property
    def _snapshots(self) -> Any:
        jvm = self.spark._jvm
        assert jvm is not None
        return jvm.org.apache.iceberg.util.SnapshotUtil


def iceberg_table(spark: SparkSession, node: Any) -> IcebergTable | None:
    """Return the table that a node of a plan reads as a stream; None if it reads something else.

    Raises UnsupportedPlanError for a table of Iceberg's connector whose snapshots cannot be asked for, and
    ConfigurationError for an option in another form.
    """
    if node.nodeName() != "StreamingRelationV2" or not _is_iceberg(node.table()):
        return None
    options = node.extraOptions()
    try:
        handle = node.table().table()
        handle.currentSnapshot()
        name = str(handle.name())
    except Py4JError as error:
        raise _unknown_connector(node.table().name(), f"its class {node.table().getClass().getName()}") from error
    return IcebergTable(
        name, handle, options.get(_FROM), _lost_between(options.get(LOST_BETWEEN)), spark,
        _directory(node.table(), handle),
    )  # fmt: skip


def _is_iceberg(table: Any) -> bool:
    """Whether a table's class is Iceberg's, or derived from it, as those of some catalogs are."""
    each = table.getClass()
    while each is not None:
        if each.getName().startswith(_PACKAGE):
            return True
        each = each.getSuperclass()
    return False


def _directory(table: Any, handle: Any) -> str | None:
    """Return where a table is, with the scheme of its file system, if its main branch is read, and the names of files
    there say which metadata are the newest; None: otherwise, or if that is not known."""
    try:
        operations = handle.operations()
        classes = tuple(each.getClass().getName() for each in (operations, operations.io()))
        if classes != _BY_NAMES or table.branch() is not None:
            return None
        file = operations.io().newInputFile(operations.metadataFileLocation("any"))
        # A catalog has settings of Hadoop of its own: they say where a path without a scheme is.
        return str(file.getFileSystem().makeQualified(file.getPath())).removesuffix("/metadata/any")
    except Py4JError:
        return None


def _lost_between(option: str | None) -> tuple[int, int] | None:
    if option is None:
        return None
    found = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", option)
    if found is None:
        raise ConfigurationError(
            f"{LOST_BETWEEN} is {option!r}, not two numbers of snapshots",
            remedy=f'Write .option("{LOST_BETWEEN}", "READ,NEXT") with the two numbers that the error about the lost '
            "snapshots names.",
        )
    return int(found[1]), int(found[2])


def _unknown_connector(table: object, what: str) -> UnsupportedPlanError:
    return UnsupportedPlanError(
        f"the stream of the Iceberg table {table} cannot be checked: {what} is not known",
        cause="This version of Iceberg's connector is newer than this package, and what it would pass over without a "
        "word would go unnoticed.",
        remedy="Use a version of the connector that docs/delta.md names, or a newer version of this package.",
    )


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

    answers: ClassVar[Answers] = {
        Question.SAME: Checked("whether the snapshot that was read last leads to the newest one", _LOOKS),
        Question.THERE: Checked("the snapshot that was read last, and the next one", _LOOKS),
        Question.CHANGED: Checked("whether the last snapshot is there that discarded epochs have read as well", _LOOKS),
        Question.ABLE: Checked("whether the oldest snapshot has rows that none adds, before a first read", _LOOKS),
        Question.OWNER: DoesNotApply(),
    }

    def begin(
        self, batch: BatchId | None, accepted: Collection[str] = (), reached: Collection[str] = ()
    ) -> dict[str, str]:
        """Let the tables be read on from the position after `batch` in the restored checkpoint; None: there is none.
        Return what is left out of tables whose loss is accepted, by their names.

        reached: offsets of any sources that discarded epochs have logged. Raises if a table cannot be read on, or if
        one that was not read yet has lost its beginning.
        """
        left_out: dict[str, str] = {}
        if not self._tables:
            return left_out
        offsets = {} if batch is None else self._offsets(batch)
        moved: dict[int, TableOffset] = {}
        for place, table in self._tables.items():
            table.handle.refresh()
            at, is_empty = offsets.get(place), table.handle.currentSnapshot() is None
            if at is not None and at.begun:
                self._read[place] = at
                if is_empty:
                    raise table_emptied(table.name)
                after = table.after_loss(at.snapshot_id)
                if after is not None:
                    _log.warning("%s", _left_out(table, at.snapshot_id, after))
                else:
                    after = _next_after(table, at.snapshot_id, table.name in accepted)
                    if after is not None:
                        left_out[table.name] = _left_out(table, at.snapshot_id, after)
                    elif len(self._tables) == 1:
                        _check_reached(table, reached)
                if after is not None:
                    moved[place] = self._read[place] = at.at_beginning_of(after)
            elif not is_empty:
                _check_whole(table)
        if batch is not None:
            texts = {place: msgspec.json.encode(at).decode() for place, at in moved.items()}
            move_offsets(self._home.directory, batch, self._places, texts)
            begin_at_position(self._home.directory, batch, self._places.numbers)
        return left_out

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

    def behind(self, place: int, at: str) -> Sequence[PartLag]:
        """Return how much the table in a place has beyond an offset."""
        position = table_offset(at)
        found = None if position is None else self._tables[place].behind(position)
        return () if found is None else (found,)

    def _offsets(self, batch: BatchId) -> dict[int, TableOffset]:
        """The positions after a micro-batch, by the places of the tables."""
        log = read_offsets(self._home.directory, batch)
        if log is None:
            return {}
        known = labels(self._places, log)
        found: dict[int, TableOffset] = {}
        for place, table in self._tables.items():
            text = log.offsets.get(known[place], NOTHING_READ)
            if text != NOTHING_READ:
                at = table_offset(text)
                if at is None:
                    raise _unknown_connector(table.name, f"its position {text}")
                found[place] = at
        return found


def _left_out(table: IcebergTable, read: int, after: int) -> str:
    return (
        f"Iceberg table {table.name}: the flow goes on with snapshot {after}. What was added since snapshot {read}, "
        "and before the snapshot that it goes on with, is left out."
    )


def _next_after(table: IcebergTable, read: int, accepted: bool) -> int | None:
    """Return the snapshot with which the flow goes on if the loss of what comes before it is accepted; None: the table
    can be read on from `read`. Raises if the table cannot be read on, and nothing, or not what was lost, is
    accepted."""
    try:
        _check_leads_on(table, read)
    except InputLostError as error:
        if accepted:
            return int(table.oldest().snapshotId())
        error.remedy = (
            f"{error.remedy} Or run once with --lose-input {table.name}: the flow goes on with the oldest one."
        )
        raise
    return None


def _check_reached(table: IcebergTable, reached: Collection[str]) -> None:
    """Raise if a snapshot that discarded epochs have read does not lead to the newest one: its rows are gone."""
    for text in reached:
        at = table_offset(text)
        if at is not None and at.begun and not (table.has(at.snapshot_id) and table.leads_on(at.snapshot_id)):
            raise table_rolled_back(table.name, at.snapshot_id)


def _check_leads_on(table: IcebergTable, read: int) -> None:
    """Raise unless the table can be read on from a snapshot."""
    if not table.has(read):
        oldest = table.oldest()
        # What expired leaves a snapshot whose parent is gone. Without one, nothing tells which snapshots were read.
        if oldest.parentId() is None:
            raise table_replaced(table.name, read, _dated(oldest))
        raise table_expired(table.name, read, *_named(oldest))
    if not table.leads_on(read):
        raise _gone_between(table, read)


def _gone_between(table: IcebergTable, read: int) -> InputLostError | InputRewrittenError:
    """The error for a snapshot that does not lead to the current one."""
    oldest = table.oldest()
    # What leads to the current one begins later, and not with the table: what was between has expired.
    if oldest.parentId() is not None and table.handle.snapshot(read).timestampMillis() < oldest.timestampMillis():
        return table_gap(table.name, read, *_named(oldest))
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
            remedy=f'To go on without these rows, set .option("{_FROM}", "{oldest.timestampMillis()}"). To have '
            "them counted, read a copy of the table, whose snapshots add all of its rows.",
        )


def _named(snapshot: Any) -> tuple[int, str]:
    return snapshot.snapshotId(), _dated(snapshot)


def _dated(snapshot: Any) -> str:
    at = datetime.fromtimestamp(snapshot.timestampMillis() / 1000, UTC)
    return f"{snapshot.snapshotId()} of {at:%Y-%m-%d %H:%M:%S} UTC"
