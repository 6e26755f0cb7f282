"""IcebergSink: an Iceberg table that holds every record of the closed epochs once. `tables.sink` has the protocol.

The catalog decides where a table is, so it is created before the first rows are written, and not when they are
committed. Files that no snapshot names are left to `remove_orphan_files`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from recovery.base.outside import Answers, Checked, Moment, Question
from recovery.errors import ConfigurationError, SinkFailedError, SinkRefusedError
from recovery.sinks.iceberg.partitions import GROUP, grouping
from recovery.sinks.iceberg.table import IcebergLog
from recovery.sinks.tables.columns import fields_of
from recovery.sinks.tables.commits import AddedFile
from recovery.sinks.tables.sink import TableSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class IcebergSink(TableSink):
    """An EpochSink that appends to an Iceberg table, through the package `pyiceberg`.

    table: its name in the catalog, such as "db.words". A missing table is created with the first rows, without
    partitions. catalog: the name of the catalog in the configuration of `pyiceberg`.
    properties: of the catalog, beside those in the configuration: type, uri, warehouse, credentials.
    options: options of Spark's Parquet writer, such as {"compression": "zstd"}.
    fresh: begin a new table although the flow's earlier output is in another.
    """

    answers: ClassVar[Answers] = {
        Question.SAME: Checked(
            "the table's UUID, with that in the note of the newest closed epoch",
            (Moment.START, Moment.GOING_BACK, Moment.CLOSING, Moment.PUBLISHING),
        ),
        Question.THERE: Checked(
            "each file of a closed epoch that is not committed yet, by its size",
            (Moment.START, Moment.GOING_BACK, Moment.PUBLISHING),
        ),
        Question.CHANGED: Checked(
            "rollbacks, by the snapshots that lead to the current one; overwrites of partitions that left no older "
            "file. Rows that other operations removed count as meant: no snapshot tells an overwrite from an UPDATE",
            (Moment.START, Moment.GOING_BACK, Moment.PUBLISHING),
        ),
        Question.ABLE: Checked(
            "format version, transforms of the partitions, required columns; to take rows back: whether the snapshots "
            "or the paths of the files show these rows",
            (Moment.START, Moment.GOING_BACK, Moment.CLOSING),
        ),
        Question.OWNER: Checked(
            "store and execution in the records of the snapshots, and in a property of the table, which outlasts them",
            (Moment.START, Moment.GOING_BACK, Moment.PUBLISHING),
        ),
    }
    points = ("iceberg.1", "iceberg.2", "iceberg.3", "iceberg.4")

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        fresh: bool = False,
    ) -> None:
        if not all(table.split(".")) or "." not in table:
            raise ConfigurationError(f"IcebergSink: table={table!r}", remedy="Give NAMESPACE.NAME, such as db.words.")
        try:
            import pyiceberg  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                f"IcebergSink needs the package pyiceberg: {error}", remedy="pip install 'pyiceberg[pyarrow]>=0.12'"
            ) from error
        self.table = table
        log = self._iceberg = IcebergLog(table, catalog, properties or {})
        self.warehouse = log.warehouse
        self._location, self._grouping = log.location, ""
        super().__init__(log, options=options, fresh=fresh)

    @property
    def keeps_plan(self) -> bool:
        """Whether `write` runs the micro-batch's plan unchanged: the table has no partitions."""
        with suppress(SinkFailedError, SinkRefusedError), self._translated():
            table = self._log.open()
            return table is None or not table.spec().fields
        return False

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r})"

    def place(self) -> str:
        """Return where the table is; empty if there is none yet, or if its catalog does not answer, of which `check`
        says why."""
        with suppress(SinkFailedError, SinkRefusedError), self._translated():
            return self._location()
        return ""

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write the micro-batch's files, which no snapshot names yet; see `EpochSink`."""
        if '"parquet.field.id"' in batch.schema.json():
            raise ConfigurationError(
                "IcebergSink: a column of the output has a Parquet field id in its metadata",
                cause="Spark writes it into the files, and pyiceberg does not add such files.",
                remedy="Drop the metadata: F.col('x').alias('x', metadata={}).",
            )
        super().write(batch, batch_id)

    def _check_schema(self, schema: str) -> None:
        super()._check_schema(schema)
        with self._translated():
            table = self._log.open()
            if table is None:
                self._log.create(schema, ())
                self._claim()
            self._grouping = "" if table is None else grouping(table, fields_of(schema))

    def _divided(self, batch: DataFrame) -> tuple[DataFrame, Sequence[str]]:
        if not self._grouping:
            return batch, ()
        return batch.selectExpr("*", f"{self._grouping} AS {GROUP}"), (GROUP,)

    def _check_rows(self, table: Any, files: Sequence[AddedFile]) -> None:
        self._iceberg.check_partitions(table, files)
