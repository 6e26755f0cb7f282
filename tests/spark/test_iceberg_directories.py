"""Iceberg tables that are directories: what their metadata say without Spark is compared with what Spark finds to read.
As in `test_iceberg_source`, Iceberg's own jars read and write the tables."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recovery import RecoveryConfig, init_partitions, start
from recovery.base.reserved import CHECKPOINT_STEP
from recovery.checkpoint.reached import position_in
from recovery.errors import InputRewrittenError
from recovery.idle.iceberg import DIRECTORY
from recovery.idle.note import NotedSource
from recovery.idle.sources import Positions, new_input
from recovery.planning.resume import plan_resume
from recovery.sinks import DiscardSink
from recovery.spark.run.reporting.read_input import read_input
from recovery.storage.reading import FileReader
from recovery.storage.scan import scan
from recovery.storage.snapshot import Snapshot
from tests.lake import ICEBERG, iceberg_catalog, needs_iceberg
from tests.spark.support import ROOT, run_here, run_to_end, set_to, states
from tests.spark.tables import counted
from tests.spark.test_iceberg_source import CATALOGS, IcebergTable
from tests.spark.test_iceberg_source import table as catalog_table
from tests.test_without_spark import BLOCKED

pytestmark = needs_iceberg
of_catalog = catalog_table
PACKED = "ALTER TABLE {} SET TBLPROPERTIES ('write.metadata.compression-codec' = 'gzip')"
SHORT = "ALTER TABLE {} SET TBLPROPERTIES ('write.metadata.delete-after-commit.enabled' = 'true', \
'write.metadata.previous-versions-max' = '1')"
SKIPS = {"streaming-skip-overwrite-snapshots": "true", "streaming-skip-delete-snapshots": "true"}


def look_at(db: Path, source: NotedSource) -> str | None:
    """What the look finds in a table at the position of the newest epoch."""
    plan = plan_resume(scan(db))
    rows = Snapshot.of(plan, plan.snapshot.cut, FileReader.of).states(CHECKPOINT_STEP)
    found = position_in(((each.key, each.value) for each in rows), plan.snapshot.batch_id)
    return new_input([source], '[{"source":0,"reads":"iceberg a b "}]', Positions(*found))


class Lake:
    """A table of a Hadoop catalog, a recovery directory, and what the look finds of them."""

    def __init__(self, spark, directory: Path) -> None:
        catalog = f"lake{next(CATALOGS)}"
        self.spark, self.db, self.settings = spark, directory / "db", iceberg_catalog(catalog, directory, "hadoop")
        self.path = directory / "warehouse/db/input"
        with set_to(spark, self.settings):
            spark.sql(f"CREATE NAMESPACE {catalog}.db")
            self.table = IcebergTable(spark, catalog, directory)

    def new(self, **options: str) -> str | None:
        """What the look finds at the position of the newest epoch."""
        return look_at(self.db, NotedSource(DIRECTORY, {"path": f"file:{self.path}", **options}))

    def go(self, **options: str) -> int:
        """Run to the end; return how many micro-batches there were."""
        return run_to_end(self.table.frame(**options), self.db).batches

    def branch(self, name: str) -> None:
        loaded = self.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable
        loaded(self.spark._jsparkSession, self.table.name).manageSnapshots().createBranch(name).commit()


@pytest.fixture
def lake(spark, tmp_path):
    lake = Lake(spark, tmp_path / "lake")
    with set_to(spark, lake.settings):
        yield lake


def test_what_the_metadata_say_without_spark(lake):
    """Spark reads nothing where the look finds nothing; the look finds nothing after a run that has read all there is,
    and after what adds no rows."""
    table = lake.table
    table.add(3)
    assert lake.go() == 3

    def nothing(**options: str) -> None:
        assert lake.new(**options) is None
        assert lake.go(**options) == 0
        assert lake.new(**options) is None

    def one_more() -> None:
        table.add()
        assert f"snapshot {table.snapshots()[-1]} of {lake.path}" == lake.new()
        assert lake.go() == 1
        nothing()

    nothing()
    one_more()
    table.compact()
    nothing()
    one_more()
    table.sql(PACKED)
    nothing()
    one_more()
    table.tag("kept", table.snapshots()[0])
    lake.branch("side")
    before = [*table.rows]
    table.new_rows().writeTo(f"{table.name}.branch_side").append()
    table.rows[:] = before
    nothing()
    table.expire()
    nothing()
    table.sql(SHORT)
    one_more()
    one_more()
    assert not (lake.path / "metadata/v1.metadata.json").exists()
    (lake.path / "metadata/version-hint.text").unlink()
    nothing()
    assert states(lake.db, "totals") == counted(table.rows)


def test_snapshots_that_change_rows_without_spark(lake):
    """The look finds nothing only with the options by which Spark passes over such snapshots; it does not pass over a
    table that was rolled back or replaced."""
    table = lake.table
    table.add(2)
    assert lake.go() == 2
    table.sql("DELETE FROM {} WHERE value % 3 = 1")
    assert "snapshot" in (lake.new() or "")
    with pytest.raises(InputRewrittenError):
        lake.go()
    assert lake.new(**SKIPS) is None
    assert lake.go(**SKIPS) == 0
    table.add()
    assert lake.new(**SKIPS) is not None
    assert lake.go(**SKIPS) == 1
    assert lake.new() is None
    table.call("rollback_to_snapshot", f"{table.snapshots()[0]}")
    assert "does not lead to the newest one" in (lake.new(**SKIPS) or "")
    table.create("CREATE OR REPLACE")
    assert "does not lead to the newest one" in (lake.new(**SKIPS) or "")


def noted(frame, db: Path, *, stops: bool = False) -> tuple[list[NotedSource], str]:
    """What a run leaves for the next one. stops: somebody stops the run during its first micro-batch."""
    if not db.exists():
        init_partitions(db, 1)

    def sink(batch, batch_id):
        query.stop()

    config = RecoveryConfig(db, snapshot_interval=0)
    query = start(frame, config, sink=sink if stops else DiscardSink(), name="n", trigger="available-now")
    query.await_termination()
    found = read_input(query._run)
    return found.sources, found.why_not


def test_what_is_noted_of_a_table(spark, lake, of_catalog, tmp_path):
    """A table is noted by its name and by its path; not where a branch is read, where another catalog has the table, or
    where the run was stopped."""
    lake.table.add(3)
    of_catalog.add()
    uri = [NotedSource(DIRECTORY, {"path": f"file:{lake.path}"})]
    stream = spark.readStream.format("iceberg")
    assert noted(stream.load(lake.table.name), tmp_path / "name") == (uri, "")
    assert noted(stream.table(lake.table.name), tmp_path / "table") == (uri, "")
    assert noted(stream.load(f"file://{lake.path}"), tmp_path / "uri") == (uri, "")
    assert noted(stream.load(of_catalog.name), tmp_path / "catalog")[1].startswith("only Spark knows whether")
    slow = stream.option("streaming-max-files-per-micro-batch", 1).load(str(lake.path))
    assert "may have left rows" in noted(slow, tmp_path / "path", stops=True)[1]
    assert noted(slow, tmp_path / "path") == (uri, "")


def test_a_catalog_with_a_file_system_of_its_own(spark, tmp_path):
    """A path without a scheme is in the catalog's file system, whatever that of the session has under the same path."""
    warehouse, catalog = tmp_path / "warehouse", f"lake{next(CATALOGS)}"
    prefix = f"spark.sql.catalog.{catalog}"
    settings = {
        **iceberg_catalog(catalog, tmp_path, "hadoop"),
        f"{prefix}.warehouse": str(warehouse),
        f"{prefix}.hadoop.fs.defaultFS": "viewfs://other/",
        f"{prefix}.hadoop.fs.viewfs.mounttable.other.link.{warehouse}": f"file:{tmp_path}/elsewhere",
    }
    (tmp_path / "elsewhere").mkdir()
    with set_to(spark, settings):
        spark.sql(f"CREATE NAMESPACE {catalog}.db")
        table = IcebergTable(spark, catalog, tmp_path)
        table.add(2)
        shutil.copytree(tmp_path / "elsewhere", warehouse)
        [source], _ = noted(spark.readStream.format("iceberg").load(table.name), tmp_path / "db")
        table.add()
    assert source.options == {"path": f"viewfs://other{warehouse}/db/input"}
    assert "only Spark can look" in (look_at(tmp_path / "db", source) or "")


def test_branches_are_for_spark(spark, lake, tmp_path):
    """Whatever the connector makes of a stream of a branch."""
    lake.table.add()
    lake.branch("side")
    for frame in (spark.readStream.format("iceberg").load(f"{lake.table.name}.branch_side"),
                  spark.readStream.format("iceberg").option("branch", "side").load(str(lake.path))):  # fmt: skip
        assert "only Spark" in noted(frame, tmp_path / "db")[1]


@pytest.mark.parametrize("how", ["name", "table", "path"])
def test_a_run_that_finds_no_new_snapshot(spark, lake, tmp_path, how):
    """As a user starts runs by a timer: only with new rows does one start Spark. Other settings of the catalog start
    Spark."""
    init_partitions(lake.db, 2)
    given = {"name": (lake.table.name,), "table": (lake.table.name, "table"), "path": (str(lake.path),)}[how]
    flow = f"{ROOT}/tests/flows/tables.py:read_iceberg{given}"

    def go(*more: str) -> str:
        found = run_here(spark, flow, "-r", str(lake.db), "-s", "0", "--if-new-input", *more)
        assert found.returncode == 0, found.stderr
        return found.stderr

    lake.table.add(2)
    assert "no earlier run" in go()
    assert "no new input since epoch" in go()
    lake.table.compact()
    assert "no new input since epoch" in go()
    lake.table.add()
    assert re.search(r"--if-new-input: snapshot \d+ of ", go())
    assert "no new input since epoch" in go()
    assert states(lake.db, "totals") == lake.table.totals()
    warehouse = next(name for name in lake.settings if name.endswith(".warehouse"))
    assert "--conf is not as in the run before" in go("--conf", f"{warehouse}={lake.settings[warehouse]}")


def test_a_command_without_spark(lake):
    """A process of its own, in which no package of Spark is found, ends with the table's answer."""
    init_partitions(lake.db, 2)
    options = [f"--conf={name}={value}" for name, value in lake.settings.items()]
    options += ["-s", "0", "--if-new-input", "--master", "local[2]", "--jars", ",".join(map(str, ICEBERG))]

    def run(*program: str) -> tuple[bool, str]:
        """Whether it ended well, and what it printed."""
        flow = f"{ROOT}/tests/flows/tables.py:read_iceberg({lake.table.name!r})"
        done = subprocess.run(
            [sys.executable, *program, "run", flow, "-r", str(lake.db), *options], cwd=ROOT, capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, timeout=240,
        )  # fmt: skip
        print(done.stderr)
        return done.returncode == 0, done.stderr

    blocked = ("-c", f"{BLOCKED}from recovery.__main__ import main\nmain()")
    lake.table.add(2)
    ended_well, said = run("-m", "recovery")
    assert ended_well, said
    ended_well, said = run(*blocked)
    assert ended_well, said
    assert "no new input since epoch" in said
    lake.table.add()
    ended_well, said = run(*blocked)
    assert not ended_well, said
    assert "--if-new-input: snapshot" in said
