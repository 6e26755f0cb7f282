"""DeltaSink through kills, rewinds and other writers, on real tables. pyarrow writes the files in place of Spark."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recovery import DeltaSink
from recovery.errors import (
    ConfigurationError,
    FlowFailedError,
    LeaseLostError,
    OutputMismatchError,
    SinkRefusedError,
)
from recovery.sinks.delta.operations import replaces
from recovery.sinks.protocol import EpochOutput
from tests.shares import first, some
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

deltalake = pytest.importorskip("deltalake")
from deltalake import DeltaTable, write_deltalake  # noqa: E402


def shown(path) -> list:
    """All rows of the table."""
    if not DeltaTable.is_deltatable(str(path)):
        return []
    return sorted(((row["key"], row["n"]) for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist()), key=str)


KINDS = {
    "append": {},
    "partitioned": {"partition_by": ["key"]},
    "merge": {"mode": "merge", "key": "key"},
}


@pytest.mark.long
@pytest.mark.parametrize("kind", some(KINDS, "merge"))
def test_random_histories(tmp_path, monkeypatch, kind):
    """Kills at any crash point, and going back; no history is deleted."""
    table, mode = tmp_path / "table", KINDS[kind].get("mode", "append")
    check_random_history(monkeypatch, lambda: DeltaSink(table, **KINDS[kind]), lambda: shown(table), mode)
    assert DeltaTable(str(table)).history()[-1]["operation"] == "CREATE TABLE"


@pytest.mark.parametrize("kind", ["append", "partitioned"])
def test_a_file_that_only_a_task_sees(tmp_path, monkeypatch, kind):
    """The error says so; no row is missing silently."""
    check_missing_files(
        monkeypatch, lambda: DeltaSink(tmp_path / "table", **KINDS[kind]), lambda: shown(tmp_path / "table")
    )


def test_rows_of_others_stay(tmp_path):
    """Somebody else appends; going back removes the flow's own rows only."""
    store, _ = two_epochs(DeltaSink(tmp_path / "table"))
    write_deltalake(str(tmp_path / "table"), pa.table({"key": ["theirs"], "n": [9]}), mode="append")
    Run(store, DeltaSink(tmp_path / "table"), resume_epoch=2)
    assert shown(tmp_path / "table") == sorted([*truth(store, "append"), ("theirs", 9)])


@pytest.mark.parametrize("compacted", [True, False])
def test_going_back_over_compacted_files(tmp_path, compacted):
    """The version before is restored; not if somebody else has changed rows since."""
    store, _ = two_epochs(DeltaSink(tmp_path / "table"))
    table = DeltaTable(str(tmp_path / "table"))
    table.optimize.compact()
    if compacted:
        Run(store, DeltaSink(tmp_path / "table"), resume_epoch=2)
        assert shown(tmp_path / "table") == truth(store, "append")
        return
    write_deltalake(str(tmp_path / "table"), pa.table({"key": ["theirs"], "n": [9]}), mode="append")
    version = DeltaTable(str(tmp_path / "table")).version()
    with pytest.raises(OutputMismatchError, match=r"somebody else changed the table in version \d+, after version"):
        Run(store, DeltaSink(tmp_path / "table"), resume_epoch=2)
    assert DeltaTable(str(tmp_path / "table")).version() == version


def test_a_run_whose_successor_began(tmp_path):
    """It cannot commit an epoch any more, not even one that it closed."""
    store, late = two_epochs(DeltaSink(tmp_path / "table"))
    late.write([("late", 1)])
    output = EpochOutput(3, late.batch, late.resume.execution, store.store_id, store.flow_id, 0)
    late.sink.prepare(output)
    Run(store, DeltaSink(tmp_path / "table"))
    with pytest.raises(LeaseLostError, match="execution 2 writes to the table now"):
        late.sink.publish(output)
    assert shown(tmp_path / "table") == truth(store, "append")


def test_tables_that_do_not_fit_the_snapshot(tmp_path):
    """Another table, an older one, none, and partitions from before a run that went back."""
    path = tmp_path / "table"
    store, _ = two_epochs(DeltaSink(path))
    (tmp_path / "kept").mkdir()
    path.rename(tmp_path / "kept/table")
    with pytest.raises(OutputMismatchError, match="there is no table"):
        Run(store, DeltaSink(path))
    write_deltalake(str(path), pa.table({"key": ["x"], "n": [1]}))
    with pytest.raises(OutputMismatchError, match="it is another table"):
        Run(store, DeltaSink(path))
    run = Run(store, DeltaSink(path, fresh=True))
    run.write([("new", 1)])
    run.close()
    assert shown(path) == [("new", 1), ("x", 1)]

    run.write([("newer", 1)])
    run.close()
    older = list(store.closed)
    Run(store, DeltaSink(path), resume_epoch=4)
    store.closed = older
    with pytest.raises(OutputMismatchError, match="rows of epoch 4 were taken back"):
        Run(store, DeltaSink(path))


def test_a_table_after_another_kind_of_sink(tmp_path):
    """The flow's output was in files so far: a table begins when it is asked for."""
    path = tmp_path / "table"
    store, _ = two_epochs(DeltaSink(path))
    store.closed[-1] = replace(store.closed[-1], note='{"sink":"x","epoch":2,"digest":"d","path":"/out"}')
    with pytest.raises(OutputMismatchError, match="another kind of sink") as caught:
        Run(store, DeltaSink(tmp_path / "new"))
    assert "fresh=True" in caught.value.remedy
    run = Run(store, DeltaSink(tmp_path / "new", fresh=True))
    run.write([("c", 3)])
    run.close()
    Run(store, DeltaSink(tmp_path / "new"))
    assert shown(tmp_path / "new") == [("c", 3)]


def test_a_schema_that_changes(tmp_path):
    """Fewer columns are NULL; a new one, and another type, are refused before the epoch counts."""
    store, run = two_epochs(DeltaSink(tmp_path / "table"))
    run.batch += 1
    run.sink.write(Batch([("only",)], {"key": "string"}), run.batch)
    run.rows = [("only", None)]
    run.close()
    assert shown(tmp_path / "table") == truth(store, "append")
    for types, found in (({"key": "string", "m": "long"}, "no column 'm'"), ({"key": "string", "n": "integer"}, "'n'")):
        with pytest.raises(SinkRefusedError, match=found):
            run.sink.write(Batch([("a", 1)], types), run.batch + 1)


def test_a_column_that_a_merging_flow_no_longer_writes(tmp_path):
    """Rows that were there keep its value; it is NULL in new ones."""
    run = Run(Store(), DeltaSink(tmp_path / "table", "merge", key=["key"]))
    run.write([("a", 1), ("b", 2)])
    run.close()
    run.batch += 1
    run.sink.write(Batch([("a",), ("c",)], {"key": "string"}), run.batch)
    run.close()
    assert shown(tmp_path / "table") == [("a", 1), ("b", 2), ("c", None)]


@pytest.mark.parametrize(
    ("rows", "found"),
    [([("a", 1), ("a", 2)], r"two rows of one micro-batch have the key \{'key': 'a'\}"), ([(None, 1)], "no value in")],
)
def test_merging_rows_without_a_single_key(tmp_path, rows, found):
    run = Run(Store(), DeltaSink(tmp_path / "table", "merge", key=["key"]))
    run.write(rows)
    with pytest.raises(FlowFailedError, match=found):
        run.close()


def write_actions(path, *actions) -> None:
    """Commit actions by hand, for what deltalake cannot set."""
    table = DeltaTable(str(path))
    told = {"commitInfo": {"timestamp": 1, "operation": "UPGRADE PROTOCOL"}}
    entry = path / "_delta_log" / f"{table.version() + 1:020}.json"
    entry.write_text("\n".join(map(json.dumps, [told, *actions])))


def set_features(path, *features) -> None:
    """Make a table ask for features of a writer."""
    reading = {
        "timestampNtz", "v2Checkpoint", "columnMapping", "deletionVectors", "typeWidening", "variantType",
        "vacuumProtocolCheck",
    }  # fmt: skip
    also = {"readerFeatures": list(features)} if reading.issuperset(features) else {}
    version = 3 if also else 1
    write_actions(
        path,
        {"protocol": {"minReaderVersion": version, "minWriterVersion": 7, "writerFeatures": list(features), **also}},
    )


def rows_of_files(path) -> list:
    """All rows of a table with features that deltalake writes, and does not read."""
    tables = [pq.read_table(each) for each in DeltaTable(str(path)).file_uris()]
    return sorted((row["key"], row["n"]) for each in tables for row in each.to_pylist())


def set_column(path, **metadata) -> None:
    """Give the column n metadata, as old tables have it, whose protocol lists no features."""
    fields = [
        {"name": "key", "type": "string", "nullable": True, "metadata": {}},
        {
            "name": "n",
            "type": "long",
            "nullable": True,
            "metadata": {k.replace("_", "."): v for k, v in metadata.items()},
        },
    ]
    text = json.dumps({"type": "struct", "fields": fields})
    given = {"id": str(DeltaTable(str(path)).metadata().id), "format": {"provider": "parquet", "options": {}}}
    write_actions(path, {"metaData": {**given, "schemaString": text, "partitionColumns": [], "configuration": {}}})


@pytest.mark.parametrize(
    "feature",
    [
        "identityColumns", "deletionVectors", "rowTracking", "domainMetadata", "clustering", "inCommitTimestamp",
        "typeWidening", "icebergCompatV2", "variantType", "allowColumnDefaults", "vacuumProtocolCheck", "collations",
    ],
)  # fmt: skip
def test_a_table_with_a_feature_that_does_not_fit(tmp_path, feature):
    """It is refused by name at the start, and has not changed."""
    path = tmp_path / "table"
    store, _ = two_epochs(DeltaSink(path))
    set_features(path, feature)
    version = DeltaTable(str(path)).version()
    with pytest.raises(SinkRefusedError, match=f"the table has {feature} in version {version}"):
        Run(store, DeltaSink(path))
    assert DeltaTable(str(path)).version() == version


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            lambda path: DeltaTable(str(path)).alter.add_constraint({"positive": "n >= 0"}),
            r"delta\.constraints\.positive",
        ),
        (lambda path: set_column(path, delta_generationExpression="1 + 1"), "the generated column n"),
        (lambda path: set_column(path, delta_identity_start=1), "the identity column n"),
        (lambda path: set_column(path, delta_invariants="{}"), "an invariant on the column n"),
        (
            lambda path: DeltaTable(str(path)).alter.set_table_properties(
                {"delta.setTransactionRetentionDuration": "interval 1 days"}, raise_if_not_exists=False
            ),
            r"delta\.setTransactionRetentionDuration",
        ),
    ],
    ids=["constraint", "generated", "identity", "invariant", "transactions"],
)
def test_a_table_that_asks_more_of_a_writer(tmp_path, change, found):
    """What a table uses is refused, whichever protocol it has."""
    path = tmp_path / "table"
    store, _ = two_epochs(DeltaSink(path))
    change(path)
    with pytest.raises(SinkRefusedError, match=found):
        Run(store, DeltaSink(path))


@pytest.mark.parametrize(
    ("reader", "writer", "found"),
    [(1, 6, r"the table has writer version 6 in version 3"), (9, 9, "Unsupported minimum reader version 9")],
)
def test_a_protocol_that_does_not_fit(tmp_path, reader, writer, found):
    """Old protocols list no features: writer version 6 means identity columns. The package deltalake refuses newer
    readers by itself."""
    path = tmp_path / "table"
    store, _ = two_epochs(DeltaSink(path))
    write_actions(path, {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer}})
    before = sorted(path.rglob("*"))
    with pytest.raises(SinkRefusedError, match=found):
        Run(store, DeltaSink(path))
    assert sorted(path.rglob("*")) == before


def test_a_column_that_must_not_be_null(tmp_path):
    """Spark's files may have NULL in it."""
    schema = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("n", pa.int64())])
    write_deltalake(str(tmp_path / "table"), pa.table({"key": ["x"], "n": [1]}, schema=schema))
    with pytest.raises(SinkRefusedError, match="the NOT NULL column key"):
        Run(Store(), DeltaSink(tmp_path / "table"))


@first(
    "feature",
    [
        "appendOnly", "invariants", "timestampNtz", "changeDataFeed", "v2Checkpoint", "checkConstraints",
        "generatedColumns", "columnMapping",
    ], count=3,
)  # fmt: skip
def test_a_table_with_a_feature_that_fits(tmp_path, feature):
    """The flow goes on, and goes back; also where a table lists a feature that it does not use."""
    path = tmp_path / "table"
    store, _ = two_epochs(DeltaSink(path))
    set_features(path, feature)
    run = Run(store, DeltaSink(path))
    run.write([("c", 1)])
    run.close()
    assert rows_of_files(path) == truth(store)
    Run(store, DeltaSink(path), resume_epoch=2)
    assert rows_of_files(path) == truth(store)


def test_an_append_only_table(tmp_path):
    """It takes rows, and refuses going back before anything has changed; merging is refused at the start."""
    path = tmp_path / "table"
    store, _ = two_epochs(DeltaSink(path))
    alter = lambda value: DeltaTable(str(path)).alter.set_table_properties({"delta.appendOnly": value})  # noqa: E731
    alter("true")
    run = Run(store, DeltaSink(path))
    run.write([("c", 1)])
    run.close()
    version, closed = DeltaTable(str(path)).version(), list(store.closed)
    with pytest.raises(SinkRefusedError, match="the table is append-only"):
        Run(store, DeltaSink(path), resume_epoch=2)
    with pytest.raises(SinkRefusedError, match='mode="merge"'):
        Run(Store(), DeltaSink(path, "merge", key=["key"]))
    assert DeltaTable(str(path)).version() == version
    store.closed = closed
    Run(store, DeltaSink(path))
    assert shown(path) == truth(store)
    alter("false")
    Run(store, DeltaSink(path), resume_epoch=2)
    assert shown(path) == truth(store)


def test_a_commit_that_the_table_does_not_take(tmp_path):
    """The error says what deltalake says, and blames nobody else."""
    path = tmp_path / "table"
    store, run = two_epochs(DeltaSink(path))
    run.write([("c", 1)])
    with pytest.raises(SinkRefusedError, match=r"the table has rowTracking in version 3"):
        run.close(before_publishing=lambda: set_features(path, "rowTracking"))
    (path / "_delta_log" / f"{3:020}.json").unlink()
    Run(store, DeltaSink(path))
    assert shown(path) == truth(store)


def test_commits_that_say_nothing_of_themselves(tmp_path):
    """`deltalake` then numbers older commits wrongly. Going back is exact nevertheless."""
    path = tmp_path / "table"
    store, _ = two_epochs(DeltaSink(path, "merge", key=["key"]))
    entry = path / "_delta_log" / f"{DeltaTable(str(path)).version() + 1:020}.json"
    entry.write_text(json.dumps({"txn": {"appId": "another", "version": 1}}))
    assert len(DeltaTable(str(path)).history()) == DeltaTable(str(path)).version()
    with pytest.raises(OutputMismatchError, match="somebody else changed the table in version 3"):
        Run(store, DeltaSink(path, "merge", key=["key"]), resume_epoch=2)
    entry.unlink()
    Run(store, DeltaSink(path, "merge", key=["key"]), resume_epoch=1)
    assert shown(path) == []


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_a_table_that_was_restored_to_a_time(tmp_path, mode):
    """The log does not name the version then; the files say which it was."""
    path, options = tmp_path / "table", KINDS[mode]
    store, run = two_epochs(DeltaSink(path, **options))
    time.sleep(0.01)
    moment = datetime.now(UTC)
    time.sleep(0.01)
    run.write([("c", 1)])
    run.close()
    DeltaTable(str(path)).restore(moment)
    assert shown(path) == truth(store, mode)[: len(shown(path))]
    with pytest.raises(OutputMismatchError, match="no longer in the table: RESTORE in version 4"):
        Run(store, DeltaSink(path, **options))
    Run(store, DeltaSink(path, **options), resume_epoch=3)
    assert shown(path) == truth(store, mode)


WRITES = [
    ("WRITE", {"mode": "Append"}, False),
    ("WRITE", {"mode": "Overwrite"}, True),
    ("WRITE", {"mode": "Overwrite", "partitionBy": "[]", "predicate": "[]"}, True),
    ("WRITE", {"mode": "Overwrite", "partitionBy": "[]", "predicate": '["(day = 1)"]'}, False),
    ("WRITE", {"mode": "Overwrite", "predicate": "day = 1"}, False),
    ("WRITE", {"mode": "Overwrite", "isDynamicPartitionOverwrite": "true"}, False),
    ("STREAMING UPDATE", {"outputMode": "Complete"}, True),
    ("STREAMING UPDATE", {"outputMode": "Append"}, False),
    ("CREATE OR REPLACE TABLE AS SELECT", {}, True),
    ("REPLACE TABLE", {}, True),
    ("CLONE", {}, True),
    ("DELETE", {"predicate": "true"}, False),
    ("TRUNCATE", {}, False),
    ("UPDATE", None, False),
    ("MERGE", {}, False),
    (None, None, False),
]


@pytest.mark.parametrize(("operation", "given", "replaced"), WRITES)
def test_which_operations_replace_all_rows(operation, given, replaced):
    """Overwrites of the whole table do; what is done to some rows is meant."""
    assert replaces({"operation": operation, "operationParameters": given}) is replaced


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"mode": "overwrite"}, "mode='overwrite'"),
        ({"mode": "merge"}, "key=()"),
        ({"key": ["key"]}, "mode='append' with key"),
    ],
)
def test_arguments_that_do_not_fit(tmp_path, given, found):
    with pytest.raises(ConfigurationError, match=found.replace("(", r"\(").replace(")", r"\)")):
        DeltaSink(tmp_path / "table", **given)


@pytest.mark.parametrize("kind", ["interval day to second", "void", {"type": "array", "elementType": "variant"}])
def test_types_that_delta_does_not_have(tmp_path, kind):
    run = Run(Store(), DeltaSink(tmp_path / "table"))
    with pytest.raises(ConfigurationError, match="column 'x' has the type"):
        run.sink.write(Batch([(None,)], {"x": kind}), 0)


def test_a_table_that_lacks_an_earlier_epoch(tmp_path):
    """An older copy of the table is refused, although the newest epoch could still be committed to it."""
    path = tmp_path / "table"
    store, run = two_epochs(DeltaSink(path))
    shutil.copytree(path, tmp_path / "copy")
    for number in (5, 6):
        run.write([("a", number)])
        run.close()
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    with pytest.raises(OutputMismatchError, match="it lacks the output of an earlier epoch"):
        Run(store, DeltaSink(path))


@first("kind", ["append", "merge"])
def test_two_directories_of_one_store(tmp_path, kind):
    """The older copy is refused; on the user's word it takes the table back."""
    path, options = tmp_path / "table", KINDS[kind]
    check_two_directories(lambda: DeltaSink(path, **options), lambda: shown(path), kind)
