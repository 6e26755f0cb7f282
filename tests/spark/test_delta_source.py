"""Delta tables by Spark with Delta's own jars: as the input of a flow, and to check the table of a DeltaSink."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from recovery import DeltaSink, FileSink, init_partitions
from recovery.base.reserved import CHECKPOINT_STEP
from recovery.checkpoint.reached import position_in
from recovery.errors import FlowFailedError, InputLostError, InputRewrittenError
from recovery.idle.note import NotedSource
from recovery.idle.sources import Positions, new_input
from recovery.planning.resume import plan_resume
from recovery.storage.reading import FileReader
from recovery.storage.scan import scan
from recovery.storage.snapshot import Snapshot
from tests.lake import DELTA, SETTINGS, needs_delta
from tests.spark.support import ROOT, run_to_end, set_to, states, totals_step
from tests.spark.tables import SIZE, Table, counted, kill_at_any_moment, restored, whole_history
from tests.spark.test_crashes import finish, recovery_command
from tests.spark.test_sinks import running_totals

pytestmark = needs_delta
KILLS = int(os.environ.get("RECOVERY_TEST_DELTA_KILLS", "50"))


class DeltaTable(Table):
    def __init__(self, spark, path: Path) -> None:
        super().__init__(spark, f"delta.`{path}`")
        self.path, self.place = path, str(path)

    def write(self, rows, mode: str = "append") -> None:
        rows.write.format("delta").mode(mode).save(self.place)

    def reader(self):
        return self.spark.readStream.format("delta").option("maxFilesPerTrigger", 1)


@pytest.fixture
def table(spark, tmp_path):
    return DeltaTable(spark, tmp_path / "in")


def test_from_one_table_into_another(spark, table, tmp_path):
    """Resumed, rewound, and with an input that was compacted meanwhile, each row counts once; Spark reads the sink's
    table as `deltalake` wrote it, with all of its history."""
    pytest.importorskip("deltalake")

    def go(**config):
        return run_to_end(
            table.frame(), tmp_path / "db", DeltaSink(tmp_path / "out"), backup_interval="1h", **config
        ).batches

    table.add(2)
    assert go() == 2
    table.add(2)
    assert go() == 2
    assert go(resume_epoch=2) == 3
    table.sql("OPTIMIZE {}")
    table.add()
    go()
    assert states(tmp_path / "db", "totals") == table.totals()
    found = spark.read.format("delta").load(str(tmp_path / "out"))
    assert sorted(map(tuple, found.collect())) == sorted(running_totals(table.rows, SIZE))
    history = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path / 'out'}`").select("version").collect()
    assert sorted(row.version for row in history) == list(range(len(history)))
    old = spark.read.format("delta").option("versionAsOf", 3).load(str(tmp_path / "out"))
    assert sorted(map(tuple, old.collect())) == sorted(running_totals(table.rows[: 2 * SIZE], SIZE))


def test_other_ways_into_a_table(spark, table, tmp_path):
    """The function of docs/delta.md: Delta skips no micro-batch that comes again, and writes none twice within a run.
    The files of a FileSink, converted by Spark."""
    page = (ROOT / "docs" / "delta.md").read_text()
    [code] = re.findall(r"```python\n(from recovery import current_batch\n[^`]*)```", page)
    names: dict = {}
    exec(code.replace("/data/table", str(tmp_path / "out")), names)
    crashes = [True]

    def write(batch, batch_id):
        names["write"](batch, batch_id)
        names["write"](batch, batch_id)
        if batch_id == 1 and crashes.pop():
            raise RuntimeError("crashed")

    table.add(2)
    with pytest.raises(FlowFailedError, match="crashed"):
        run_to_end(table.frame(), tmp_path / "db", write)
    crashes.append(False)
    run_to_end(table.frame(), tmp_path / "db", write)
    found = sorted(map(tuple, spark.read.format("delta").load(str(tmp_path / "out")).collect()))
    first, second = running_totals(table.rows[:SIZE]), running_totals(table.rows, SIZE)[3:]
    assert found == sorted(first + second * 2)

    run_to_end(table.frame(), tmp_path / "files-db", FileSink(tmp_path / "files"))
    spark.sql(f"CONVERT TO DELTA parquet.`{tmp_path}/files`")
    found = spark.read.format("delta").load(f"{tmp_path}/files").collect()
    assert sorted(map(tuple, found)) == sorted(running_totals(table.rows, SIZE))


def test_rows_that_were_replaced(table, tmp_path):
    """The error names the table and the version; the run goes on by skipping that version, or elsewhere from the
    beginning."""
    table.add()
    run_to_end(table.frame(), tmp_path / "db")
    totals = table.totals()
    table.rows.clear()
    table.write(table.new_rows(), mode="overwrite")
    for _ in range(2):
        with pytest.raises(InputRewrittenError) as caught:
            run_to_end(table.frame(), tmp_path / "db")
        assert caught.value.found.startswith(f"the Delta table file:{table.path} was changed in version 1")
    assert states(tmp_path / "db", "totals") == totals
    run_to_end(table.frame(skipChangeCommits="true"), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == totals
    run_to_end(table.frame(), tmp_path / "other")
    assert states(tmp_path / "other", "totals") == table.totals()


def test_files_and_versions_that_are_gone(spark, table, tmp_path):
    """VACUUM, a log that was cut, a table that was made again: the error names the table and the version."""
    directory = tmp_path / "db"
    table.add(2)
    run_to_end(table.frame(), directory)
    totals, behind = table.totals(), restored(directory)
    table.add()
    table.sql("OPTIMIZE {}")
    table.sql("VACUUM {} RETAIN 0 HOURS")
    with pytest.raises(InputLostError) as caught:
        run_to_end(table.frame(), directory)
    lacks = f"the Delta table file:{table.path} no longer has a file that the flow had still to read, up to version 5:"
    assert caught.value.found.startswith(lacks), caught.value.found
    assert states(directory, "totals") == totals
    ignore = "spark.sql.files.ignoreMissingFiles"
    assert ignore in caught.value.remedy
    table.add()
    with set_to(spark, {ignore: "true"}):
        run_to_end(table.frame(), directory)
    without_version_2 = counted(table.rows[: 2 * SIZE] + table.rows[3 * SIZE :])
    assert states(directory, "totals") == without_version_2

    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    log.forTable(spark._jsparkSession, str(table.path)).checkpoint()
    log.clearCache()
    entries = sorted((table.path / "_delta_log").glob("*.json"))
    for entry in entries[:-1]:
        entry.unlink()
    with pytest.raises(InputLostError) as caught:
        run_to_end(table.frame(), behind)
    newest = int(entries[-1].stem)
    cut = f"the table {table.path}, versions 2 to {newest - 1} are gone: it begins with version {newest} now"
    assert caught.value.found.startswith(cut), caught.value.found
    run_to_end(table.frame(), behind, lose_input=[str(table.path)])
    assert states(behind, "totals") == without_version_2

    shutil.rmtree(table.path)
    log.clearCache()
    table.add()
    with pytest.raises(InputRewrittenError, match=f"the table {table.path} is another one than the one read before"):
        run_to_end(table.frame(), directory)


def test_going_back_over_versions_that_are_gone(spark, table, tmp_path):
    """Refused, and nothing is touched: files that VACUUM removed, a log that was cut. Accepted by the table's path, the
    run reads what the log still has."""
    directory = tmp_path / "db"

    def go(**config):
        return run_to_end(table.frame(), directory, FileSink(tmp_path / "out"), backup_interval="1h", **config)

    def digests():
        files = [*directory.glob("*.sqlite3"), *(tmp_path / "out").rglob("*")]
        return {each: each.read_bytes() for each in files if each.is_file()}

    for _ in range(4):
        table.add()
        go()
    copies = [(each, tmp_path / each.name) for each in (table.path, directory, tmp_path / "out")]
    for made, copy in copies:
        shutil.copytree(made, copy.with_suffix(".copy"))
    table.sql("OPTIMIZE {}")
    table.sql("VACUUM {} RETAIN 0 HOURS")
    before = digests()
    with pytest.raises(
        InputLostError, match=f"{table.path} no longer has a file that the flow has to read again, of v"
    ):
        go(resume_after=2)
    assert digests() == before

    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    shutil.rmtree(table.path)
    shutil.copytree(copies[0][1].with_suffix(".copy"), table.path)
    log.clearCache()
    log.forTable(spark._jsparkSession, str(table.path)).checkpoint()
    log.clearCache()
    for entry in sorted((table.path / "_delta_log").glob("*.json"))[:3]:
        entry.unlink()
    lost = f"the table {table.path}, version 2 is gone: it begins with version 3 now.* would discard epochs 3 to 4"
    with pytest.raises(InputLostError, match=lost):
        go(resume_after=2)
    assert digests() == before
    go(resume_after=2, lose_input=[str(table.path)])
    assert states(directory, "totals") == counted(table.rows[: 2 * SIZE] + table.rows[3 * SIZE :])


def test_columns_that_are_renamed_and_dropped(spark, table, tmp_path):
    """With a schema log that all runs share, each row counts once behind every change, also after going back; without
    one the run ends with an error that says so. What the flow must do next is in each error."""
    columns = "key string, value long, extra long"
    table.sql(f"CREATE TABLE {{}} ({columns}) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    log = {"schemaTrackingLocation": str(tmp_path / "schemas")}

    def go(*, value: str = "value", resume_epoch=None, **options) -> list[str]:
        """Run until a run finds nothing to read, and return what the runs before said of columns."""
        said = []
        for _ in range(8):
            try:
                frame = table.reader().options(**log, **options).load(table.place)
                frame = frame.selectExpr("key", f"{value} AS value").transform(totals_step())
                config = {"backup_interval": "1h", "resume_epoch": None if said else resume_epoch}
                if not run_to_end(frame, tmp_path / "db", **config).batches:
                    return said
                resume_epoch = None
            except FlowFailedError as error:
                said.append(f"{error.found}. {error.remedy}")
        raise AssertionError(said)

    table.add(2)
    assert go() == []
    unlogged = restored(tmp_path / "db")
    table.add()
    table.sql("ALTER TABLE {} RENAME COLUMN extra TO more")
    table.add()
    with pytest.raises(InputRewrittenError, match=f"columns of the Delta table file:{table.path} were renamed"):
        run_to_end(table.frame(), unlogged)
    totals = states(tmp_path / "db", "totals")
    with pytest.raises(FlowFailedError, match="the stream's schema log has the new ones"):
        run_to_end(table.frame(**log), tmp_path / "db", backup_interval="1h")
    with pytest.raises(FlowFailedError, match="RENAME COLUMN") as caught:
        run_to_end(table.frame(**log), tmp_path / "db", backup_interval="1h")
    [(option, version)] = re.findall(r'option\("(\w+)", "(\d+)"\)', caught.value.remedy)
    assert option == "allowSourceColumnRename"
    assert totals == counted(table.rows[: 2 * SIZE])
    assert go(allowSourceColumnRename=version) == []
    assert states(tmp_path / "db", "totals") == table.totals()

    allowed = {"allowSourceColumnRename": "always", "allowSourceColumnDrop": "always"}
    table.sql("ALTER TABLE {} DROP COLUMN more")
    table.add()
    [said] = go(**allowed)
    assert "run the same command again" in said
    table.sql("ALTER TABLE {} RENAME COLUMN value TO amount")
    table.write(table.new_rows().withColumnRenamed("value", "amount"))
    with pytest.raises(FlowFailedError, match="the stream's schema log has the new ones"):
        run_to_end(table.frame(**log, **allowed), tmp_path / "db", backup_interval="1h")
    assert go(value="amount", **allowed) == []
    assert states(tmp_path / "db", "totals") == table.totals()
    assert go(value="amount", resume_epoch=2, **allowed) == []
    assert states(tmp_path / "db", "totals") == table.totals()


def test_what_the_log_says_without_spark(table, tmp_path):
    """A run reads nothing where the table's log, asked without Spark, has nothing new; it has nothing new after a run
    that has read its last version."""
    db = tmp_path / "db"

    def new() -> str | None:
        plan = plan_resume(scan(db))
        rows = Snapshot.of(plan, plan.snapshot.cut, FileReader.of).states(CHECKPOINT_STEP)
        found = position_in(((each.key, each.value) for each in rows), plan.snapshot.batch_id)
        places = '[{"source":0,"reads":"delta a b "}]'
        return new_input([NotedSource("delta", {"path": table.place})], places, Positions(*found))

    def go() -> int:
        return run_to_end(table.frame(), db, FileSink(tmp_path / "out")).batches

    table.add(3)
    assert go() == 3
    assert new() is None
    for statement, says in {
        "": "version 3",
        "OPTIMIZE {}": "version 4",
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.checkpointInterval' = '2')": "version 5",
    }.items():
        table.sql(statement) if statement else table.add()
        assert says in (new() or "")
        go()
        assert new() is not None or go() == 0
    for _ in range(4):
        table.add()
        assert new() is not None
        assert go() == 1
        assert new() is None
        assert go() == 0
    assert (table.path / "_delta_log" / "_last_checkpoint").exists()
    for old in range(3):
        (table.path / "_delta_log" / f"{old:020}.json").unlink()
    assert new() is None
    assert go() == 0
    assert states(db, "totals") == table.totals()


def test_a_run_that_finds_no_new_version(spark, table, tmp_path):
    """As a user starts runs by a timer: only with a new version of the table does one start Spark."""
    pytest.importorskip("deltalake")
    db, settings = tmp_path / "db", [each for name, text in SETTINGS.items() for each in ("--conf", f"{name}={text}")]
    init_partitions(db, 2)

    def go() -> str:
        flow = f"{ROOT}/tests/flows/tables.py:make_delta_from_delta({str(table.path)!r}, {str(tmp_path / 'out')!r})"
        jars = ",".join(map(str, DELTA))
        return finish(recovery_command(flow, db, "-s", "0", "--if-new-input", "--jars", jars, *settings))

    table.add(2)
    assert "no earlier run" in go()
    assert "no new input since epoch" in go()
    table.add()
    assert "version 2 of" in go()
    assert "no new input since epoch" in go()
    assert states(db, "totals") == table.totals()


@pytest.mark.long
def test_killed_at_any_moment(tmp_path):
    """From one table into another, through KILLS kills of which each fifth run goes back first, while the input grows
    and is compacted: each row counts once, and is in the output once."""
    deltalake = pytest.importorskip("deltalake")
    source, output, db = tmp_path / "in", tmp_path / "out", tmp_path / "db"
    init_partitions(db, 3)
    rows: list[tuple[str, int]] = []
    settings = [each for name, text in SETTINGS.items() for each in ("--conf", f"{name}={text}")]

    def add(lot):
        for _ in range(8):
            new = [(f"k{lot.randrange(40)}", lot.randrange(100)) for _ in range(SIZE)]
            keys, values = zip(*new, strict=True)
            deltalake.write_deltalake(str(source), pa.table({"key": keys, "value": values}), mode="append")
            rows.extend(new)
        if lot.random() < 0.2:
            deltalake.DeltaTable(str(source)).optimize.compact()

    def begin(*options):
        flow = f"{ROOT}/tests/flows/tables.py:make_delta_from_delta({str(source)!r}, {str(output)!r})"
        jars = ",".join(map(str, DELTA))
        return recovery_command(flow, db, "-s", "0", "-b", "1h", "--jars", jars, *settings, *options)

    done = kill_at_any_moment(db, begin, add, KILLS)
    assert states(db, "totals") == counted(rows)
    found = deltalake.DeltaTable(str(output)).to_pyarrow_table().to_pylist()
    assert sorted(tuple(row.values()) for row in found) == sorted(running_totals(rows, SIZE))
    print(f"{done}, {whole_history(output)} versions, {len(rows)} rows")
