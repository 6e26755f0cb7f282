"""`format("recovery")` with the option `other`: the keys of a step that differ between two snapshots, of two
directories or of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow
from pyspark.sql.datasource import DataSourceReader, InputPartition

from recovery.errors import ConfigurationError
from recovery.host.identity import this_host
from recovery.spark.sources.operator_source import DriverAddress, check_is_here, directory_of, number_of
from recovery.storage.reading import FileReader
from recovery.storage.snapshot import Snapshot


@dataclass
class ComparedPartition(InputPartition):
    """What one task compares: files of both directories that have the same keys. host: whose files they are."""

    host: str
    a: Snapshot
    b: Snapshot


class ComparedReader(DataSourceReader):
    """Compares the snapshots that were found when the frame was planned."""

    def __init__(self, options: Mapping[str, str], address: DriverAddress | None) -> None:
        if not options.get("path") or not options.get("step") or "sinceepoch" in options:
            raise ConfigurationError(
                'format("recovery") with the option other needs path and step, and no sinceEpoch',
                cause="",
                remedy='spark.read.format("recovery").option("step", "count").option("other", "fork/").load("db/")',
            )
        if address is not None and address.cluster:
            raise ConfigurationError(
                "two directories cannot be compared by executors on other hosts",
                cause="The session runs on a cluster, and the option other reads the files of both directories.",
                remedy="Use a session with master local[*], or recovery diff with --output-file.",
            )
        self._step = options["step"]
        self._address = address
        self._places = [options[name] for name in ("path", "other")]
        self._epochs = [number_of(options, name) for name in ("epoch", "otherepoch")]

    def partitions(self) -> list[InputPartition]:
        from recovery.storage.snapshot import snapshot_at

        directories = [directory_of(place, self._address) for place in self._places]
        a, b = (snapshot_at(directory, epoch) for directory, epoch in zip(directories, self._epochs, strict=True))
        if len(a.paths) != len(b.paths):
            return [ComparedPartition(this_host(), _absolute(a), _absolute(b))]
        # With as many partitions, a key has the same number in both.
        return [
            ComparedPartition(this_host(), *(_absolute(replace(at, readers=(one,))) for at, one in ((a, x), (b, y))))
            for x, y in zip(a.readers, b.readers, strict=True)
        ]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, ComparedPartition)
        check_is_here(partition.host)
        from recovery.operational.steps.comparison import changed_states
        from recovery.owner.step_rows import change_rows

        yield from change_rows(self._step, changed_states(partition.a, partition.b, self._step))


def _absolute(at: Snapshot) -> Snapshot:
    return replace(at, readers=tuple(FileReader(path.absolute()) for path in at.paths))
