"""Targets of sinks that others own: how a run without Spark writes to them, what a reader sees, what others do to them.

Libraries that start threads are imported here, so that no fork has to, and used in forks alone (`worlds.forked`).
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet  # noqa: F401
import pytest

from recovery import FileSink
from recovery.hadoop.reports import REPORTS
from recovery.sinks import files
from recovery.sinks.output import LOCK
from recovery.sinks.tables import log, sink
from recovery.sinks.upsert.sink import UpsertSink
from tests.sinks import tables
from tests.sinks.tables import Batch
from tests.sinks.worlds import Lake

deltalake = pytest.importorskip("deltalake")
Record = tuple[str, int]


class FilesTarget:
    """The directory of a FileSink."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def sink(self) -> Any:
        """A sink of the target, which writes without Spark."""
        files.write_files = _write_json
        return FileSink(self.path, "json")

    def shown(self) -> list[Record]:
        """Every record that a reader sees, sorted."""
        found = []
        for path in self.path.glob("*.json") if self.path.is_dir() else ():
            found += [(row["key"], row["n"]) for row in map(json.loads, path.read_text().splitlines())]
        return sorted(found)

    def changes(self) -> Mapping[str, Callable[[], object]]:
        """What others may do to the target now, by its name."""
        if not self.path.exists():
            return {}
        shown = sorted(self.path.glob("epoch-*"))[-3:]
        found: dict[str, Callable[[], object]] = {"all removed": lambda: shutil.rmtree(self.path)}
        for number, path in enumerate(shown):
            found[f"file {number} removed"] = path.unlink
            found[f"file {number} changed"] = lambda path=path: path.write_text("{}\n")
        return found


def _write_json(batch: Batch, address: str, *_: object) -> None:
    directory = Path(address.removeprefix("file://").removeprefix("file:"))
    directory.mkdir(parents=True)
    path = directory / "part-00000-uuid-c000.json"
    path.write_text("".join(json.dumps({"key": key, "n": n}) + "\n" for key, n in batch.rows))
    (directory / REPORTS).mkdir()
    line = json.dumps({"path": f"file://{quote(str(path))}", "size": path.stat().st_size, "action": "add"})
    (directory / REPORTS / "0").write_text(f"v1\n{line}\n")


class DeltaTarget:
    """A Delta table. options: those of the sink."""

    def __init__(self, path: Path, **options: Any) -> None:
        path.mkdir(exist_ok=True)
        self.path, self._lake = path, Lake(path, **options)

    def sink(self) -> Any:
        """As in FilesTarget."""
        sink.write_files = tables.write_files
        log.host_of_task = lambda *_: None
        return self._lake.sink()

    def shown(self) -> list[Record]:
        """As in FilesTarget."""
        return sorted(self._lake.rows())

    def changes(self) -> Mapping[str, Callable[[], object]]:
        """As in FilesTarget."""
        lake = self._lake
        if not lake.path.exists():
            return {}
        return {
            "all removed": lambda: shutil.rmtree(lake.path, ignore_errors=True),
            "log cleaned": lake.forget,
            "vacuumed": lake.remove_unnamed,
            "restored": self._restore,
            "compacted": lake.compact,
        }

    def _restore(self) -> None:
        # Others cannot restore a version that the log has forgotten.
        with suppress(deltalake.exceptions.DeltaError):
            self._lake.roll_back(min(2, self._lake.table.version()))


class UpsertTarget:
    """A table of a SQLite file; each record has a key of its own."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self._file = path / "target.sqlite3"
        self._run("CREATE TABLE IF NOT EXISTS records (key TEXT, n INTEGER PRIMARY KEY)")

    def sink(self) -> Any:
        """As in FilesTarget."""
        return _Staged(lambda: sqlite3.connect(self._file, timeout=10), "records", ["n"])

    def shown(self) -> list[Record]:
        """As in FilesTarget."""
        return sorted(self._run("SELECT key, n FROM records"))

    def changes(self) -> Mapping[str, Callable[[], object]]:
        """As in FilesTarget."""
        return {"table dropped": lambda: self._run("DROP TABLE records")}

    def _run(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self._file)) as connection, connection:
            return connection.execute(sql).fetchall()


class _Staged(UpsertSink):
    """An UpsertSink that takes rows as they are here."""

    def write(self, batch: Batch, batch_id: int) -> None:  # type: ignore[override]
        self.stage(list(batch.types), batch.rows, batch_id)


def content_of(path: Path) -> dict[str, bytes]:
    """Every byte of a target, by the file's name."""
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file() and each.name != LOCK}
