"""FileSink: Parquet, JSON or CSV files that hold every record of the closed epochs once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recovery.base.addresses import looks_like_address
from recovery.errors import ConfigurationError
from recovery.sinks.disk import Disk
from recovery.sinks.manifest import Entry
from recovery.sinks.output import OutputDirectory
from recovery.sinks.protocol import EpochOutput, Resume

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Format = Literal["parquet", "json", "csv"]
FORMATS = ("parquet", "json", "csv")
_LONGEST_HEADER = 1 << 16
WRITER_OPTIONS = {
    # Version 2 shows a task's files before the job is done; nothing here reads the marker file.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


class FileSink:
    """An EpochSink that writes files into one directory, where any tool can read them.

    path: the directory, on this machine; missing, empty, or already this flow's.
    format: "parquet", "json" (one object a line) or "csv".
    options: options of Spark's writer, such as {"compression": "zstd"} or {"header": True}.
    files_per_batch: the most files per micro-batch, written by as many tasks; None: one per task that has rows.
    check: "all": a run starts only if every published file exists with its size; "resumable": checks only those that
        a run could still take back, so older ones may be merged, moved or deleted.
    fresh: begin a new output although the flow's earlier output is elsewhere.

    The files of an epoch become visible when it is closed, each by an atomic rename, and are listed in
    `_recovery/manifest.jsonl`. Going back removes the files of the abandoned epochs.
    """

    single_action = True

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
        text = os.fspath(path)
        if not text or "://" in text or looks_like_address(text):
            raise ConfigurationError(
                f"FileSink: {text!r} is not a directory of this machine",
                remedy="Give the path of a local directory, ./ before one with a colon, and copy from there.",
            )
        if format not in FORMATS:
            raise ConfigurationError(f"FileSink: no format {format!r}", remedy=f"Use one of {', '.join(FORMATS)}.")
        if check not in ("all", "resumable"):
            raise ConfigurationError(f"FileSink: check={check!r}", remedy="Use 'all' or 'resumable'.")
        if files_per_batch is not None and (type(files_per_batch) is not int or files_per_batch < 1):
            raise ConfigurationError(f"FileSink: files_per_batch={files_per_batch!r}", remedy="Use 1, 2, 3 … or None.")
        self.path = Path(text).absolute()
        self.format = format
        self._options = {name: _text(value) for name, value in (options or {}).items()}
        self._files_per_batch = files_per_batch
        self._output = OutputDirectory(self.path, format, fresh=fresh, check_all=check == "all", disk=disk or Disk())
        self._execution = ""

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
        frame = batch if self._files_per_batch is None else batch.coalesce(self._files_per_batch)
        writer = frame.write.format(self.format).options(**self._options, **WRITER_OPTIONS)
        # Hadoop takes the path literally: escaped, it would write to a directory of another name.
        writer.mode("overwrite").save(f"file:{directory}")
        self._output.stage(batch_id, directory, self._is_empty)

    def prepare(self, output: EpochOutput) -> str:
        """Make the epoch's files durable; see `EpochSink`."""
        return self._output.prepare(output)

    def publish(self, output: EpochOutput) -> None:
        """Make the epoch's files visible; see `EpochSink`."""
        self._output.publish(output)

    def entries(self) -> tuple[Entry, ...]:
        """Return the published epochs as the manifest lists them, oldest first."""
        return self._output.find().entries

    def files(self) -> list[Path]:
        """Return the published files in the order in which they were written; all of them exist."""
        return [self.path / file.name for entry in self.entries() for file in entry.files]

    def damaged(self) -> list[Path]:
        """Return the published files that are missing or whose content was changed. Reads all of them."""
        return self._output.damaged()

    def _is_empty(self, path: Path, size_bytes: int) -> bool:
        """Whether a file holds no record; Spark writes such a file to record the schema."""
        if size_bytes == 0:
            return True
        if self.format == "parquet":
            import pyarrow.parquet as pq

            return bool(pq.read_metadata(path).num_rows == 0)
        # Spark ignores the case of option names. Lines can be counted only with the default line separator and
        # encoding.
        options = {name.lower(): value for name, value in self._options.items()}
        plain = path.suffix == ".csv" and not options.keys() & {"linesep", "encoding", "charset"}
        if self.format == "csv" and size_bytes < _LONGEST_HEADER and options.get("header") == "true" and plain:
            return path.read_bytes().count(b"\n") <= 1
        return False


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
