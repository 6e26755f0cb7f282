"""The staged records of a KafkaSink: files of micro-batches, and the list of the epoch that is closed or being closed.

    staging/kafka-<sink>/
    ├── epoch-00000007-<execution>.json    the epoch's files in their order, with rows, size and SHA-256
    └── rows/<execution>/<micro-batch>/    Parquet files

The list's digest goes into the partitions. A file is never changed, and is removed when all records of the epoch are
in the topic.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from recovery.base import faults
from recovery.base.untrusted_json import Count, Number, decode_json
from recovery.errors import FlowFailedError, OutputMismatchError, RecoveryError, shown
from recovery.hadoop.reports import PATIENCE_S, REPORT_NAMES, REPORTS, check_reported, reported
from recovery.sinks.files import parquet_metadata
from recovery.sinks.kafka.kept import pack
from recovery.sinks.kafka.marker import KafkaNote
from recovery.sinks.places import OutputPlace
from recovery.sinks.targets import target_error
from recovery.storage.kept import Record

ROWS_PER_CHUNK = 5000
_LIST_NAME = re.compile(r"epoch-\d{8,}-[0-9A-Za-z-]+\.json")
_FILE_NAME = re.compile(r"[0-9A-Za-z-]+/\d{8,}/[\w.-]+")
COLUMNS = ("key", "value", "headers", "partition", "timestamp")


@dataclass(frozen=True, slots=True)
class RecordsFile:
    """A file of records, named relative to `rows`. sha256: "" where only executors read the files."""

    name: str
    rows: Count
    bytes: Count
    sha256: str


@dataclass(frozen=True, slots=True)
class RecordsList:
    """The records of an epoch, in their order."""

    epoch: Count
    execution: str
    batch: Number
    files: tuple[RecordsFile, ...]

    @property
    def rows(self) -> int:
        """How many records the epoch has."""
        return sum(file.rows for file in self.files)


class TopicLimits(NamedTuple):
    """What the topic takes. id: that the broker gave the topic when it was made. bytes_of_record, latest_ms,
    earliest_ms: None: not known. needs_key: the topic is compacted. latest_ms, earliest_ms: how far the time of a
    record may be ahead, and how far behind. by_key: whether the key alone chooses the partition."""

    id: str
    partitions: int
    bytes_of_record: int | None
    needs_key: bool
    latest_ms: int | None
    earliest_ms: int | None
    by_key: bool = False


class StagedRecords:
    """The staged records of one execution. Staging may continue while an epoch of earlier micro-batches is closed."""

    def __init__(self, place: OutputPlace) -> None:
        self._disk, self._path, self._shared = place.disk, place.path, place.shared
        self._home = self._rows = place.path
        self._staged: dict[int, list[RecordsFile]] = {}
        self.staged = 0
        """How many records this execution has staged."""

    @property
    def waiting(self) -> int:
        """How many records are staged, and not forgotten."""
        return sum(file.rows for files in list(self._staged.values()) for file in files)

    def check_writable(self) -> None:
        """Raise SinkRefusedError if this user may not write there. Changes nothing."""
        with self._translated():
            self._disk.check_writable(self._path)

    def use(self, sink: str) -> None:
        """Let this be the staged records of a sink with this id."""
        self._home = self._path / f"kafka-{sink}"
        self._rows = self._home / "rows"

    def begin(self) -> None:
        """Remove all staged records of earlier executions."""
        with self._translated():
            self._disk.make_directory(self._rows)
            for name in self._disk.files(self._home):
                if _LIST_NAME.fullmatch(name):
                    self._disk.unlink(self._home / name)
            self._disk.remove_tree(self._rows)
            self._disk.make_directory(self._rows)
        self._staged, self.staged = {}, 0

    def directory(self, execution: str, batch: int) -> Path:
        """Return the directory for a micro-batch's files; what an earlier attempt left there is removed."""
        directory = self._rows / execution / f"{batch:08}"
        with self._translated():
            self._disk.remove_tree(directory)
        return directory

    def address(self, directory: Path) -> str:
        """Return the address of a directory for Spark's tasks."""
        return self._disk.address(directory)

    def stage(self, batch: int, directory: Path, limits: TopicLimits, host_of: Callable[[str], str | None]) -> None:
        """Register the files that the tasks of a micro-batch report; replaces the files registered for it before.

        host_of: where the task of a file ran, if it is known. Raises OutputLostError unless each file is here at its
        size, and FlowFailedError for a row that the topic does not take.
        """
        found = []
        with self._translated():
            patience_s = PATIENCE_S if self._shared else 0
            where = self._disk.shown(directory)
            reports = [self._disk.read(directory / REPORTS / name) for name in REPORT_NAMES]
            reported_files = {Path(path).name: size for path, size in reported(reports, where).items()}
            check_reported(reported_files, lambda: self._disk.files(directory), where, host_of, patience_s=patience_s)
            for name, size in sorted(reported_files.items()):
                path = directory / name
                metadata = parquet_metadata(partial(self._disk.tail, path))
                if metadata.num_rows:
                    for limit, text in _broken(metadata, limits):
                        raise _refused(self._table(path, self._disk.read(path)), limit, text, batch)
                    relative = f"{directory.parent.name}/{directory.name}/{name}"
                    found.append(RecordsFile(relative, metadata.num_rows, size, self._disk.sha256(path)))
        before = self._staged.get(batch, ())
        self._staged[batch] = found
        self.staged += sum(file.rows for file in found) - sum(file.rows for file in before)

    def prepare(self, epoch: int, execution: str, batch: int) -> tuple[RecordsList, str]:
        """Make the records of an epoch durable, up to a micro-batch; return their list, with its digest."""
        batches = sorted(each for each in list(self._staged) if each <= batch)
        records = RecordsList(epoch, execution, batch, tuple(f for each in batches for f in self._staged[each]))
        with self._translated():
            paths = [self._rows / file.name for file in records.files]
            for path in paths:
                self._disk.sync(path)
            for directory in sorted({path.parent for path in paths}):
                self._disk.sync_directory(directory)
            if paths:
                self._disk.sync_directory(paths[0].parent.parent)
                self._disk.sync_directory(self._rows)
            faults.reach("kafka.2.rows")
            data = msgspec.json.encode(records)
            self._disk.replace(self._home / _list_name(epoch, execution), data)
        return records, hashlib.sha256(data).hexdigest()

    def has(self, note: KafkaNote) -> bool:
        """Whether the list of an epoch is here: it is removed when all records are in the topic."""
        self.use(note.kafka)
        with self._translated():
            return self._disk.read(self._home / _list_name(note.epoch, note.execution)) is not None

    def find(self, note: KafkaNote) -> RecordsList:
        """Return the list of a closed epoch. Raises OutputMismatchError unless all its records are here."""
        path = self._home / _list_name(note.epoch, note.execution)
        where = self._disk.shown(path)
        with self._translated():
            data = self._disk.read(path)
            if data is None or hashlib.sha256(data).hexdigest() != note.digest:
                what = "is not here" if data is None else "was changed"
                raise _lost(note, f"the list of its records, {where}, {what}")
            found = decode_json(data, lambda why: _lost(note, f"{where}: {why}"), RecordsList)
            for file in found.files:
                if not _FILE_NAME.fullmatch(file.name) or ".." in file.name:
                    raise _lost(note, f"{where}: it names the file {shown(file.name)}")
                size = self._disk.files((self._rows / file.name).parent).get(Path(file.name).name)
                if size != file.bytes:
                    has = "is missing" if size is None else f"is {size} bytes long instead of {file.bytes}"
                    raise _lost(note, f"{self._disk.shown(self._rows / file.name)} {has}")
        return found

    def chunks(self, records: RecordsList, skip: int, most: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the records of an epoch in their order, without the first ones, in lists of some thousand, or `most`:
        as key and value where a file has nothing else. Raises OutputMismatchError for a file whose content was changed.
        """
        for table, first in self._tables(records, skip):
            plain = all(table.column(name).null_count == table.num_rows for name in COLUMNS[2:])
            names = COLUMNS[:2] if plain else COLUMNS
            for batch in table.slice(first).to_batches(max_chunksize=min(most, ROWS_PER_CHUNK)):
                yield list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))

    def last_of_keys(self, records: RecordsList) -> Iterator[Record]:
        """Yield the last record of each key, packed, for each file of an epoch in their order. Raises
        OutputMismatchError for a file whose content was changed."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for table, _ in self._tables(records, 0):
            numbered = table.select(["key"]).append_column("row", pa.array(range(table.num_rows), pa.int64()))
            last = numbered.group_by("key", use_threads=False).aggregate([("row", "max")])
            chosen = table.take(last.column("row_max"))
            # In their order the keys are written to neighbouring pages.
            chosen = chosen.take(pc.sort_indices(chosen.column("key")))
            for row in zip(*(chosen.column(name).to_pylist() for name in COLUMNS), strict=True):
                yield pack(*row)

    def _tables(self, records: RecordsList, skip: int) -> Iterator[tuple[Any, int]]:
        """Yield the files of an epoch in their order, and the first row that counts of each, so that `skip` rows of the
        epoch are left out. Raises OutputMismatchError for a file whose content was changed."""
        for file in records.files:
            if skip >= file.rows:
                skip -= file.rows
                continue
            path = self._rows / file.name
            with self._translated():
                data = self._disk.read(path)
            what = ""
            if data is None or (file.sha256 and hashlib.sha256(data).hexdigest() != file.sha256):
                what = "is not here" if data is None else "was changed"
            else:
                table = self._table(path, data)
                if table.num_rows != file.rows:
                    what = f"has {table.num_rows} of {file.rows} rows"
            if what:
                raise OutputMismatchError(
                    f"closed epoch {records.epoch} is not produced yet, and {self._disk.shown(path)} {what}",
                    cause=_LOST_CAUSE,
                    remedy=_way_out(records.epoch),
                )
            yield table, skip
            skip = 0

    def forget(self, records: RecordsList) -> None:
        """Remove an epoch's list and its files: all records are in the topic."""
        with self._translated():
            self._disk.unlink(self._home / _list_name(records.epoch, records.execution))
        faults.reach("kafka.4.list")
        for batch in [each for each in list(self._staged) if each <= records.batch]:
            del self._staged[batch]
            with contextlib.suppress(OSError):
                self._disk.remove_tree(self._rows / records.execution / f"{batch:08}")

    def _table(self, path: Path, data: bytes | None) -> Any:
        import pyarrow.parquet as pq

        if data is None:
            raise FileNotFoundError(2, "it was removed", self._disk.shown(path))
        return pq.read_table(io.BytesIO(data))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of the file system; see `targets`."""
        try:
            yield
        except OSError as error:
            raise target_error(error, str(error), self._disk.shown(self._path)) from error


def _list_name(epoch: int, execution: str) -> str:
    return f"epoch-{epoch:08}-{execution}.json"


_LOST_CAUSE = "Somebody removed or changed the staged records, or staging=… names another directory than before."


def _way_out(epoch: int) -> str:
    return (
        "Restore the files. Or have the epoch computed again, as long as the one before is held: --resume-after "
        f"{epoch - 1}; if some of its records are in the topic, with --lose-epochs."
    )


def _lost(note: KafkaNote, what: str) -> OutputMismatchError:
    return OutputMismatchError(
        f"closed epoch {note.epoch} is not produced yet ({note.rows} records), and {what}",
        path=f"topic {note.topic}",
        cause=_LOST_CAUSE,
        remedy=_way_out(note.epoch),
    )


def _broken(metadata: Any, limits: TopicLimits) -> Iterator[tuple[Callable[[dict[str, Any]], bool], str]]:
    """Yield which limits a file breaks, by the statistics in its footer: whether a row breaks it, and what to say."""
    largest, partitions, now_ms = limits.bytes_of_record, limits.partitions, int(time.time() * 1000)
    ahead = None if limits.latest_ms is None else now_ms + limits.latest_ms
    behind = None if limits.earliest_ms is None else now_ms - limits.earliest_ms
    sizes, numbers, times = (_range(metadata, name) for name in ("size", "partition", "timestamp"))
    if largest is not None and sizes is not None and sizes[1] > largest:
        yield lambda row: row["size"] > largest, f"larger than the topic takes ({largest} bytes: max.message.bytes)"
    if sizes is not None and sizes[0] < 0:
        yield lambda row: row["size"] < 0, "with a header without a name"
    if times is not None and times[0] <= 0:
        # librdkafka takes 0 for now, and the broker refuses what is below.
        yield (
            lambda row: row["timestamp"] is not None and row["timestamp"] <= 0,
            "with a time that is not after 1970-01-01 00:00:00 UTC",
        )
    if limits.needs_key and _has_null(metadata, "key"):
        yield lambda row: row["key"] is None, "without a key, and the topic is compacted"
    if numbers is not None and not (numbers[0] >= 0 and numbers[1] < partitions):
        yield (
            lambda row: row["partition"] is not None and not 0 <= row["partition"] < partitions,
            f"for a partition that is not one of the topic's {partitions}",
        )
    if numbers is not None and limits.by_key:
        yield (
            lambda row: row["partition"] is not None,
            "for a partition of its own, and compensate=True needs all records of a key in one partition",
        )
    if ahead is not None and times is not None and times[1] > ahead:
        yield (
            lambda row: row["timestamp"] is not None and row["timestamp"] > ahead,
            "with a time further ahead than the topic takes (message.timestamp.after.max.ms)",
        )
    if behind is not None and times is not None and times[0] < behind:
        yield (
            lambda row: row["timestamp"] is not None and row["timestamp"] < behind,
            "with a time further back than the topic takes (message.timestamp.before.max.ms)",
        )


def _statistics(metadata: Any, name: str) -> list[Any]:
    place = [metadata.schema.column(each).path for each in range(metadata.num_columns)].index(name)
    groups = [metadata.row_group(each).column(place).statistics for each in range(metadata.num_row_groups)]
    return [each for each in groups if each is not None]


def _range(metadata: Any, name: str) -> tuple[int, int] | None:
    known = [each for each in _statistics(metadata, name) if each.has_min_max]
    return (min(each.min for each in known), max(each.max for each in known)) if known else None


def _has_null(metadata: Any, name: str) -> bool:
    return any(each.null_count for each in _statistics(metadata, name))


def _refused(table: Any, breaks: Callable[[dict[str, Any]], bool], text: str, batch: int) -> RecoveryError:
    row = next(row for row in table.to_pylist() if breaks(row))
    return FlowFailedError(
        f"KafkaSink: micro-batch {batch} has a record {text}: its key is {shown(row['key'])}, its size "
        f"{row['size']} bytes, its partition {row['partition']}, its timestamp {row['timestamp']}",
        cause="The flow computed a row that the topic cannot take.",
        remedy="Change the flow or the topic's settings, then run the same command again: nothing was produced of "
        "this micro-batch.",
    )
