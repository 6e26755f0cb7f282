"""Sinks in a running flow: what they receive, and that their output appears once."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
import signal
import sqlite3

import pandas
import pytest

import recovery
from recovery import (
    ConfigurationError,
    DeltaSink,
    DiscardSink,
    FileSink,
    Flow,
    FlowFailedError,
    OutputMismatchError,
    RecoveryConfig,
    SinkFailedError,
    SinkRefusedError,
    StaleDirectoryError,
    UpsertSink,
    current_batch,
    init_partitions,
    repartition,
)
from recovery.hadoop.writing import write_files
from tests.shares import first, some
from tests.spark.support import ROOT, run_to_end, states, totals_step
from tests.spark.test_crashes import finish, recovery_run


def documented(name: str) -> type:
    """A class that docs/sinks.md shows, unchanged."""
    [code] = re.findall(rf"```python(?: title=\S+)?\n([^`]*?\nclass {name}:.*?)```", DOCUMENT.read_text(), re.DOTALL)
    names: dict = {}
    exec(code, names)
    return names[name]


@pytest.mark.any_spark
def test_a_users_sink_survives_a_failed_publish_and_a_rewind(spark, feed, tmp_path):
    """Output of a closed epoch whose publishing failed comes with the next run; a rewind takes output back."""
    for seed in range(4):
        feed.add_random(seed)
    frame = feed.frame(spark).transform(totals_step())
    uninterrupted = sorted(running_totals(feed.rows))
    failing = {2}

    class Ledger(documented("Ledger")):
        def publish(self, output):
            if output.epoch in failing:
                raise RuntimeError("out of order")
            super().publish(output)

    def shown() -> list[tuple]:
        files = (tmp_path / "ledger").glob("*.json")
        return sorted(tuple(row.values()) for file in files for row in json.loads(file.read_text()))

    sink = Ledger(tmp_path / "ledger")
    with pytest.raises(SinkFailedError, match=r"closed epoch 2: .*out of order"):
        run_to_end(frame, tmp_path / "db", sink, backup_interval="1h")
    assert len(shown()) < len(uninterrupted)
    failing.clear()
    summary = run_to_end(frame, tmp_path / "db", sink, backup_interval="1h")
    assert summary.resume_epoch == 3
    assert shown() == uninterrupted
    run_to_end(frame, tmp_path / "db", sink, resume_epoch=2)
    assert shown() == uninterrupted
    assert states(tmp_path / "db", "totals") == feed.totals()


def test_a_function_can_ask_which_batch_it_writes(spark, feed, tmp_path):
    """Micro-batch, epoch and execution; a run that comes later has another name for what it writes."""
    contexts = []
    for _ in range(2):
        feed.add_random(1)
        run_to_end(feed.frame(spark), tmp_path / "db", lambda batch, _: contexts.append(current_batch()))
    assert [(c.batch_id, c.epoch, c.execution_number) for c in contexts] == [(0, 1, 1), (1, 2, 2)]
    assert len({c.app_id for c in contexts}) == 2


async def later(batch, batch_id):
    """What a sink that calls this gives away."""


LAZY = {
    "coroutine": lambda batch, batch_id: later(batch, batch_id),
    "generator": lambda batch, batch_id: (row for row in batch.collect()),
    "map": lambda batch, batch_id: map(print, batch.collect()),
    "writer": lambda batch, batch_id: batch.write.format("noop"),
}


@first("kind", LAZY)
@pytest.mark.any_spark
def test_a_sink_that_leaves_its_work_undone_ends_the_run(spark, feed, tmp_path, kind):
    """Nothing counts as read: with a sink that works, every row comes."""
    feed.add([("a", 1), ("b", 2)])
    with pytest.raises(FlowFailedError, match=r"the sink returned a .*, for micro-batch 0: it has written nothing"):
        run_to_end(feed.frame(spark), tmp_path / "db", LAZY[kind])
    seen = []
    run_to_end(feed.frame(spark), tmp_path / "db", lambda batch, _: seen.extend(map(tuple, batch.collect())))
    assert sorted(seen) == sorted(feed.rows)


@first("sink", [later, FileSink, "out"])
def test_what_is_no_sink_is_refused_before_the_run_begins(spark, feed, tmp_path, sink):
    """At `start`, for a frame as for a flow; the directory is as it was."""
    feed.add([("a", 1)])
    with pytest.raises(ConfigurationError, match="sink"):
        run_to_end(feed.frame(spark), tmp_path / "db", sink)
    assert run_to_end(feed.frame(spark), tmp_path / "db").execution == 1


def test_an_asynchronous_observer_is_refused(spark, feed, tmp_path):
    """Nobody would run it."""

    async def observer(event):
        pass

    feed.add([("a", 1)])
    with pytest.raises(ConfigurationError, match="the observer is an asynchronous function"):
        run_to_end(feed.frame(spark), tmp_path / "db", observer=observer)


@pytest.mark.any_spark
def test_a_sink_that_is_empty_is_called(spark, feed, tmp_path):
    """A list that collects is false before its first batch; given for a frame, and in place of a flow's own sink."""

    class Collected(list):
        def __call__(self, batch, batch_id):
            self.extend(tuple(row) for row in batch.collect())

    feed.add([("a", 1), ("b", 2)])
    for flow in (feed.frame(spark), Flow("test", feed.frame, sink=lambda *_: pytest.fail("the flow's own"))):
        sink = Collected()
        directory = tmp_path / type(flow).__name__
        init_partitions(directory, 2)
        config = RecoveryConfig(directory)
        started = recovery.start(flow, config, spark=spark, sink=sink, name="test", trigger="available-now")
        started.await_termination(120)
        assert sorted(sink) == sorted(feed.rows)


DOCUMENT = ROOT / "docs" / "sinks.md"
READERS = {
    "json": lambda path: pandas.concat(pandas.read_json(f, lines=True) for f in sorted(path.glob("*.json"))),
    "csv": lambda path: pandas.concat(pandas.read_csv(f) for f in sorted(path.glob("*.csv"))),
}


def records(frame) -> list[tuple]:
    """The rows of a pandas frame, sorted."""
    return sorted(frame[["key", "n", "total"]].itertuples(index=False, name=None))


def test_files_hold_every_record_once(spark, feed, tmp_path):
    """What Spark and pandas read from the directory is what an uninterrupted run gives, after runs and a rewind."""
    frame = feed.frame(spark).transform(totals_step())
    output = tmp_path / "a b%20ü" / "out"
    sink = FileSink(output)
    for seed in range(3):
        feed.add_random(seed)
    run_to_end(frame, tmp_path / "db", sink, backup_interval="1h")
    feed.add_random(3)
    run_to_end(frame, tmp_path / "db", sink, backup_interval="1h")
    uninterrupted = sorted(running_totals(feed.rows))
    assert records(pandas.read_parquet(output)) == uninterrupted
    run_to_end(frame, tmp_path / "db", sink, resume_epoch=2, backup_interval="1h")
    assert records(pandas.read_parquet(output)) == uninterrupted
    assert sorted(tuple(row) for row in spark.read.parquet(str(output)).collect()) == uninterrupted
    assert [entry.epoch for entry in sink.entries()] == [1, 2, 3, 4]
    assert sorted(sink.files()) == sorted(output.glob("epoch-*"))
    assert sink.damaged() == []


@first("format", READERS)
def test_formats(spark, feed, tmp_path, format):
    """Options reach Spark's writer, and other tools read what it wrote."""
    feed.add([("a", 1), ("b", 2), ("a", 3)])
    output = tmp_path / "out"
    options = {"header": True} if format == "csv" else {"compression": "none"}
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", FileSink(output, format, options=options))
    assert records(READERS[format](output)) == [("a", 2, 4), ("b", 1, 2)]


FORMS = [{"lineSep": "\r"}, {"compression": "gzip"}, {"Encoding": "ISO-8859-1"}]


@pytest.mark.parametrize("options", some(FORMS, FORMS[0]), ids=str)
def test_lines_of_another_form(spark, feed, tmp_path, options):
    """A file with rows is never taken for one with a header alone."""
    feed.add([("a", 1), ("b", 2), ("a", 3)])
    sink = FileSink(tmp_path / "out", "csv", options={"header": True, **options}, files_per_batch=1)
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", sink)
    read = spark.read.options(header=True, **options).csv([str(path) for path in sink.files()])
    assert sorted(tuple(row) for row in read.collect()) == [("a", "2", "4"), ("b", "1", "2")]


@pytest.mark.usefixtures("retries")
def test_a_task_that_fails_leaves_no_file(spark, feed, tmp_path):
    """What the first attempt of a task wrote is not in the output, whether it failed before or after the step."""
    for seed in range(3):
        feed.add_random(seed)
    marks = tmp_path / "marks"
    marks.mkdir()

    def fail_once(batches):
        from pyspark import TaskContext

        task = TaskContext.get()
        mark = marks / f"{task.getLocalProperty('streaming.sql.batchId')}-{task.partitionId()}"
        yield from batches
        if not mark.exists():
            mark.touch()
            raise RuntimeError("first attempt fails")

    frame = feed.frame(spark).transform(totals_step())
    run_to_end(frame.mapInArrow(fail_once, frame.schema), tmp_path / "db", FileSink(tmp_path / "out", "json"))
    assert len(list(marks.iterdir())) > 2
    assert records(READERS["json"](tmp_path / "out")) == sorted(running_totals(feed.rows))


def test_few_files_and_none_without_rows(spark, feed, tmp_path):
    """files_per_batch bounds the files of a micro-batch; one without rows has none, and its epoch is listed."""
    feed.add_random(1)
    feed.add([("a", -1)])
    frame = feed.frame(spark).transform(totals_step()).where("total >= 0")
    sink = FileSink(tmp_path / "out", "csv", options={"header": True}, files_per_batch=1)
    run_to_end(frame, tmp_path / "db", sink)
    assert [len(entry.files) for entry in sink.entries()] == [1, 0]


@pytest.mark.long
def test_tasks_that_cannot_write(spark, feed, tmp_path):
    """The sink's target refuses, and not the flow or Spark. The next run has another directory, and goes on."""

    class Blocked(FileSink):
        def write(self, batch, batch_id):
            if batch_id == 1:
                place = self._output.staging(self._execution, batch_id)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text("in the way")
            super().write(batch, batch_id)

    for seed in range(3):
        feed.add_random(seed)
    frame = feed.frame(spark).transform(totals_step())
    with pytest.raises(
        SinkRefusedError, match=r"Blocked\.write failed, writing micro-batch 1: .*not a directory"
    ) as caught:
        run_to_end(frame, tmp_path / "db", Blocked(tmp_path / "out", "json"))
    assert "Move it away" in caught.value.remedy
    sink = FileSink(tmp_path / "out", "json")
    run_to_end(frame, tmp_path / "db", sink)
    lines = [json.loads(line) for path in sink.files() for line in path.read_text().splitlines()]
    assert sorted((row["key"], row["n"], row["total"]) for row in lines) == sorted(running_totals(feed.rows))


def test_a_place_that_files_cannot_be_written_to(spark, tmp_path):
    """The error is that of the path, and what Spark says of rows stays Spark's."""
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OSError, match="not a directory") as caught:
        write_files(spark.range(3), f"file:{tmp_path}/out/0", "json", {})
    assert caught.value.filename == f"file:{tmp_path}/out/0"
    assert caught.value.errno == errno.EIO
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.parquet").write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        write_files(spark.read.schema("id long").parquet(f"file:{tmp_path}/in"), f"file:{tmp_path}/b", "json", {})


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
        run_to_end(frame, tmp_path / "db", Breaks(connect, "totals", ["key"], patience_s=0), backup_interval="1h")
    broken.clear()
    run_to_end(frame, tmp_path / "db", UpsertSink(connect, "totals", ["key"]), backup_interval="1h")
    assert table() == states(tmp_path / "db", "totals") == feed.totals()
    feed.add([("k1", 1000), ("new", 1)])
    run_to_end(frame, tmp_path / "db", UpsertSink(connect, "totals", ["key"]), backup_interval="1h", resume_epoch=2)
    assert table() == states(tmp_path / "db", "totals") == feed.totals()


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        "table",
        pytest.param("delta", marks=pytest.mark.long),
        pytest.param("delta merge", marks=pytest.mark.long),
        pytest.param("files", marks=pytest.mark.long),
    ],
)
def test_output_continues_with_another_number_of_partitions(spark, feed, tmp_path, kind):
    """Repartitioned after a publish that failed, run on, and gone back behind it: no row is lost or there twice. The
    old store's next run is refused."""
    frame = feed.frame(spark).transform(totals_step())
    make, found = output_of(kind, tmp_path)
    broken = []

    class Breaks(type(make())):
        def publish(self, output):
            if output.epoch == 2 and not broken:
                broken.append(True)
                raise RuntimeError("no connection")
            super().publish(output)

    def wanted():
        every = running_totals(feed.rows)
        return sorted(every if kind in ("delta", "files") else {row[0]: row for row in every}.values())

    for seed in range(3):
        feed.add_random(seed)
    breaking = make()
    breaking.__class__ = Breaks
    with pytest.raises(SinkFailedError, match="no connection"):
        run_to_end(frame, tmp_path / "db", breaking, backup_interval="1h")
    repartition(tmp_path / "db", tmp_path / "new", 5)
    run_to_end(frame, tmp_path / "new", make(), backup_interval="1h")
    assert found() == wanted()
    feed.add_random(3)
    run_to_end(frame, tmp_path / "new", make(), backup_interval="1h", resume_epoch=2)
    assert found() == wanted()
    assert states(tmp_path / "new", "totals") == feed.totals()
    with pytest.raises(StaleDirectoryError, match="repartitioned from"):
        run_to_end(frame, tmp_path / "db", make(), backup_interval="1h")
    assert found() == wanted()


@pytest.mark.long
@pytest.mark.parametrize("kind", some(["files", "table", "delta"], "files"))
def test_a_copy_has_run_and_the_directory_was_repartitioned(spark, feed, tmp_path, kind):
    """The copy's output stays: the directory is refused before it is written to. With --lose-epochs it goes on, and
    then the copy is refused."""
    frame = feed.frame(spark).transform(totals_step())
    make, found = output_of(kind, tmp_path)
    feed.add_random(0)
    run_to_end(frame, tmp_path / "db", make(), backup_interval="1h")
    shutil.copytree(tmp_path / "db", tmp_path / "copy")
    feed.add_random(1)
    run_to_end(frame, tmp_path / "copy", make(), backup_interval="1h")
    repartition(tmp_path / "db", None, 5)
    shown, partitions = found(), [path.read_bytes() for path in sorted((tmp_path / "db").glob("part-*"))]
    with pytest.raises(StaleDirectoryError, match="this directory does not know that execution") as caught:
        run_to_end(frame, tmp_path / "db", make(), backup_interval="1h")
    assert "this one was repartitioned, or on a copy of it" in caught.value.cause
    assert found() == shown
    assert [path.read_bytes() for path in sorted((tmp_path / "db").glob("part-*"))] == partitions
    run_to_end(frame, tmp_path / "db", make(), backup_interval="1h", lose_epochs=True)
    assert found() == shown
    with pytest.raises(StaleDirectoryError):
        run_to_end(frame, tmp_path / "copy", make(), backup_interval="1h")


def output_of(kind, tmp_path):
    """A function that makes a sink, and one that reads what is in its target, sorted."""
    if kind == "files":
        return lambda: FileSink(tmp_path / "out"), lambda: records(pandas.read_parquet(tmp_path / "out"))
    if kind == "table":
        path = tmp_path / "totals.db"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE totals (key TEXT PRIMARY KEY, n INTEGER, total INTEGER)")

        def rows():
            with contextlib.closing(sqlite3.connect(path)) as connection:
                return sorted(connection.execute("SELECT key, n, total FROM totals"))

        return lambda: UpsertSink(lambda: sqlite3.connect(path), "totals", ["key"]), rows
    deltalake = pytest.importorskip("deltalake")
    mode, key = ("merge", ["key"]) if kind == "delta merge" else ("append", [])

    def read():
        return records(deltalake.DeltaTable(str(tmp_path / "t")).to_pandas())

    return lambda: DeltaSink(tmp_path / "t", mode, key=key), read


@pytest.mark.long
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
    from recovery.storage.scan import scan

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


# Where a process is killed, one after the other: some points are reached only after what the one before left undone.
GO_BACK = [("rollback.2", "--resume-epoch", "3"), ("rollback.4", "--resume-epoch", "2")]
POINTS = {
    "some": ["publish.1.file:3", "rollback.3"],
    "on": ["close.2.committed:4", *GO_BACK[1:]],
    "preparing": ["prepare.1:2", "prepare.2:2", "close.1.prepared:2", "close.2.epochs:5", "close.2.committed:4"],
    "publishing": ["close.3:2", "close.4:2", "publish.1:2", "publish.2:2", "publish.3:2", "close.4.published:2"],
    "rolling forward": ["close.3", *(f"rollback.{n}" for n in range(1, 6)), "start.3.output"],
    "going back": ["", *GO_BACK],
}


@pytest.mark.parametrize(
    "points",
    [pytest.param(points, id=i, marks=pytest.mark.long) for i, points in POINTS.items()],
)
def test_killed_between_the_steps_of_publishing(feed, tmp_path, points):
    """After kill -9 at each step of publishing and of going back, the files are those of an uninterrupted run."""
    for seed in range(3 * len(points)):
        feed.add_random(seed, count=40)
    directory, output = tmp_path / "db", tmp_path / "out"
    init_partitions(directory, 3)
    for each in [*points, ""]:
        point, *options = [each] if isinstance(each, str) else each
        process = recovery_run(directory, feed, "-s", "0", "-b", "1h", *options, crash_at=point, output=output)
        printed = finish(process)
        assert process.returncode == (-signal.SIGKILL if point else 0), f"{point}: {printed}"
    assert records(pandas.read_parquet(output)) == sorted(running_totals(feed.rows, 40))
    assert states(directory, "totals") == feed.totals()


def running_totals(rows, size: int = 300) -> list[tuple]:
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
