"""Which Iceberg tables a run refuses before it begins, by the snapshots that they have. Without Spark; with it, see
`tests/spark/test_iceberg_source.py`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError

from recovery.base.ids import BatchId
from recovery.checkpoint.home import LocalHome
from recovery.checkpoint.source_places import SourcePlaces
from recovery.errors import ConfigurationError, InputLostError, InputRewrittenError, UnsupportedPlanError
from recovery.spark.planner.iceberg_tables import IcebergInput, IcebergTable, iceberg_table
from tests.checkpoint.test_snapshots import HEADER, offset


class Snapshot:
    """Number and time are one."""

    def __init__(self, number: int, parent: int | None, added: int = 1, total: int = 1, kind: str = "append") -> None:
        self.snapshotId = self.timestampMillis = lambda: number
        self.parentId, self.operation = lambda: parent, lambda: kind
        self.summary = lambda: {"added-data-files": str(added), "total-data-files": str(total)}


class Snapshots:
    """What a table has; the last one is current."""

    def __init__(self, *found: Snapshot) -> None:
        self.found = {each.snapshotId(): each for each in found}
        self.snapshot, self.refresh = self.found.get, lambda: None
        self.currentSnapshot = lambda: found[-1] if found else None

    def ancestors(self, of: int | None = None) -> list[Snapshot]:
        chain, at = [], self.currentSnapshot() if of is None else self.found.get(of)
        while at is not None:
            chain.append(at)
            at = self.found.get(at.parentId())
        return chain


UTIL = SimpleNamespace(
    oldestAncestor=lambda table: table.ancestors()[-1],
    isAncestorOf=lambda table, *of: of[-1] in [each.snapshotId() for each in table.ancestors(*of[:-1])],
)
ICEBERG = SimpleNamespace(iceberg=SimpleNamespace(util=SimpleNamespace(SnapshotUtil=UTIL)))
SPARK = SimpleNamespace(_jvm=SimpleNamespace(org=SimpleNamespace(apache=ICEBERG)))


@pytest.fixture
def begin(tmp_path):
    """Begin a run on a table, after a snapshot."""

    def begin(table: Snapshots, read: int | None = None, since: str | None = None, lost=None) -> None:
        batch = None if read is None else BatchId(0)
        if read is not None:
            (tmp_path / "offsets").mkdir(exist_ok=True)
            (tmp_path / "offsets" / "0").write_text(f"v1\n{HEADER}\n{offset(read, 1)}")
        places = SourcePlaces((0,), (False,), (None,))
        IcebergInput({0: IcebergTable("lake.db.a", table, since, lost, SPARK)}, places, LocalHome(tmp_path)).begin(
            batch
        )

    return begin


WHOLE = Snapshots(Snapshot(10, None), Snapshot(20, 10, total=2), Snapshot(30, 20, total=3))
EXPIRED = Snapshots(Snapshot(20, 10, total=2), Snapshot(30, 20, total=3))
GAP = Snapshots(Snapshot(10, None), Snapshot(30, 20))
BEGUN = Snapshots(Snapshot(5, None), Snapshot(30, 5))
COMPACTED = Snapshots(Snapshot(20, 10, kind="replace"), Snapshot(30, 20, total=2))


@pytest.mark.parametrize(
    ("table", "since", "lost"),
    [(WHOLE, None, False), (WHOLE, "5", False), (WHOLE, "15", False), (Snapshots(), None, False),
     (EXPIRED, None, True), (COMPACTED, None, True),
     # The source reads from the oldest snapshot on, whatever was added since that time.
     (EXPIRED, "15", True), (EXPIRED, "20", False), (EXPIRED, "40", False), (EXPIRED, "soon", False)],
)  # fmt: skip
def test_a_first_run(begin, table, since, lost):
    """Is refused where rows since the time that it asks for would be left out."""
    if not lost:
        begin(table, since=since)
        return
    with pytest.raises(InputLostError, match="has rows that were added before its oldest snapshot, 20 of") as caught:
        begin(table, since=since)
    assert '"stream-from-timestamp", "20"' in caught.value.remedy


@pytest.mark.parametrize(
    ("table", "kind", "found"),
    [(Snapshots(), InputRewrittenError, "has no snapshots any more"),
     (EXPIRED, InputLostError, "no longer has snapshot 10, from which the flow had to read on; its oldest one is 20"),
     (BEGUN, InputRewrittenError,
      "no longer has snapshot 10, which the flow has read last; it begins with 5 of"),
     (GAP, InputLostError,
      "no longer has what comes between snapshot 10, which the flow has read last, and 30 of"),
     (Snapshots(Snapshot(5, None), Snapshot(10, 5), Snapshot(30, 5)), InputRewrittenError, "was rolled back"),
     (Snapshots(Snapshot(5, 1), Snapshot(10, 5), Snapshot(30, 5)), InputRewrittenError, "was rolled back")],
)  # fmt: skip
def test_a_later_run(begin, table, kind, found):
    """Goes on where the snapshot that was read leads on; else the error says what is gone."""
    begin(WHOLE, read=10)
    with pytest.raises(kind, match=found):
        begin(table, read=10)


@pytest.mark.parametrize(
    ("table", "lost"), [(EXPIRED, (10, 20)), (EXPIRED, (10, 30)), (GAP, (10, 30)), (BEGUN, (10, 30))]
)
def test_a_loss_that_is_accepted(begin, tmp_path, caplog, table, lost):
    """The position is put before the snapshot that is named, and the run says so."""
    begin(table, read=10, lost=lost)
    assert (tmp_path / "offsets" / "0").read_text().splitlines()[-1] == offset(lost[1], 0)
    [record] = caplog.records
    said = f"Iceberg table lake.db.a: the flow goes on with snapshot {lost[1]}. What was added since snapshot 10, and"
    assert record.getMessage().startswith(said)


@pytest.mark.parametrize(
    ("table", "lost", "kind", "found"),
    [(EXPIRED, (11, 20), InputLostError, "no longer has snapshot 10"),
     (EXPIRED, (10, 25), ConfigurationError, "names snapshot 25, which does not lead to the newest one"),
     (Snapshots(), (10, 20), InputRewrittenError, "has no snapshots any more"),
     (Snapshots(Snapshot(5, None), Snapshot(10, 5), Snapshot(30, 5)), (10, 5), ConfigurationError,
      "names snapshot 5 of the Iceberg table lake.db.a, which the flow has read"),
     (WHOLE, (10, 10), ConfigurationError, "which the flow has read")],
)  # fmt: skip
def test_a_loss_that_is_not_accepted(begin, caplog, table, lost, kind, found):
    """Of another position, or up to a snapshot that is not there, or that was read before."""
    with pytest.raises(kind, match=found):
        begin(table, read=10, lost=lost)
    assert caplog.records == []


def test_a_position_of_a_newer_connector(begin, tmp_path):
    """Is refused: what it says could not be checked."""
    begin(WHOLE, read=10)
    log = (tmp_path / "offsets" / "0").read_text()
    (tmp_path / "offsets" / "0").write_text(log.replace('"version":1', '"version":2,"branch":"main"'))
    tables = {0: IcebergTable("lake.db.a", WHOLE, None, None, SPARK)}
    with pytest.raises(UnsupportedPlanError, match=r'its position .*"branch":"main"'):
        IcebergInput(tables, SourcePlaces((0,), (False,), (None,)), LocalHome(tmp_path)).check(BatchId(0))


def node_of(*classes: str, options=(), handle=None, branch=None):
    """A node of a plan that reads a table as a stream. classes: of the table, and those that it is derived from."""

    def table():
        if handle is None:
            raise Py4JError("Method table([]) does not exist")
        return handle

    above = None
    for name in reversed(classes):
        above = SimpleNamespace(getName=lambda name=name: name, getSuperclass=lambda above=above: above)
    found = SimpleNamespace(getClass=lambda: above, table=table, name=lambda: "lake.db.a", branch=lambda: branch)
    extra = SimpleNamespace(get=dict(options).get)
    return SimpleNamespace(nodeName=lambda: "StreamingRelationV2", table=lambda: found, extraOptions=lambda: extra)


HADOOP = "org.apache.iceberg.hadoop.Hadoop"


def handle_of(operations: str | None, reads: str = f"{HADOOP}FileIO") -> SimpleNamespace:
    """A table of this kind, as its class says; None: of a kind that has no operations. reads: how files are read."""

    def found():
        if operations is None:
            raise Py4JError("Method operations([]) does not exist")
        of_class = {name: SimpleNamespace(getName=lambda name=name: name) for name in (operations, reads)}
        system = SimpleNamespace(makeQualified=lambda path: f"viewfs://lake{path}")
        io = SimpleNamespace(
            getClass=lambda: of_class[reads],
            newInputFile=lambda path: SimpleNamespace(getFileSystem=lambda: system, getPath=lambda: path),
        )
        return SimpleNamespace(
            getClass=lambda: of_class[operations], io=lambda: io,
            metadataFileLocation=lambda name: f"/lake/db/a/metadata/{name}",
        )  # fmt: skip

    return SimpleNamespace(name=lambda: "lake.db.a", currentSnapshot=lambda: None, operations=found)


HANDLE = handle_of(None)
OBJECT, OF_SPARK = "java.lang.Object", "org.apache.iceberg.spark.source.SparkTable"


@pytest.mark.parametrize("name", [OF_SPARK, "org.apache.iceberg.spark.NewTable"])
def test_tables_that_are_icebergs(name):
    """Whatever the connector calls its class, and where a catalog derives one from it."""
    options = {"recovery-lost-between": " 7, 8 ", "stream-from-timestamp": "5"}
    for classes in ([name, OBJECT], ["com.catalog.Derived", name, OBJECT]):
        table = iceberg_table(SPARK, node_of(*classes, options=options, handle=HANDLE))
        assert (table.name, table.since, table.lost_between) == ("lake.db.a", "5", (7, 8))
    assert iceberg_table(SPARK, node_of("org.apache.spark.sql.kafka010.KafkaTable", OBJECT)) is None


@pytest.mark.parametrize(
    ("handle", "branch", "directory"),
    [(handle_of(f"{HADOOP}TableOperations"), None, "viewfs://lake/lake/db/a"),
     (handle_of(f"{HADOOP}TableOperations"), "main", None),
     (handle_of(f"{HADOOP}TableOperations", "org.apache.iceberg.aws.s3.S3FileIO"), None, None),
     (handle_of("org.apache.iceberg.jdbc.JdbcTableOperations"), None, None), (HANDLE, None, None)],
)  # fmt: skip
def test_tables_that_are_directories(handle, branch, directory):
    """Only where Iceberg itself finds the newest metadata by the names of files, and reads the main branch. The file
    system is part of the name: a catalog may have another one than the session."""
    assert iceberg_table(SPARK, node_of(OF_SPARK, handle=handle, branch=branch)).directory == directory


def test_a_table_of_a_newer_connector():
    """Is refused if its snapshots cannot be asked for, instead of being read unchecked."""
    with pytest.raises(UnsupportedPlanError, match=r"lake\.db\.a cannot be checked: its class .*NewTable is not known"):
        iceberg_table(SPARK, node_of("org.apache.iceberg.spark.NewTable", OBJECT))


@pytest.mark.parametrize("option", ["", "7", "7,8,9", "oldest"])
def test_an_option_in_another_form(option):
    """Is refused before the run begins."""
    node = node_of(OF_SPARK, options={"recovery-lost-between": option}, handle=HANDLE)
    with pytest.raises(ConfigurationError, match="not two numbers of snapshots"):
        iceberg_table(SPARK, node)
