"""`spark.read.format("recovery")`: the state of a step, or of one of Spark's own operators, at any held epoch, or the
changes between two epochs.

On a cluster, tasks read the state of steps from a process beside the driver, and import no SQLite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from recovery.spark.sources.compared import ComparedReader
from recovery.spark.sources.operator_source import DriverAddress, OperatorFrame, OperatorReader, operator_frame
from recovery.spark.sources.quarantined import WaitingFrame, WaitingReader, waiting_frame
from recovery.spark.sources.state_reader import StateReader

STATE_SCHEMA = "key string, state string, epoch bigint, timeout timestamp_ltz"
CHANGE_SCHEMA = "key string, change string, before string, after string"


class RecoveryDataSource(DataSource):
    """The states of one step as a DataFrame with one partition per recovery partition, or native state.

    Options: `path`, the recovery directory, or a place of backups, of which the newest one is read; `step`; `epoch`, by
    default the newest that all partitions hold; `sinceEpoch`, an older epoch, to read only the keys whose state has
    changed since then.
    `other`, another directory, and `otherEpoch`: the keys whose state differs there, `before` here and `after` there.
    In place of `step`: `quarantine`, a step or "*", for the rows that wait in quarantine, with their types; or
    `operator`, and `store`, `variable` or `timers`, as for `native_state`.
    """

    address: ClassVar[DriverAddress | None] = None
    """The driver's address for the session in which the class was registered."""

    _operator: OperatorFrame | None = None
    _waiting: WaitingFrame | None = None

    @classmethod
    def of(cls, address: DriverAddress | None) -> type[RecoveryDataSource]:
        """Return the class to register in one session. Spark pickles the class by value for its other processes."""
        return type(cls.__name__, (cls,), {"address": address})

    @classmethod
    def name(cls) -> str:
        return "recovery"

    def schema(self) -> str | StructType:
        if _is_of_operator(self.options):
            self._operator = operator_frame(self.options, self.address)
            return self._operator.schema
        if "quarantine" in self.options:
            self._waiting = waiting_frame(self.options, self.address)
            return self._waiting.schema
        return CHANGE_SCHEMA if {"sinceepoch", "other"} & self.options.keys() else STATE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        if _is_of_operator(self.options):
            # Use the frame that `schema` chose, so that schema and rows are of one moment.
            return OperatorReader(self._operator or operator_frame(self.options, self.address), schema)
        if "quarantine" in self.options:
            return WaitingReader(self._waiting or waiting_frame(self.options, self.address), self.options, self.address)
        if "other" in self.options:
            return ComparedReader(self.options, self.address)
        return StateReader(dict(self.options), self.address)


def _is_of_operator(options: Mapping[str, str]) -> bool:
    return "operator" in options and not {"step", "quarantine"} & options.keys()
