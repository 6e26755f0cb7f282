"""FileSink: Parquet, JSON or CSV files that hold every record of the closed epochs once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from recovery.base.outside import Answers, Checked, Moment, Question
from recovery.errors import ConfigurationError
from recovery.hadoop.reports import REPORT_NAMES, REPORTS, host_of_task, reported
from recovery.hadoop.writing import write_files
from recovery.sinks.disk import Disk
from recovery.sinks.manifest import ManifestEntry
from recovery.sinks.output import OutputDirectory
from recovery.sinks.places import place_of
from recovery.sinks.protocol import EpochOutput, Resume

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Format = Literal["parquet", "json", "csv"]
FORMATS = ("parquet", "json", "csv")
_LONGEST_HEADER = 1 << 16


class FileSink:
    """An EpochSink that writes files into one directory, where any tool can read them.

    path: the directory; missing, empty, or already this flow's. A path on this machine; or, for tasks on other hosts,
        an address of one of Hadoop's file systems (`s3a://bucket/out`, `hdfs://…`), which Spark's settings open, or
        `file:///mnt/share/out` for a share that all hosts have mounted.
    format: "parquet", "json" (one object a line) or "csv".
    options: options of Spark's writer, such as {"compression": "zstd"} or {"header": True}.
    files_per_batch: the most files per micro-batch, written by as many tasks; None: one per task that has rows.
    check: "all": a run starts only if every published file exists with its size; "resumable": checks only those that
        a run could still take back, so older ones may be merged, moved or deleted.
    fresh: begin a new output although the flow's earlier output is elsewhere.

    The files of an epoch become visible when it is closed, each whole, and are listed in
    `_recovery/manifest.jsonl`. Going back removes the files of the abandoned epochs.
    """

    single_action = True
    keeps_plan = True
    answers: ClassVar[Answers] = {
        Question.SAME: Checked(
            "the random id in `_recovery/owner.json` with that in the snapshot's note",
            (Moment.START, Moment.GOING_BACK),
        ),
        Question.THERE: Checked(
            "names and sizes of the files of a closed epoch that is not published, and of a micro-batch with what its "
            "tasks reported",
            (Moment.START, Moment.GOING_BACK, Moment.CLOSING, Moment.PUBLISHING),
        ),
        Question.CHANGED: Checked(
            "the digests of the manifest's entries up to the snapshot's note; names and sizes of all published files, "
            'with `check="resumable"` of those only that a run could take back. Contents only by `damaged()`',
            (Moment.START, Moment.GOING_BACK),
        ),
        Question.ABLE: Checked(
            "the right to write to the directory, where it is a path of this machine; at an address only writing shows "
            "it",
            (Moment.START, Moment.GOING_BACK),
        ),
        Question.OWNER: Checked(
            "store, flow, format and last execution in `_recovery/owner.json`, and the epochs that the execution has "
            "shown",
            (Moment.START, Moment.GOING_BACK, Moment.CLOSING, Moment.PUBLISHING),
        ),
    }

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: Format = "parquet",
        *,
        options: Mapping[str, Any] | None = None,
        files_per_batch: int | None = None,
        check: Literal["all", "resumable"] = "all",
        fresh: bool = False,
        disk: Disk | None = None,
    ) -> None:
        place = place_of(os.fspath(path))
        if format not in FORMATS:
            raise ConfigurationError(f"FileSink: no format {format!r}", remedy=f"Use one of {', '.join(FORMATS)}.")
        if check not in ("all", "resumable"):
            raise ConfigurationError(f"FileSink: check={check!r}", remedy="Use 'all' or 'resumable'.")
        if files_per_batch is not None and (type(files_per_batch) is not int or files_per_batch < 1):
            raise ConfigurationError(f"FileSink: files_per_batch={files_per_batch!r}", remedy="Use 1, 2, 3 … or None.")
        self.path: Path | str = place.path if place.is_local else place.address
        self.shared = place.shared
        """Whether tasks on other hosts reach the directory."""
        self.format = format
        self._options = {name: _text(value) for name, value in (options or {}).items()}
        self._files_per_batch = files_per_batch
        self._disk = disk or place.disk
        self._output = OutputDirectory(
            place.path, format, fresh=fresh, check_all=check == "all", disk=self._disk, shared=place.shared
        )
        self._execution = ""

    def __repr__(self) -> str:
        return f"FileSink({str(self.path)!r}, {self.format!r})"

    def check(self, resume: Resume) -> None:
        """Raise if `rollback` would be impossible; see `EpochSink`."""
        self._output.plan(resume)

    def rollback(self, resume: Resume) -> None:
        """Leave visible exactly the output of the closed epochs; see `EpochSink`."""
        self._output.rollback(resume)
        self._execution = resume.execution.id

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write the micro-batch's files without making them visible; see `EpochSink`."""
        directory = self._output.staging(self._execution, batch_id)
        self._output.clear(directory)
        frame = batch if self._files_per_batch is None else batch.coalesce(self._files_per_batch)
        write_files(frame, self._disk.address(directory), self.format, self._options)
        reports = [self._output.read(directory / REPORTS / name) for name in REPORT_NAMES]
        found = {PurePath(path).name: size for path, size in reported(reports, self._disk.shown(directory)).items()}
        self._output.stage(batch_id, directory, found, self._is_empty, partial(host_of_task, frame))

    def prepare(self, output: EpochOutput) -> str:
        """Make the epoch's files durable; see `EpochSink`."""
        return self._output.prepare(output)

    def publish(self, output: EpochOutput) -> None:
        """Make the epoch's files visible; see `EpochSink`."""
        self._output.publish(output)

    def entries(self) -> tuple[ManifestEntry, ...]:
        """Return the published epochs as the manifest lists them, oldest first."""
        return self._output.find().entries

    def files(self) -> list[Any]:
        """Return the published files in the order in which they were written; all of them exist. Paths of a directory,
        texts of an address."""
        return [self._named(file.name) for entry in self.entries() for file in entry.files]

    def damaged(self) -> list[Any]:
        """Return the published files that are missing or whose content was changed. On this machine `damaged` reads all
        files; at an address it compares their sizes."""
        return [self._named(path.name) for path in self._output.damaged()]

    def _named(self, name: str) -> Path | str:
        path = self._output.path / name
        return path if isinstance(self.path, Path) else self._disk.shown(path)

    def _is_empty(self, path: Path, size_bytes: int) -> bool:
        """Whether a file holds no record; Spark writes such a file to record the schema."""
        if size_bytes == 0:
            return True
        if not path.name.startswith("part-00000-"):
            # Other tasks write no file when they have no rows.
            return False
        if self.format == "parquet":
            return bool(parquet_metadata(partial(self._disk.tail, path)).num_rows == 0)
        # Spark ignores the case of option names. Lines can be counted only with the default line separator and
        # encoding.
        options = {name.lower(): value for name, value in self._options.items()}
        plain = path.suffix == ".csv" and not options.keys() & {"linesep", "encoding", "charset"}
        if self.format == "csv" and size_bytes < _LONGEST_HEADER and options.get("header") == "true" and plain:
            return (self._disk.read(path) or b"").count(b"\n") <= 1
        return False


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def parquet_metadata(tail: Callable[[int], bytes]) -> Any:
    """Return the metadata of a Parquet file. tail: returns the last bytes of the file."""
    import pyarrow
    import pyarrow.parquet as pq

    size = int.from_bytes(tail(8)[:4], "little") + 8
    return pq.read_metadata(pyarrow.BufferReader(tail(size)))
