"""Delta tables by Spark with Delta's own jars: as the input of a flow, and to check the table of a DeltaSink."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from recovery import DeltaSink, init_partitions
from recovery.errors import InputLostError, InputRewrittenError
from tests.lake import JARS, SETTINGS, needs_delta
from tests.spark.support import ROOT, run_to_end, set_to, states, totals_step
from tests.spark.tables import kill_at_any_moment, whole_history
from tests.spark.test_crashes import recovery_command
from tests.spark.test_sinks import running_totals

pytestmark = needs_delta
KILLS = int(os.environ.get("RECOVERY_TEST_DELTA_KILLS", "50"))
SIZE = 10


class Table:
    """A Delta table that Spark writes, a file of `SIZE` rows in each version."""

    def __init__(self, spark, path: Path) -> None:
        self.spark, self.path, self.rows = spark, path, []

    def add(self, versions: int = 1, mode: str = "append") -> None:
        for _ in range(versions):
            numbers = range(len(self.rows), len(self.rows) + SIZE)
            rows = self.spark.range(numbers.start, numbers.stop, 1, 1)
            rows.selectExpr("concat('k', id % 3) AS key", "id AS value").write.format("delta").mode(mode).save(
                str(self.path)
            )
            self.rows += [(f"k{number % 3}", number) for number in numbers]

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.format(f"delta.`{self.path}`"))

    def frame(self, **options):
        reader = self.spark.readStream.format("delta").option("maxFilesPerTrigger", 1)
        return reader.options(**options).load(str(self.path)).transform(totals_step())

    def totals(self) -> dict[str, list[int]]:
        """The state that counts each row once."""
        return counted(self.rows)


def counted(rows) -> dict[str, list[int]]:
    """Count and sum per key."""
    return {key: [n, total] for key, n, total in running_totals(rows, len(rows))}


@pytest.fixture
def table(spark, tmp_path):
    return Table(spark, tmp_path / "in")


def restored(directory: Path) -> Path:
    """A copy of a recovery directory, as of a run that ended before."""
    copy = directory.with_name(f"{directory.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(directory, copy))


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


def test_rows_that_were_replaced(table, tmp_path):
    """The error names the table and the version; the run goes on by skipping that version, or elsewhere from the
    beginning."""
    table.add()
    run_to_end(table.frame(), tmp_path / "db")
    totals = table.totals()
    table.rows.clear()
    table.add(mode="overwrite")
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
    cut = f"the log of the Delta table file:{table.path}, of which the flow has read version 1, no longer has"
    assert caught.value.found.startswith(cut), caught.value.found
    assert caught.value.found.endswith(f"begins with version {int(entries[-1].stem)}"), caught.value.found
    run_to_end(table.frame(failOnDataLoss="false"), behind)
    assert states(behind, "totals") == without_version_2

    shutil.rmtree(table.path)
    log.clearCache()
    table.add()
    with pytest.raises(InputRewrittenError, match=f"file:{table.path} is another table than the one read before"):
        run_to_end(table.frame(), directory)


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
        jars = ",".join(map(str, JARS))
        return recovery_command(flow, db, "-s", "0", "-b", "1h", "--jars", jars, *settings, *options)

    told = kill_at_any_moment(db, begin, add, KILLS)
    assert states(db, "totals") == counted(rows)
    found = deltalake.DeltaTable(str(output)).to_pyarrow_table().to_pylist()
    assert sorted(tuple(row.values()) for row in found) == sorted(running_totals(rows, SIZE))
    print(f"{told}, {whole_history(output)} versions, {len(rows)} rows")
