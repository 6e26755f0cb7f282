"""DeltaSink through kills, rewinds and other writers, on real tables. pyarrow writes the files in place of Spark."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest

from recovery import DeltaSink
from recovery.errors import ConfigurationError, FlowFailedError, LeaseLostError, OutputMismatchError
from recovery.sinks.protocol import EpochOutput
from tests.shares import some
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
    with pytest.raises(OutputMismatchError, match="a change by somebody else, after version"):
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


def test_a_schema_that_changes(tmp_path):
    """Fewer columns are NULL; a new one, and another type, are refused before the epoch counts."""
    store, run = two_epochs(DeltaSink(tmp_path / "table"))
    run.batch += 1
    run.sink.write(Batch([("only",)], {"key": "string"}), run.batch)
    run.rows = [("only", None)]
    run.close()
    assert shown(tmp_path / "table") == truth(store, "append")
    for types, found in (({"key": "string", "m": "long"}, "no column 'm'"), ({"key": "string", "n": "integer"}, "'n'")):
        with pytest.raises(OutputMismatchError, match=found):
            run.sink.write(Batch([("a", 1)], types), run.batch + 1)


@pytest.mark.parametrize(
    ("rows", "found"),
    [([("a", 1), ("a", 2)], r"two rows of one micro-batch have the key \{'key': 'a'\}"), ([(None, 1)], "no value in")],
)
def test_merging_rows_without_a_single_key(tmp_path, rows, found):
    run = Run(Store(), DeltaSink(tmp_path / "table", "merge", key=["key"]))
    run.write(rows)
    with pytest.raises(FlowFailedError, match=found):
        run.close()


def test_a_table_that_asks_more_of_a_writer(tmp_path):
    write_deltalake(str(tmp_path / "table"), pa.table({"key": ["x"], "n": [1]}))
    DeltaTable(str(tmp_path / "table")).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(OutputMismatchError, match=r"delta\.constraints\.positive"):
        Run(Store(), DeltaSink(tmp_path / "table"))


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


@pytest.mark.parametrize("kind", ["append", "merge"])
def test_two_directories_of_one_store(tmp_path, kind):
    """The older copy is refused; on the user's word it takes the table back."""
    path, options = tmp_path / "table", KINDS[kind]
    check_two_directories(lambda: DeltaSink(path, **options), lambda: shown(path), kind)
