"""Reading the state of a step for `format("recovery")`, from files of this host or, on a cluster, through a process
beside the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceReader, InputPartition

from recovery.base.ids import BatchId, Epoch, PartitionIndex, StepId
from recovery.errors import ConfigurationError
from recovery.host.identity import this_host
from recovery.planning.resume import Cut
from recovery.spark.sources.operator_source import DriverAddress, ask, check_is_here, directory_of, number_of
from recovery.wire.address import OwnerAddress
from recovery.wire.messages import Rows
from recovery.wire.rows import read_rows


@dataclass
class StatePartition(InputPartition):
    """One recovery partition, as of one cut or between two cuts. host: whose file it is."""

    host: str
    path: Path
    cut: Cut
    since: Cut | None


@dataclass
class OwnedPartition(InputPartition):
    """A `format("recovery")` partition on a cluster: the address of the process that sends its rows, the key to it, and
    what to ask for."""

    address: str
    task_key: bytes
    call: Rows


class StateReader(DataSourceReader):
    """Reads the cuts that were found when the frame was planned, so that all its rows are of one moment."""

    def __init__(self, options: dict[str, str], address: DriverAddress | None) -> None:
        if not options.get("path") or not options.get("step") or "operator" in options:
            raise ConfigurationError(
                'format("recovery") needs the options path, and step or operator',
                cause="",
                remedy='spark.read.format("recovery").option("step", "count").load("db/")',
            )
        self._path = options["path"]
        self._step = StepId(options["step"])
        self._epoch = number_of(options, "epoch")
        self._since = number_of(options, "sinceepoch")
        self._address = address

    def partitions(self) -> list[InputPartition]:
        if self._address is not None and self._address.cluster:
            return self._owned(self._address)
        from recovery.storage.snapshot import snapshots_at

        directory = directory_of(self._path, self._address)
        now, since = snapshots_at(directory, self._epoch, self._since)
        return [StatePartition(this_host(), path.absolute(), now.cut, since and since.cut) for path in now.paths]

    def _owned(self, address: DriverAddress) -> list[InputPartition]:
        directory = directory_of(self._path, address)
        question = {"path": str(directory), "epoch": self._epoch, "since": self._since}
        answer = ask(address, {"rows": question})
        since = answer["since"]
        call = Rows(self._step, PartitionIndex(0), _cut(answer["cut"]), since and _cut(since))
        key = bytes.fromhex(answer["task_key"])
        return [
            OwnedPartition(answer["address"], key, replace(call, partition=PartitionIndex(index)))
            for index in range(answer["partitions"])
        ]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if isinstance(partition, OwnedPartition):
            address = OwnerAddress.parsed(json.loads(partition.address))
            for body in read_rows(address, partition.task_key, partition.call):
                with pyarrow.ipc.open_stream(body) as stream:
                    yield from stream
            return
        assert isinstance(partition, StatePartition)
        check_is_here(partition.host)
        from recovery.owner.step_rows import step_rows

        yield from step_rows(partition.path, self._step, partition.cut, partition.since)


def _cut(found: list[Any]) -> Cut:
    epoch, execution, batch = found
    return Epoch(epoch), execution, BatchId(batch)
