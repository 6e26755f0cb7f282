"""Tables of Delta and Iceberg as others see and change them, with the same words for both."""

from __future__ import annotations

import os
import shutil
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from recovery import DeltaSink, IcebergSink

NAME = "db.words"
THEIRS = pa.table({"key": ["theirs"], "n": [9]})


class Lake:
    """A Delta table in a directory."""

    def __init__(self, path: Path, **options) -> None:
        self.path, self.options = path / "table", options
        self.mode = options.get("mode", "append")

    def sink(self, **options) -> DeltaSink:
        return DeltaSink(self.path, **self.options, **options)

    @property
    def table(self):
        from deltalake import DeltaTable

        return DeltaTable(str(self.path))

    def rows(self) -> list:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(self.path)):
            return []
        return sorted(((row["key"], row["n"]) for row in self.table.to_pyarrow_table().to_pylist()), key=str)

    def state(self):
        """What a refused run must not change."""
        return self.table.version(), sorted(map(str, self.path.rglob("*")))

    def add_theirs(self) -> None:
        from deltalake import write_deltalake

        write_deltalake(str(self.path), THEIRS, mode="append")

    def compact(self) -> None:
        self.table.optimize.compact()

    def forget(self) -> None:
        """Remove the log but for a checkpoint, as its age does it."""
        table = self.table
        table.create_checkpoint()
        for each in (self.path / "_delta_log").iterdir():
            os.utime(each, (1e9, 1e9))
        table.cleanup_metadata()

    def roll_back(self, commits: int) -> None:
        table = self.table
        table.restore(table.version() - commits)

    def undo_rollback(self) -> None:
        table = self.table
        table.restore(table.version() - 1)

    def overwrite(self) -> None:
        from deltalake import write_deltalake

        write_deltalake(str(self.path), THEIRS, mode="overwrite")

    def delete(self, key: str) -> None:
        self.table.delete(f"key = '{key}'")

    def remove_unnamed(self) -> None:
        self.table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    def drop(self) -> None:
        shutil.rmtree(self.path)

    def make(self) -> None:
        self.add_theirs()


class Warehouse:
    """An Iceberg table in a catalog, in a directory whose name needs care in an address."""

    mode = "append"

    def __init__(self, path: Path, *, partitioned: bool = False) -> None:
        self.path = path / "ware house%20"
        self.path.mkdir()
        self.properties = {
            "type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{self.path}"
        }  # fmt: skip

        if partitioned:
            self.catalog.create_namespace("db")
            self.catalog.create_table(NAME, THEIRS.schema)
            with self.table.update_spec() as update:
                update.add_identity("key")

    def sink(self, **options) -> IcebergSink:
        return IcebergSink(NAME, properties=self.properties, **options)

    @cached_property
    def catalog(self):
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.properties)

    @property
    def table(self):
        return self.catalog.load_table(NAME)

    def rows(self) -> list:
        try:
            rows = self.table.scan().to_arrow().to_pylist()
        except Exception as error:
            if type(error).__name__ not in ("NoSuchTableError", "NoSuchNamespaceError"):
                raise
            return []
        return sorted(((row["key"], row["n"]) for row in rows), key=str)

    def compact(self) -> None:
        """Rewrite all files as one, as maintenance does it."""
        from pyiceberg.table.snapshots import Operation

        self._rewrite(self.table.scan().to_arrow(), {}, Operation.REPLACE)

    def _rewrite(self, rows, properties, operation=None) -> None:
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        table = self.table
        files = [task.file for task in table.scan().plan_files()]
        with table.transaction() as transaction, transaction.update_snapshot(properties).overwrite() as snapshot:
            summary = snapshot._summary
            if operation is not None:
                snapshot._summary = lambda given: summary(given).model_copy(update={"operation": operation})
            for each in files:
                snapshot.delete_data_file(each)
            for each in _dataframe_to_data_files(table.metadata, rows, table.io):
                snapshot.append_data_file(each)

    def expire(self, keep: int) -> None:
        """Expire all snapshots but the newest ones."""
        table = self.table
        kept = [each.snapshot_id for each in sorted(table.snapshots(), key=lambda each: each.sequence_number)[-keep:]]
        with table.transaction() as transaction:
            from pyiceberg.table.update import RemoveSnapshotsUpdate

            gone = [each.snapshot_id for each in table.snapshots() if each.snapshot_id not in kept]
            transaction._apply((RemoveSnapshotsUpdate(snapshot_ids=gone),))

    def state(self):
        """What a refused run must not change."""
        return self.table.metadata, sorted(map(str, self.path.rglob("*")))

    def add_theirs(self) -> None:
        self.table.append(THEIRS)

    def forget(self) -> None:
        self.expire(1)

    def roll_back(self, commits: int) -> None:
        table = self.table
        target = table.current_snapshot()
        for _ in range(commits):
            target = table.snapshot_by_id(target.parent_snapshot_id)
        table.manage_snapshots().rollback_to_snapshot(target.snapshot_id).commit()

    def undo_rollback(self) -> None:
        table = self.table
        newest = max(table.snapshots(), key=lambda each: each.sequence_number)
        table.manage_snapshots().set_current_snapshot(newest.snapshot_id).commit()

    def overwrite(self) -> None:
        """Put other rows in the place of all, as Spark's dynamic overwrite does it."""
        self._rewrite(THEIRS, {"replace-partitions": "true"})

    def delete(self, key: str) -> None:
        self.table.delete(f"key == '{key}'")

    def remove_unnamed(self) -> None:
        """Remove the files that no snapshot names."""
        table = self.table
        named = {Path(each["file_path"].removeprefix("file://")) for each in table.inspect.all_files().to_pylist()}
        for each in self.path.rglob("data/**/*.parquet"):
            if each not in named:
                each.unlink()

    def drop(self) -> None:
        self.catalog.drop_table(NAME)

    def make(self) -> None:
        self.catalog.create_table(NAME, THEIRS.schema)
        self.add_theirs()
