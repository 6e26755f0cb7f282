"""IcebergSink through kills, rewinds and other writers, on real tables of a SQLite catalog. pyarrow writes the files in
place of Spark."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import pytest

from recovery import IcebergSink
from recovery.errors import ConfigurationError, LeaseLostError, OutputMismatchError, SinkFailedError, SinkRefusedError
from recovery.sinks.protocol import EpochOutput
from recovery.sinks.tables import log
from recovery.spark.clusters import Planned, check_plan
from recovery.storage.origin import Origin
from tests.sinks.support import Store
from tests.sinks.tables import (
    Batch,
    Run,
    check_missing_files,
    check_random_history,
    check_two_directories,
    truth,
    two_epochs,
)
from tests.sinks.worlds import NAME, THEIRS, Warehouse

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy", reason="the catalog of these tests: pip install 'pyiceberg[sql-sqlite]'")
import pyiceberg.table
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, StructType

from tests.shares import first


@pytest.fixture
def warehouse(tmp_path) -> Warehouse:
    return Warehouse(tmp_path)


def test_random_histories(warehouse, monkeypatch):
    """Kills at any crash point, and going back; no snapshot is deleted."""
    check_random_history(monkeypatch, warehouse.sink, warehouse.rows)
    numbers = [each.sequence_number for each in warehouse.table.snapshots()]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_a_commit_copies_the_metadata_once_for_each_of_its_changes(warehouse, monkeypatch):
    """Each copy has all snapshots of the table: a commit asks for the metadata some twenty times."""
    _, run = two_epochs(warehouse.sink())
    run.write([("c", 1)])
    copied = []
    real = pyiceberg.table.update_table_metadata
    monkeypatch.setattr("pyiceberg.table.update_table_metadata", lambda *given: copied.append(given) or real(*given))
    run.close()
    assert 0 < len(copied) <= 4
    assert len({len(updates) for _, updates in copied}) == len(copied)


def test_a_file_that_only_a_task_sees(warehouse, monkeypatch):
    """The error says so; no row is missing silently."""
    check_missing_files(monkeypatch, warehouse.sink, warehouse.rows)


def test_where_a_table_is(warehouse, tmp_path):
    """A table may be elsewhere than its catalog keeps tables. On a cluster one on a disk of the driver is refused."""
    assert warehouse.sink().place() == ""
    check_plan("spark://m:7077", Planned(warehouse.sink()))
    warehouse.catalog.create_namespace("db")
    schema = Schema(NestedField(1, "key", StringType()), NestedField(2, "n", LongType()))
    warehouse.catalog.create_table(NAME, schema, location=f"{tmp_path}/elsewhere")
    assert warehouse.sink().place() == f"{tmp_path}/elsewhere"
    with pytest.raises(ConfigurationError, match=r"elsewhere, a directory of the driver's host, on master spark://m"):
        check_plan("spark://m:7077", Planned(warehouse.sink()))


def test_rows_of_others_stay(warehouse):
    """Somebody else appends; going back removes the flow's own rows only."""
    store, _ = two_epochs(warehouse.sink())
    warehouse.table.append(THEIRS)
    Run(store, warehouse.sink(), resume_epoch=2)
    assert warehouse.rows() == sorted([*truth(store), ("theirs", 9)])


def test_two_directories_of_one_store(warehouse):
    """The older copy is refused; on the user's word it takes the table back."""
    check_two_directories(warehouse.sink, warehouse.rows)


def test_a_fork_is_refused(warehouse):
    """The table belongs to its origin."""
    store, _ = two_epochs(warehouse.sink())
    forked = replace(store.resume(), store_id="7a2b", origins=(Origin("fork", store.store_id, 1, 0, 2, "/data/rec"),))
    with pytest.raises(OutputMismatchError, match="from which this store was forked"):
        warehouse.sink().check(forked)


@pytest.mark.parametrize("others", [False, True])
def test_going_back_over_compacted_files(warehouse, others):
    """The table is rolled back; not if somebody else has changed rows since."""
    store, _ = two_epochs(warehouse.sink())
    warehouse.compact()
    if not others:
        Run(store, warehouse.sink(), resume_epoch=2)
        assert warehouse.rows() == truth(store)
        return
    warehouse.table.append(THEIRS)
    before = warehouse.table.metadata
    with pytest.raises(OutputMismatchError, match=r"somebody else changed the table in version \d+, after version"):
        Run(store, warehouse.sink(), resume_epoch=2)
    assert warehouse.table.metadata == before


def test_a_run_whose_successor_began(warehouse):
    """It cannot commit an epoch any more, also when it looked at the table before the successor did."""
    store, late = two_epochs(warehouse.sink())
    late.write([("late", 1)])
    output = EpochOutput(3, late.batch, late.resume.execution, store.store_id, store.flow_id, 0)
    late.sink.prepare(output)
    opened, known = late.sink._log.open, iter([warehouse.table])
    late.sink._log.open = lambda: next(known, None) or opened()
    Run(store, warehouse.sink(), resume_epoch=2)
    Run(store, warehouse.sink())
    with pytest.raises(LeaseLostError, match="execution 3 writes to the table now"):
        late.sink.publish(output)
    assert warehouse.rows() == truth(store)


def test_others_commit_at_the_same_time(warehouse, monkeypatch):
    """Each try follows the newest snapshot; a busy table ends in an error, and the next run commits the epoch."""
    store, run = two_epochs(warehouse.sink())
    run.write([("c", 1)])
    opened, looks, limit = run.sink._log.open, itertools.count(), 0

    def open_late():
        table = opened()
        if next(looks) < limit:
            warehouse.table.append(THEIRS)
        return table

    monkeypatch.setattr(run.sink._log, "open", open_late)
    # One look is that of preparing.
    looks, limit = itertools.count(), 3
    run.close()
    assert warehouse.rows() == sorted([*truth(store), *[("theirs", 9)] * 3])
    looks, limit = itertools.count(), 0
    run.write([("d", 1)])
    # After each refusal the sink looks who has committed.
    looks, limit = itertools.count(), 1 + 2 * log._ATTEMPTS
    with pytest.raises(SinkFailedError, match=r"others committed 5 times .*, after versions \d+, \d+, \d+, \d+, \d+"):
        run.close()
    Run(store, warehouse.sink())
    assert warehouse.rows() == sorted([*truth(store), *[("theirs", 9)] * (4 + 2 * log._ATTEMPTS)])


def test_tables_that_do_not_fit_the_snapshot(warehouse):
    """None, another one, and partitions from before a run that went back."""
    store, _ = two_epochs(warehouse.sink())
    warehouse.catalog.drop_table(NAME)
    with pytest.raises(OutputMismatchError, match="there is no table"):
        Run(store, warehouse.sink())
    warehouse.catalog.create_table(NAME, THEIRS.schema)
    with pytest.raises(OutputMismatchError, match="it is another table"):
        Run(store, warehouse.sink())
    run = Run(store, warehouse.sink(fresh=True))
    for number in (1, 2):
        run.write([("new", number)])
        run.close()
    assert warehouse.rows() == [("new", 1), ("new", 2)]
    older = list(store.closed)
    Run(store, warehouse.sink(), resume_epoch=4)
    store.closed = older
    with pytest.raises(OutputMismatchError, match="rows of epoch 4 were taken back"):
        Run(store, warehouse.sink())


def test_a_table_that_somebody_rolled_back(warehouse):
    """Rows of closed epochs are missing, which the flow does not go on without."""
    store, run = two_epochs(warehouse.sink())
    table = warehouse.table
    table.manage_snapshots().rollback_to_snapshot(table.current_snapshot().parent_snapshot_id).commit()
    with pytest.raises(OutputMismatchError, match="the rows of closed epoch 2 are no longer in the table: a rollback"):
        Run(store, warehouse.sink())
    run.write([("c", 1)])
    with pytest.raises(OutputMismatchError, match="the rows of closed epoch 2 are no longer in the table"):
        run.close()
    table = warehouse.table
    newest = max(table.snapshots(), key=lambda each: each.sequence_number)
    table.manage_snapshots().set_current_snapshot(newest.snapshot_id).commit()
    Run(store, warehouse.sink())
    assert warehouse.rows() == truth(store)


def test_a_rollback_whose_snapshots_expired(warehouse):
    """What was rolled back cannot be undone any more, and is missed nevertheless; the user accepts the loss once."""
    store, _ = two_epochs(warehouse.sink(), Store(past=[]), count=3)
    warehouse.roll_back(1)
    table = warehouse.table
    with table.transaction() as transaction:
        gone = [each.snapshot_id for each in table.snapshots() if each.snapshot_id not in leading(table)]
        transaction._apply((RemoveSnapshotsUpdate(snapshot_ids=gone),))
    warehouse.add_theirs()
    with pytest.raises(OutputMismatchError, match=r"a rollback to before snapshot .*, which has expired since"):
        Run(store, warehouse.sink())
    store.accepts = True
    Run(store, warehouse.sink())
    store.accepts, store.closed[2].records = False, []
    Run(store, warehouse.sink())
    assert warehouse.rows() == sorted([*truth(store), ("theirs", 9)])


def leading(table) -> set[int]:
    """The snapshots that lead to the current one."""
    return {each.snapshot_id for each in ancestors_of(table.current_snapshot(), table.metadata)}


@pytest.mark.parametrize("keep", [1, 2])
def test_snapshots_that_expired(warehouse, keep):
    """A run goes on without them. It goes back, and finds the rows by their paths if the snapshots are gone."""
    store, run = two_epochs(warehouse.sink())
    run.write([("c", 1)])
    run.close()
    warehouse.expire(keep)
    Run(store, warehouse.sink())
    assert warehouse.rows() == truth(store)
    Run(store, warehouse.sink(), resume_epoch=keep + 1)
    assert warehouse.rows() == truth(store)


def test_a_schema_that_changes(warehouse):
    """Fewer columns are NULL; a new one, and another type, are refused before the epoch counts, until the table has
    it."""
    store, run = two_epochs(warehouse.sink())
    run.batch += 1
    run.sink.write(Batch([("only",)], {"key": "string"}), run.batch)
    run.rows = [("only", None)]
    run.close()
    assert warehouse.rows() == truth(store)
    for types, found in (({"key": "string", "m": "long"}, "no column 'm'"), ({"key": "string", "n": "integer"}, "'n'")):
        with pytest.raises(SinkRefusedError, match=found):
            run.sink.write(Batch([("a", 1)], types), run.batch + 1)
    with warehouse.table.update_schema() as update:
        update.add_column("m", LongType())
    run.batch += 1
    run.sink.write(Batch([("a", 7)], {"key": "string", "m": "long"}), run.batch)
    run.rows = [("a", None)]
    run.close()
    assert warehouse.rows() == truth(store)
    assert [row["m"] for row in warehouse.table.scan("m > 0").to_arrow().to_pylist()] == [7]


ASKS = {
    "bucket": r"the partition field key_bucket_4 \(bucket\[4\] of key\)",
    "float": r"the partition field f \(identity of f\)",
    "nested": r"the partition field s\.x \(identity of s\.x\)",
    "required": r"not be NULL \(key\)",
    "mapping": "name mapping without n",
    "version": "format version 1",
}


@pytest.mark.parametrize("case", ASKS)
def test_a_table_that_asks_more_of_a_writer(warehouse, case):
    """It is refused by name, before rows are written; all but a name mapping at the start."""
    catalog = warehouse.catalog
    catalog.create_namespace("db")
    schema = Schema(
        NestedField(1, "key", StringType(), required=case == "required"),
        NestedField(2, "n", LongType(), required=False),
        NestedField(3, "f", DoubleType(), required=False),
        NestedField(4, "s", StructType(NestedField(5, "x", LongType(), required=False)), required=False),
    )
    table = catalog.create_table(NAME, schema, properties={"format-version": "1" if case == "version" else "2"})
    with table.update_spec() as update:
        if case == "bucket":
            update.add_field("key", BucketTransform(4), "key_bucket_4")
        elif case in ("float", "nested"):
            update.add_identity("f" if case == "float" else "s.x")
    if case == "mapping":
        with table.transaction() as transaction:
            mapping = '[{"field-id": 1, "names": ["key"]}, {"field-id": 2, "names": ["old"]}]'
            transaction.set_properties({"schema.name-mapping.default": mapping})
        run = Run(Store(), warehouse.sink())
        with pytest.raises(SinkRefusedError, match=ASKS[case]):
            run.write([("a", 1)])
        return
    with pytest.raises(SinkRefusedError, match=ASKS[case]):
        Run(Store(), warehouse.sink())


def test_arguments_and_columns_that_do_not_fit(warehouse):
    """Errors that name them."""
    with pytest.raises(ConfigurationError, match="table='words'"):
        IcebergSink("words")
    run = Run(Store(), warehouse.sink())
    for kind in ("interval day to second", "void", {"type": "array", "elementType": "variant", "containsNull": True}):
        with pytest.raises(ConfigurationError, match="column 'x' has the type"):
            run.sink.write(Batch([(None,)], {"x": kind}), 0)
    numbered = Batch([(1,)], {"x": "long"})
    numbered.text = numbered.text.replace('"metadata": {}', '"metadata": {"parquet.field.id": 7}')
    with pytest.raises(ConfigurationError, match="Parquet field id"):
        run.sink.write(numbered, 0)
    with pytest.raises(NoSuchTableError):
        assert warehouse.table


def test_a_catalog_that_does_not_answer(tmp_path):
    """The error names the table, and what the catalog's client says."""
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/none/catalog.db", "warehouse": f"file://{tmp_path}"}
    with pytest.raises(SinkFailedError, match=r"the Iceberg table db\.words: OperationalError"):
        Run(Store(), IcebergSink(NAME, properties=properties))


@first("answer", [409, 500, 504])
def test_a_commit_whose_answer_is_lost(warehouse, answer):
    """A REST catalog that has committed may answer that it has not, as to a repeated request. Nothing that a commit may
    name is removed, the table stays readable, and each row is in it once."""
    from tests.sinks.rest_catalog import serving

    with serving(warehouse.catalog) as server:
        make = partial(IcebergSink, NAME, properties={"type": "rest", "uri": server.uri})
        store, run = two_epochs(make())
        run.write([("c", 1)])
        server.answers.append(answer)
        if answer == 409:
            run.close()
        else:
            with pytest.raises(SinkFailedError, match="CommitStateUnknownException"):
                run.close()
        assert warehouse.rows() == truth(store)
        server.answers.append(answer)
        if answer == 409:
            Run(store, make(), resume_epoch=3)
        else:
            with pytest.raises(SinkFailedError, match="CommitStateUnknownException"):
                Run(store, make(), resume_epoch=3)
            Run(store, make())
        assert warehouse.rows() == truth(store)


def test_a_catalog_that_refuses_every_commit(warehouse):
    """The error blames nobody else, and what was closed is committed by the next run."""
    from tests.sinks.rest_catalog import serving

    with serving(warehouse.catalog) as server:
        make = partial(IcebergSink, NAME, properties={"type": "rest", "uri": server.uri})
        store, run = two_epochs(make())
        run.write([("c", 1)])
        server.refuses = True
        with pytest.raises(SinkRefusedError, match=r"does not take a commit, and nobody else committed: .*requirement"):
            run.close()
        server.refuses = False
        Run(store, make())
        assert warehouse.rows() == truth(store)
