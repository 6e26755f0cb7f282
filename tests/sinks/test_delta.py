"""DeltaSink through kills, rewinds and other writers, on real tables. pyarrow writes the files in place of Spark."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recovery import DeltaSink
from recovery.errors import ConfigurationError, FlowFailedError, LeaseLostError, OutputMismatchError
from recovery.sinks.delta import sink as delta
from recovery.sinks.protocol import EpochOutput
from tests.sinks.support import Closed, Store

deltalake = pytest.importorskip("deltalake")
from deltalake import DeltaTable, write_deltalake  # noqa: E402

TYPES = {"key": "string", "n": "long"}
ODD = ["a", "b c", "d:e", "f%2Fg", "é/ü", "k=v", None]
_numbers = itertools.count(1)


class Batch:
    """The part of a DataFrame that the sink uses: rows of key and n, written as Spark does."""

    def __init__(self, rows, types=TYPES) -> None:
        self.rows, self.types, self.columns = rows, types, ()
        fields = [{"name": name, "type": kind, "nullable": False, "metadata": {}} for name, kind in types.items()]
        self.schema = self
        self.text = json.dumps({"type": "struct", "fields": fields})

    def json(self):
        return self.text

    @property
    def write(self):
        return self

    def options(self, **_):
        return self

    def mode(self, _):
        return self

    def partitionBy(self, *columns):  # noqa: N802 - Spark's name
        self.columns = columns
        return self

    def parquet(self, address):
        directory = Path(address.removeprefix("file:"))
        table = pa.table({name: [row[at] for row in self.rows] for at, name in enumerate(self.types)})
        if not self.columns:
            for number, part in enumerate([table.slice(0, 1), table.slice(1), table.slice(0, 0)]):
                directory.mkdir(parents=True, exist_ok=True)
                pq.write_table(part, directory / f"part-{number:05}.parquet")
            return
        for key in dict.fromkeys(row[0] for row in self.rows):
            escaped = "".join(f"%{ord(c):02X}" if c in "\"#%'*/:=?\\{[]^" else c for c in str(key))
            below = directory / f"key={'__HIVE_DEFAULT_PARTITION__' if key is None else escaped}"
            below.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"n": [n for k, n in self.rows if k == key]}), below / "part-0.parquet")


class Killed(BaseException):
    """The process has died."""


class Run:
    """One execution. `kill_at`: the crash point, and which visit of it."""

    def __init__(self, store: Store, sink: DeltaSink, resume_epoch: int | None = None) -> None:
        self.store, self.sink = store, sink
        self.batch = store.closed[-1].batch if store.closed else -1
        self.rows: list = []
        self.resume = store.begin(resume_epoch)
        if resume_epoch is not None:
            self.batch = store.closed[-1].batch if store.closed else -1
        sink.check(self.resume)
        sink.rollback(self.resume)

    def write(self, rows) -> None:
        self.batch += 1
        self.sink.write(Batch(rows), self.batch)
        self.rows += rows

    def close(self) -> None:
        epoch = len(self.store.closed) + 1
        output = EpochOutput(
            epoch, self.batch, self.resume.execution, self.store.store_id, self.store.flow_id, self.store.floor
        )
        note = self.sink.prepare(output)
        self.store.closed.append(Closed(self.resume.execution, self.batch, note, self.rows))
        self.rows = []
        self.sink.publish(output)


def shown(path) -> list:
    """All rows of the table."""
    if not DeltaTable.is_deltatable(str(path)):
        return []
    return sorted(((row["key"], row["n"]) for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist()), key=str)


def truth(store: Store, mode: str) -> list:
    rows = [row for each in store.closed for row in each.records]
    return sorted(rows if mode == "append" else dict(rows).items(), key=str)


KINDS = {
    "append": {},
    "partitioned": {"partition_by": ["key"]},
    "merge": {"mode": "merge", "key": "key"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_random_histories(tmp_path, monkeypatch, kind):
    """Runs that are killed at any crash point, go on, and go back: the table has the rows of the closed epochs."""
    generator = random.Random(int(os.environ.get("RECOVERY_TEST_SEED", "1")))
    store, table, mode = Store(), tmp_path / "table", KINDS[kind].get("mode", "append")
    kill_in = 0

    def reach(point):
        nonlocal kill_in
        kill_in -= 1
        if kill_in == 0:
            raise Killed

    monkeypatch.setattr(delta.faults, "reach", reach)
    kills = rewinds = 0
    for _ in range(25):
        kill_in = generator.randrange(1, 16)
        back = generator.randrange(1, len(store.closed) + 1) if store.closed and generator.random() < 0.4 else None
        rewinds += back is not None
        try:
            run = Run(store, DeltaSink(table, **KINDS[kind]), back)
            assert shown(table) == truth(store, mode)
            for _ in range(generator.randrange(1, 4)):
                for _ in range(generator.randrange(3)):
                    keys = generator.sample(ODD[: -1 if mode == "merge" else None], 3)
                    run.write([(key, next(_numbers)) for key in keys])
                run.close()
                assert shown(table) == truth(store, mode)
        except Killed:
            kills += 1
        kill_in = 0
    Run(store, DeltaSink(table, **KINDS[kind]))
    assert shown(table) == truth(store, mode)
    assert kills > 3
    assert rewinds > 3
    assert DeltaTable(str(table)).history()[-1]["operation"] == "CREATE TABLE", "no history is deleted"


def two_epochs(path, **options):
    store = Store()
    run = Run(store, DeltaSink(path, **options))
    for number in range(2):
        run.write([("a", number), ("b", number)])
        run.close()
    return store, run


def test_rows_of_others_stay(tmp_path):
    """Somebody else appends; going back removes the flow's own rows only."""
    store, _ = two_epochs(tmp_path / "table")
    write_deltalake(str(tmp_path / "table"), pa.table({"key": ["theirs"], "n": [9]}), mode="append")
    Run(store, DeltaSink(tmp_path / "table"), resume_epoch=2)
    assert shown(tmp_path / "table") == sorted([*truth(store, "append"), ("theirs", 9)])


@pytest.mark.parametrize("compacted", [True, False])
def test_going_back_over_compacted_files(tmp_path, compacted):
    """The version before is restored; not if somebody else has changed rows since."""
    store, _ = two_epochs(tmp_path / "table")
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
    store, late = two_epochs(tmp_path / "table")
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
    store, _ = two_epochs(path)
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
    store, run = two_epochs(tmp_path / "table")
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
    run = Run(Store(), DeltaSink(tmp_path / "table"))
    with pytest.raises(OutputMismatchError, match=r"delta\.constraints\.positive"):
        run.write([("a", -1)])


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
    store, run = two_epochs(path)
    shutil.copytree(path, tmp_path / "copy")
    for number in (5, 6):
        run.write([("a", number)])
        run.close()
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    with pytest.raises(OutputMismatchError, match="it lacks the output of an earlier epoch"):
        Run(store, DeltaSink(path))


@pytest.mark.parametrize("kind", ["append", "merge"])
def test_a_repartitioned_store_takes_the_place_of_the_old_one(tmp_path, kind):
    """It goes on, takes back what the old one committed since, goes back behind it; and the old one is refused."""
    path, options = tmp_path / "table", KINDS[kind]
    store, _ = two_epochs(path, **options)
    new = store.repartitioned()
    since = Run(store, DeltaSink(path, **options))
    since.write([("since", 1)])
    since.close()
    run = Run(new, DeltaSink(path, **options))
    run.write([("a", 7), ("new", 1)])
    run.close()
    assert shown(path) == truth(new, kind)
    Run(new, DeltaSink(path, **options), resume_epoch=2)
    assert shown(path) == truth(new, kind)
    with pytest.raises(OutputMismatchError, match="repartitioned to"):
        Run(store, DeltaSink(path, **options))
