"""Iceberg tables by Spark with Iceberg's own jars: as the input of a flow, and to check the table of an IcebergSink."""

from __future__ import annotations

import signal
from itertools import count
from pathlib import Path

import pytest

from recovery import IcebergSink, init_partitions
from recovery.errors import ConfigurationError, InputLostError, InputRewrittenError
from tests.flows.tables import NAME, properties
from tests.lake import ICEBERG, iceberg_catalog, needs_iceberg
from tests.spark.support import ROOT, run_to_end, set_to, states, totals_step
from tests.spark.tables import SIZE, Table, counted, restored
from tests.spark.test_crashes import finish, recovery_command
from tests.spark.test_sinks import running_totals

pytestmark = needs_iceberg
CATALOGS = count()


class IcebergTable(Table):
    """Each commit merges the manifests of all before it, as a table's hundredth does unless it is set otherwise."""

    def __init__(self, spark, catalog: str, directory: Path) -> None:
        self.catalog, self.place, self.directory = catalog, f"{catalog}.db.input", directory
        super().__init__(spark, self.place)
        self.create()

    def create(self, how: str = "CREATE") -> None:
        properties = "TBLPROPERTIES ('commit.manifest.min-count-to-merge' = '2', 'commit.retry.num-retries' = '1')"
        self.sql(f"{how} TABLE {{}} (key string, value bigint) USING iceberg {properties}")

    def write(self, rows) -> None:
        rows.writeTo(self.name).append()

    def reader(self):
        return self.spark.readStream.format("iceberg").option("streaming-max-files-per-micro-batch", 1)

    def call(self, procedure: str, arguments: str, table: str = "db.input") -> None:
        """A procedure of Iceberg on a table of the catalog."""
        self.spark.sql(f"CALL {self.catalog}.system.{procedure}('{table}', {arguments})").collect()

    def compact(self, table: str = "db.input") -> None:
        self.call("rewrite_data_files", "options => map('rewrite-all', 'true')", table)

    def expire(self, table: str = "db.input", leave: int = 1) -> None:
        """Leave the newest snapshots only."""
        self.call("expire_snapshots", f"older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => {leave}", table)

    def tag(self, name: str, snapshot: int) -> None:
        spark = self.spark
        handle = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, self.name)
        handle.manageSnapshots().createTag(name, snapshot).commit()

    def snapshots(self) -> list[int]:
        return [row[0] for row in self.sql("SELECT snapshot_id FROM {}.snapshots ORDER BY committed_at")]


@pytest.fixture
def table(spark, tmp_path):
    catalog = f"lake{next(CATALOGS)}"
    # Spark keeps a catalog that it has loaded, by its name.
    with set_to(spark, iceberg_catalog(catalog, tmp_path)):
        spark.sql(f"CREATE NAMESPACE {catalog}.db")
        yield IcebergTable(spark, catalog, tmp_path)


def test_from_one_table_into_another(spark, table, tmp_path):
    """Resumed, rewound, with an input that was compacted and whose read snapshots expired, each row counts once. Spark
    finds the sink's table in the catalog as `pyiceberg` wrote it, compacts it, and finds each row once after that."""
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")

    def go(**config):
        sink = IcebergSink(NAME, catalog=table.catalog, properties=properties(tmp_path))
        batches = run_to_end(table.frame(), tmp_path / "db", sink, backup_interval="1h", **config).batches
        found = spark.table(f"{table.catalog}.{NAME}")
        assert sorted(map(tuple, found.collect())) == sorted(running_totals(table.rows, SIZE))
        return batches

    table.add(2)
    assert go() == 2
    table.add(2)
    assert go() == 2
    assert go(resume_epoch=2) == 3
    table.compact()
    table.add()
    go()
    for snapshot in table.snapshots()[:4]:
        table.call("expire_snapshots", f"snapshot_ids => ARRAY({snapshot}L)")
    table.add()
    go()
    table.compact(NAME)
    go(resume_epoch=6)
    table.expire(NAME)
    table.add()
    go()
    assert states(tmp_path / "db", "totals") == table.totals()


def test_the_table_of_a_sink_as_an_input(spark, table, tmp_path):
    """Another flow reads each row that an IcebergSink appends once, and is refused when the writing flow went back."""
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")

    def write(**config):
        sink = IcebergSink(NAME, catalog=table.catalog, properties=properties(tmp_path))
        run_to_end(table.frame(), tmp_path / "db", sink, backup_interval="1h", **config)

    def read():
        rows = spark.readStream.format("iceberg").load(f"{table.catalog}.{NAME}").selectExpr("key", "total AS value")
        run_to_end(rows.transform(totals_step()), tmp_path / "reader")
        found = [(key, total) for key, _, total in running_totals(table.rows, SIZE)]
        assert states(tmp_path / "reader", "totals") == counted(found)

    for _ in range(3):
        table.add(2)
        write()
        read()
    write()
    read()
    write(resume_epoch=5)
    with pytest.raises(InputRewrittenError, match=f"the Iceberg table {table.catalog}.{NAME} was changed in snapshot"):
        read()


def test_killed_and_resumed(table, tmp_path):
    """A run that is killed before it closed an epoch, in the middle of several snapshots that one micro-batch reads,
    begins where it began: numbers of snapshots have no order."""
    table.add(5)
    init_partitions(tmp_path / "db", 3)
    flow = f"{ROOT / 'tests/flows/tables.py'}:read_iceberg({table.place!r})"
    jars = ["--jars", ",".join(map(str, ICEBERG))]
    conf = [f"--conf={key}={value}" for key, value in iceberg_catalog(table.catalog, tmp_path).items()]
    process = recovery_command(flow, tmp_path / "db", "-s", "0", *jars, *conf, crash_at="close.2.committed:2")
    printed = finish(process)
    assert process.returncode == -signal.SIGKILL, printed
    table.add()
    run_to_end(table.frame(), tmp_path / "db", name="totals")
    assert states(tmp_path / "db", "totals") == table.totals()


def test_rows_that_were_removed(table, tmp_path):
    """The error names the table and the snapshot; the run goes on by skipping such snapshots."""
    table.add()
    run_to_end(table.frame(), tmp_path / "db")
    totals = table.totals()
    table.sql("DELETE FROM {} WHERE value % 3 = 1")
    for _ in range(2):
        with pytest.raises(InputRewrittenError) as caught:
            run_to_end(table.frame(), tmp_path / "db")
        changed = f"the Iceberg table {table.name} was changed in snapshot {table.snapshots()[1]}"
        assert caught.value.found.startswith(changed), caught.value.found
    skip = {"streaming-skip-overwrite-snapshots": "true"}
    assert skip.keys() < {*caught.value.remedy.split('"')}
    assert states(tmp_path / "db", "totals") == totals
    table.add()
    run_to_end(table.frame(**skip), tmp_path / "db")
    # Behind that snapshot the option is not needed any more.
    table.add()
    run_to_end(table.frame(), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == table.totals()

    table.call("rollback_to_snapshot", f"{table.snapshots()[0]}")
    table.add()
    with pytest.raises(InputRewrittenError, match=f"Iceberg table {table.name} was rolled back"):
        run_to_end(table.frame(), tmp_path / "db")


def test_snapshots_that_are_gone(table, tmp_path):
    """Expired before the flow had read on, or before it began: the error names the table and snapshots. A table that
    was made again is another one, also when it is empty."""
    directory, new = tmp_path / "db", tmp_path / "new"
    table.add()
    run_to_end(table.frame(), directory)
    totals, read = table.totals(), table.snapshots()[0]
    table.add(2)
    table.expire()
    [newest] = table.snapshots()
    with pytest.raises(InputLostError) as caught:
        run_to_end(table.frame(), directory)
    lacks = f"the Iceberg table {table.name} no longer has snapshot {read}, from which the flow had to read on; its"
    assert caught.value.found.startswith(f"{lacks} oldest one is {newest} of "), caught.value.found
    assert states(directory, "totals") == totals

    with pytest.raises(InputLostError):
        run_to_end(table.frame(**{"stream-from-timestamp": "1"}), new)
    with pytest.raises(InputLostError) as caught:
        run_to_end(table.frame(), new)
    lacks = f"the Iceberg table {table.name} has rows that were added before its oldest snapshot, {newest} of "
    assert caught.value.found.startswith(lacks), caught.value.found
    _, option, _, since, *_ = caught.value.remedy.split('"')
    run_to_end(table.frame(**{option: since}), new)
    assert states(new, "totals") == counted(table.rows[2 * SIZE :])

    behind = restored(new)
    table.create("CREATE OR REPLACE")
    for each in (new, directory):
        with pytest.raises(InputRewrittenError, match=f"{table.name} has no snapshots any more"):
            run_to_end(table.frame(), each)
    table.add()
    with pytest.raises(InputRewrittenError, match=f"{table.name} was rolled back"):
        run_to_end(table.frame(), behind)


def way_on(caught) -> dict[str, str]:
    """The option with which the flow goes on, as the error says."""
    _, option, _, value, *_ = caught.value.remedy.split('"')
    return {option: value}


@pytest.mark.parametrize("how", ["format", "table"])
def test_going_on_without_snapshots_that_expired(spark, table, tmp_path, caplog, how):
    """With the option that the error names, the flow reads what is left, each row once, and says so. Left in the code,
    it does nothing in later runs; after going back it counts again."""

    def go(options=(), **config):
        frame = table.frame(**dict(options))
        if how == "table":
            stream = spark.readStream.options(**dict(options)).option("streaming-max-files-per-micro-batch", 1)
            frame = stream.table(table.name).transform(totals_step())
        return run_to_end(frame, tmp_path / "db", backup_interval="1h", **config).batches

    def counts(*commits: range) -> bool:
        rows = [row for each in commits for n in each for row in table.rows[n * SIZE : (n + 1) * SIZE]]
        return states(tmp_path / "db", "totals") == counted(rows)

    table.add(2)
    go()
    table.add(3)
    table.expire(leave=2)
    for _ in range(2):
        with pytest.raises(InputLostError) as caught:
            go()
    assert counts(range(2))
    accepted = way_on(caught)
    assert go(accepted) == 2
    assert counts(range(2), range(3, 5))
    [said] = [record.message for record in caplog.records if record.name == "recovery"]
    for each in (table.name, *accepted["recovery-lost-between"].split(",")):
        assert each in said

    assert go(accepted) == 0
    with pytest.raises(InputLostError):
        go(resume_epoch=3)
    assert go(accepted, resume_epoch=3) == 2
    table.add()
    go()
    assert counts(range(2), range(3, 6))
    # A second loss is another one.
    table.add(2)
    table.expire()
    with pytest.raises(InputLostError) as caught:
        go(accepted)
    go(way_on(caught))
    assert counts(range(2), range(3, 6), range(7, 8))


def test_a_snapshot_that_a_tag_keeps(table, tmp_path):
    """The snapshot that was read last is there, the next one is not: the error names both ends, and the flow goes on
    behind them."""
    directory = tmp_path / "db"
    table.add()
    run_to_end(table.frame(), directory)
    [read] = table.snapshots()
    table.tag("read", read)
    table.add(3)
    table.expire(leave=2)
    assert read in table.snapshots()
    with pytest.raises(InputLostError) as caught:
        run_to_end(table.frame(), directory)
    oldest = table.snapshots()[1]
    lacks = f"the Iceberg table {table.name} no longer has what comes between snapshot {read}, which the flow has read"
    assert caught.value.found.startswith(f"{lacks} last, and {oldest} of "), caught.value.found
    run_to_end(table.frame(**way_on(caught)), directory)
    table.add()
    run_to_end(table.frame(), directory)
    assert states(directory, "totals") == counted(table.rows[:SIZE] + table.rows[2 * SIZE :])


def test_a_rollback_whose_snapshots_expired(table, tmp_path):
    """The error cannot tell which snapshots were read; the flow goes on with the one that is named."""
    table.add(2)
    run_to_end(table.frame(), tmp_path / "db")
    first, read = table.snapshots()
    table.call("rollback_to_snapshot", f"{first}")
    table.expire()
    table.add()
    begins = f"no longer has snapshot {read}, which the flow has read last; it begins with {first} of "
    with pytest.raises(InputRewrittenError, match=begins) as caught:
        run_to_end(table.frame(), tmp_path / "db")
    assert f'"recovery-lost-between", "{read},NEXT"' in caught.value.remedy
    options = {"recovery-lost-between": f"{read},{table.snapshots()[1]}"}
    run_to_end(table.frame(**options), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == table.totals()


def test_going_back_over_snapshots_that_are_gone(table, tmp_path):
    """Refused before anything is discarded, if the table was rolled back behind what epochs have read, or snapshots
    expired. A loss that is accepted by the table's name goes on with the oldest snapshot."""
    directory = tmp_path / "db"

    def go(**config):
        return run_to_end(table.frame(), directory, backup_interval="1h", **config)

    for _ in range(3):
        table.add()
        go()
    first, _, last = table.snapshots()
    before = {path: path.read_bytes() for path in directory.glob("*.sqlite3")}
    table.call("rollback_to_snapshot", f"{first}")
    with pytest.raises(InputRewrittenError, match=f"{table.name} was rolled back or replaced: snapshot {last}"):
        go(resume_after=1)
    table.call("set_current_snapshot", f"{last}")
    table.expire(leave=1)
    for accepted in ((), ("another",)):
        with pytest.raises(InputLostError, match=f"{table.name} no longer has snapshot {first}") as caught:
            go(resume_after=1, lose_input=accepted)
        assert f"--lose-input {table.name}: " in caught.value.remedy
    assert {path: path.read_bytes() for path in directory.glob("*.sqlite3")} == before
    go(resume_after=1, lose_input=[table.name])
    assert states(directory, "totals") == counted(table.rows[:SIZE] + table.rows[2 * SIZE :])
    table.add()
    go()
    assert states(directory, "totals") == counted(table.rows[:SIZE] + table.rows[2 * SIZE :])


def test_losses_that_cannot_be_accepted(table, tmp_path):
    """An option in another form, a snapshot that is not there, and one that the flow has read."""
    option = "recovery-lost-between"
    with pytest.raises(ConfigurationError, match="not two numbers of snapshots"):
        run_to_end(table.frame(**{option: "oldest"}), tmp_path / "new")
    table.add(2)
    run_to_end(table.frame(), tmp_path / "db")
    first, read = table.snapshots()
    for named, found in {first: "which the flow has read", read: "which the flow has read", 1: "does not lead"}.items():
        with pytest.raises(ConfigurationError, match=found):
            run_to_end(table.frame(**{option: f"{read},{named}"}), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == table.totals()


def test_files_that_are_gone(table, tmp_path):
    """The error names the table and the file; the flow goes on behind the snapshot that has it."""
    table.add()
    run_to_end(table.frame(), tmp_path / "db")
    table.add()
    for row in table.sql("SELECT file_path FROM {}.files"):
        Path(row[0].removeprefix("file:")).unlink()
    with pytest.raises(InputLostError) as caught:
        run_to_end(table.frame(), tmp_path / "db")
    lacks = f"the Iceberg table {table.name} no longer has a file that the flow had still to read: "
    assert caught.value.found.startswith(lacks), caught.value.found
    table.add()
    read, _, newest = table.snapshots()
    run_to_end(table.frame(**{"recovery-lost-between": f"{read},{newest}"}), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == counted(table.rows[:SIZE] + table.rows[2 * SIZE :])
