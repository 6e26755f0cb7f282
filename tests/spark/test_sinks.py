"""Sinks in a running flow: what they are told, and that their output appears once."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3

import pandas
import pytest

from recovery import (
    ConfigurationError,
    DiscardSink,
    FileSink,
    OutputMismatchError,
    SinkFailedError,
    UpsertSink,
    current_batch,
    init_partitions,
)
from tests.spark.support import run_to_end, states, totals_step
from tests.spark.test_crashes import finish, recovery_run


class Ledger:
    """An EpochSink over two text files: what was prepared, and what is visible. The smallest that is right."""

    single_action = False

    def __init__(self, path):
        self.staged, self.visible = path / "staged.json", path / "visible.json"
        self.rows, self.fail = {}, set()

    def rollback(self, resume):
        shown = [e for e in self._read(self.visible) if resume.closed(e["epoch"], e["execution"])]
        known = {e["epoch"] for e in shown}
        shown += [
            e for e in self._read(self.staged) if resume.closed(e["epoch"], e["execution"]) and e["epoch"] not in known
        ]
        self.visible.write_text(json.dumps(shown))
        self.rows = {}

    def write(self, batch, batch_id):
        self.rows[batch_id] = [list(row) for row in batch.collect()]

    def prepare(self, output):
        rows = [row for b in sorted(self.rows) if b <= output.batch for row in self.rows.pop(b)]
        entry = {"epoch": output.epoch, "execution": output.execution.id, "rows": rows}
        self.staged.write_text(json.dumps([*self._read(self.staged), entry]))
        return str(output.epoch)

    def publish(self, output):
        if output.epoch in self.fail:
            raise RuntimeError("out of order")
        entry = self._read(self.staged)[-1]
        self.visible.write_text(json.dumps([*self._read(self.visible), entry]))

    def _read(self, path):
        return json.loads(path.read_text()) if path.exists() else []

    def shown(self):
        return [tuple(row) for entry in self._read(self.visible) for row in entry["rows"]]


def test_a_sink_of_ones_own_survives_a_failed_publish_and_a_rewind(spark, feed, tmp_path):
    """Output of a closed epoch whose publishing failed comes with the next run; a rewind takes output back."""
    for seed in range(4):
        feed.add_random(seed)
    frame = feed.frame(spark).transform(totals_step())
    uninterrupted = []
    run_to_end(frame, tmp_path / "plain", lambda batch, _: uninterrupted.extend(tuple(r) for r in batch.collect()))
    sink = Ledger(tmp_path)
    sink.fail = {2}
    with pytest.raises(SinkFailedError, match=r"closed epoch 2: .*out of order"):
        run_to_end(frame, tmp_path / "db", sink, backup_interval="1h")
    assert len(sink.shown()) < len(uninterrupted)
    sink.fail = set()
    summary = run_to_end(frame, tmp_path / "db", sink, backup_interval="1h")
    assert summary.resume_epoch == 3
    assert sorted(sink.shown()) == sorted(uninterrupted)
    run_to_end(frame, tmp_path / "db", sink, resume_epoch=2)
    assert sorted(sink.shown()) == sorted(uninterrupted)
    assert states(tmp_path / "db", "totals") == feed.totals()


def test_a_function_can_ask_which_batch_it_writes(spark, feed, tmp_path):
    """Micro-batch, epoch and execution; a run that comes later has another name for what it writes."""
    told = []
    for _ in range(2):
        feed.add_random(1)
        run_to_end(feed.frame(spark), tmp_path / "db", lambda batch, _: told.append(current_batch()))
    assert [(c.batch_id, c.epoch, c.execution_number) for c in told] == [(0, 1, 1), (1, 2, 2)]
    assert len({c.app_id for c in told}) == 2


READERS = {
    "parquet": lambda path: pandas.read_parquet(path),
    "json": lambda path: pandas.concat(pandas.read_json(f, lines=True) for f in sorted(path.glob("*.json"))),
    "csv": lambda path: pandas.concat(pandas.read_csv(f) for f in sorted(path.glob("*.csv"))),
}


def records(frame) -> list[tuple]:
    """The rows of a pandas frame, sorted."""
    return sorted(frame[["key", "n", "total"]].itertuples(index=False, name=None))


@pytest.mark.parametrize("format", READERS)
def test_files_hold_every_record_once(spark, feed, tmp_path, format):
    """What Spark and pandas read from the directory is what an uninterrupted run gives, after runs and a rewind."""
    frame = feed.frame(spark).transform(totals_step())
    output = tmp_path / "a b%20ü" / "out"
    sink = FileSink(output, format, options={"header": True} if format == "csv" else None)
    for seed in range(3):
        feed.add_random(seed)
    run_to_end(frame, tmp_path / "db", sink, backup_interval="1h")
    feed.add_random(3)
    run_to_end(frame, tmp_path / "db", sink, backup_interval="1h")
    uninterrupted = []
    run_to_end(frame, tmp_path / "plain", lambda batch, _: uninterrupted.extend(tuple(r) for r in batch.collect()))
    assert records(READERS[format](output)) == sorted(uninterrupted)
    run_to_end(frame, tmp_path / "db", sink, resume_epoch=2, backup_interval="1h")
    assert records(READERS[format](output)) == sorted(uninterrupted)
    reader = spark.read.options(header=True, inferSchema=True) if format == "csv" else spark.read
    rows = reader.format(format).load(str(output)).select("key", "n", "total").collect()
    assert sorted(tuple(row) for row in rows) == sorted(uninterrupted)
    assert [entry.epoch for entry in sink.entries()] == [1, 2, 3, 4]
    assert sorted(sink.files()) == sorted(output.glob("epoch-*"))
    assert sink.damaged() == []


def test_few_files_and_none_without_rows(spark, feed, tmp_path):
    """files_per_batch bounds the files of a micro-batch; one without rows has none, and its epoch is listed."""
    feed.add_random(1)
    feed.add([("a", -1)])
    frame = feed.frame(spark).transform(totals_step()).where("total >= 0")
    sink = FileSink(tmp_path / "out", "csv", options={"header": True}, files_per_batch=1)
    run_to_end(frame, tmp_path / "db", sink)
    assert [len(entry.files) for entry in sink.entries()] == [1, 0]


def test_a_table_holds_the_state_of_the_closed_epochs(spark, feed, tmp_path):
    """Upserts with position and rows in one transaction: exact after a failed publish, another run, and a rewind."""
    broken = []

    def connect():
        if broken:
            raise sqlite3.OperationalError("disk I/O error")
        return sqlite3.connect(tmp_path / "totals.db")

    def table() -> dict:
        with contextlib.closing(sqlite3.connect(tmp_path / "totals.db")) as connection:
            return {key: [n, total] for key, n, total in connection.execute("SELECT key, n, total FROM totals")}

    class Breaks(UpsertSink):
        def publish(self, output):
            broken.extend([True] * (output.epoch == 2))
            super().publish(output)

    with contextlib.closing(connect()) as connection:
        connection.execute("CREATE TABLE totals (key TEXT PRIMARY KEY, n INTEGER, total INTEGER)")
    for seed in range(3):
        feed.add_random(seed)
    frame = feed.frame(spark).transform(totals_step())
    with pytest.raises(SinkFailedError, match="disk I/O error"):
        run_to_end(frame, tmp_path / "db", Breaks(connect, "totals", ["key"]), backup_interval="1h")
    broken.clear()
    run_to_end(frame, tmp_path / "db", UpsertSink(connect, "totals", ["key"]), backup_interval="1h")
    assert table() == states(tmp_path / "db", "totals") == feed.totals()
    feed.add([("k1", 1000), ("new", 1)])
    run_to_end(frame, tmp_path / "db", UpsertSink(connect, "totals", ["key"]), backup_interval="1h", resume_epoch=2)
    assert table() == states(tmp_path / "db", "totals") == feed.totals()


def test_a_sink_can_be_changed(spark, feed, tmp_path):
    """Epochs closed with another sink are not in the files, by choice; what follows is."""
    frame = feed.frame(spark)
    sink = FileSink(tmp_path / "out")
    for number, each in enumerate([DiscardSink(), sink, DiscardSink(), sink]):
        feed.add([(f"k{number}", number)])
        run_to_end(frame, tmp_path / "db", each)
    assert sorted(pandas.read_parquet(tmp_path / "out")["key"]) == ["k1", "k3"]
    assert [entry.epoch for entry in sink.entries()] == [2, 4]


def test_what_does_not_fit_is_refused_before_anything_is_written(spark, feed, tmp_path):
    """Missing files, the directory of another flow, and no recovery directory at all."""
    from recovery import start
    from recovery.storage.files import scan

    feed.add_random(1)
    sink = FileSink(tmp_path / "out")
    run_to_end(feed.frame(spark), tmp_path / "db", sink)
    described = [file.description for file in scan(tmp_path / "db")]
    with pytest.raises(OutputMismatchError, match="output of flow 'test' on recovery directory"):
        run_to_end(feed.frame(spark), tmp_path / "db2", FileSink(tmp_path / "out"))
    sink.files()[0].rename(tmp_path / "gone")
    with pytest.raises(OutputMismatchError, match="is missing"):
        run_to_end(feed.frame(spark), tmp_path / "db", sink)
    assert [file.description for file in scan(tmp_path / "db")] == described
    with pytest.raises(ConfigurationError, match="without recovery"):
        start(feed.frame(spark), None, sink=FileSink(tmp_path / "out2"), name="free")


# Where a process is killed, in this order: some points are reached only after what the one before has left undone.
SOME_POINTS = ["publish.1.file:3", "rollback.3", "prepare.2:2", "close.2.committed:4"]
ALL_POINTS = [
    "prepare.1:2", "prepare.2:2", "close.1.prepared:2", "close.2.epochs:5", "close.2.committed:4",
    "close.2.committed:6", "close.3:2", "rollback.1", "rollback.2", "rollback.3", "rollback.4", "rollback.5",
    "start.3.output", "close.4:2", "publish.1.file:2", "publish.1:2", "publish.2:2", "publish.3:2",
    "close.4.published:2",
]  # fmt: skip


@pytest.mark.parametrize(
    "points", [pytest.param(SOME_POINTS, id="some"), pytest.param(ALL_POINTS, id="all", marks=pytest.mark.long)]
)
def test_killed_between_the_steps_of_publishing(feed, tmp_path, points):
    """After kill -9 at each step of publishing and of going back, the files are those of an uninterrupted run."""
    for seed in range(4 * len(points)):
        feed.add_random(seed, count=40)
    directory, output = tmp_path / "db", tmp_path / "out"
    init_partitions(directory, 3)
    runs = [(point, ()) for point in points]
    runs += [("rollback.2", ("--resume-epoch", "3")), ("rollback.4", ("--resume-epoch", "2")), ("", ())]
    for point, options in runs:
        process = recovery_run(directory, feed, "-s", "0", "-b", "1h", *options, crash_at=point, output=output)
        printed = finish(process)
        assert process.returncode == (-signal.SIGKILL if point else 0), f"{point}: {printed}"
    assert records(pandas.read_parquet(output)) == sorted(running_totals(feed.rows, 40))
    assert states(directory, "totals") == feed.totals()


def running_totals(rows, size: int) -> list[tuple]:
    """What the flow puts out: for every micro-batch of `size` rows, each of its keys with the totals so far."""
    totals: dict[str, tuple[int, int]] = {}
    found = []
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        for key, value in batch:
            count, total = totals.get(key, (0, 0))
            totals[key] = count + 1, total + value
        found += [(key, *totals[key]) for key in {key for key, _ in batch}]
    return found
