"""Aggregates of few rows that the driver merges: results as where tasks do it, and when it is done."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from recovery import (
    DiscardSink,
    FileSink,
    FlowFailedError,
    RecoveryConfig,
    StateValueError,
    aggregate,
    init_partitions,
    start,
)
from recovery.aggregates import collect, count, count_distinct, last, max_, mean, sum_
from recovery.spark.tuning import gathering, merging
from tests.shares import first, some
from tests.spark.support import ODD_KEYS, ROOT, Feed, run_to_end, set_to, states, totals_step


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Rows are exchanged, and few are few, as outside of tests."""
    monkeypatch.setattr(gathering, "FEW_ROWS", -1)
    monkeypatch.setattr(gathering, "FIRST_BYTES", -1)
    monkeypatch.setattr(merging, "FEW_ROWS", 10_000)


@pytest.fixture
def merged(monkeypatch) -> list[int]:
    """The micro-batches that the driver has done, as they come."""
    found: list[int] = []
    run_tasks = merging.run_tasks

    def noted(step, rows, connect, batch, kind, tasks):
        found.append(batch)
        return run_tasks(step, rows, connect, batch, kind, tasks)

    monkeypatch.setattr(merging, "run_tasks", noted)
    return found


def totals(step_id="totals"):
    return aggregate(step_id, key="key", n=count(), total=sum_("value"))


def truth(feed) -> dict[str, dict[str, int]]:
    return {key: {"n": n, "total": total} for key, (n, total) in feed.totals().items()}


class Rows:
    """A sink that looks at a micro-batch as often as it likes, and keeps what the last one had of each key."""

    def __init__(self) -> None:
        self.newest: dict = {}
        self.local: list[bool] = []

    def __call__(self, batch, _) -> None:
        assert batch.count() == len(batch.collect())
        self.newest.update({row.key: row for row in batch.collect()})
        self.local.append(batch._jdf.isLocal())


@first("sink", [DiscardSink(), Rows()], ids=["discard", "function"])
def test_few_keys_from_the_first_micro_batch(spark, feed, tmp_path, merged, sink):
    """Many rows of few keys never reach a task: the sink has rows that cost nothing to compute."""
    for offset in range(4):
        feed.add((f"k{number % 40}", number + offset) for number in range(30_000))
    summary = run_to_end(feed.frame(spark).transform(totals()), tmp_path / "db", sink)
    assert merged == [0, 1, 2, 3]
    assert states(tmp_path / "db", "totals") == truth(feed)
    assert (summary.rows, summary.states) == (120_000, 160)
    if isinstance(sink, Rows):
        assert {key: [row.n, row.total] for key, row in sink.newest.items()} == feed.totals()
        assert sink.local == [True] * 4


@pytest.mark.long
@pytest.mark.parametrize("known", [True, False])
def test_keys_that_become_many_and_few_again(spark, feed, tmp_path, merged, monkeypatch, known):
    """Where the source tells that there is not much to read, the driver does the first of many keys all the same;
    otherwise it counts their rows before, and Spark goes on behind the exchange without doing its work again."""
    monkeypatch.setattr(merging, "PAUSE", 2)
    if not known:
        monkeypatch.setattr(merging, "MOST_BYTES", -1)
    for keys in (10, 10, 12_000, 12_000, 10, 10, 10, 10):
        feed.add((f"k{number % keys}", number) for number in range(30_000))
    summary = run_to_end(feed.frame(spark).transform(totals()), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == truth(feed)
    # Spark counts what its sources gave, and would count twice what it read again.
    assert summary.rows == 240_000
    assert merged == ([0, 1, 2, 5, 6, 7] if known else [0, 1, 5, 6, 7])


@pytest.mark.long
def test_many_keys_in_the_first_micro_batch(spark, feed, tmp_path, merged):
    """They are counted, and left to Spark."""
    for _ in range(3):
        feed.add((f"k{number}", number) for number in range(20_000))
    summary = run_to_end(feed.frame(spark).transform(totals()), tmp_path / "db")
    assert merged == []
    assert states(tmp_path / "db", "totals") == truth(feed)
    assert (summary.rows, summary.states) == (60_000, 60_000)


@pytest.mark.parametrize("most", some([1, 64 << 20], 1))
def test_few_rows_of_many_bytes(spark, feed, tmp_path, merged, monkeypatch, most):
    """The driver takes no counted rows that its memory may not hold."""
    monkeypatch.setattr(merging, "MOST_BYTES", -1)
    monkeypatch.setattr(merging, "MOST_COUNTED_BYTES", most)
    feed.add((f"k{number % 3}", number) for number in range(1000))
    texts = collect(F.concat(F.lit("a" * 100), "value"), 100)
    run_to_end(feed.frame(spark).transform(aggregate("some", key="key", texts=texts)), tmp_path / "db")
    assert merged == ([] if most == 1 else [0])
    assert [len(each["texts"]) for each in states(tmp_path / "db", "some").values()] == [100] * 3


def test_bytes_that_become_many(spark, feed, tmp_path, merged, monkeypatch):
    """Rows that had many bytes are counted before the driver takes the next ones, whatever there is to read."""
    monkeypatch.setattr(merging, "MOST_COUNTED_BYTES", 20_000)
    for size in (10, 1000, 1000):
        feed.add((f"k{number % 3}", number) for number in range(size))
    texts = collect(F.concat(F.lit("a" * 100), "value"), 100)
    run_to_end(feed.frame(spark).transform(aggregate("some", key="key", texts=texts)), tmp_path / "db")
    assert merged == [0, 1]
    assert [len(each["texts"]) for each in states(tmp_path / "db", "some").values()] == [100] * 3


@pytest.mark.long
def test_rows_that_cannot_be_combined(spark, feed, tmp_path, merged):
    """How many rows there are counts, however few keys they have."""
    for size in (10, 20_000, 20_000, 10):
        feed.add((f"k{number % 3}", number) for number in range(size))
    step = aggregate("different", key="key", n=count_distinct(F.col("value") % 5))
    run_to_end(feed.frame(spark).transform(step), tmp_path / "db")
    assert merged == [0, 1]
    assert states(tmp_path / "db", "different")["k1"] == {"n": [0, 1, 2, 3, 4]}


@pytest.mark.parametrize("constant", some(["key", "input"], "key"))
def test_constant_columns(spark, feed, tmp_path, constant):
    """Spark adds those only behind the exchange, so tasks do the step."""
    feed.add([("a", 1), ("b", 2), ("a", 2)])
    key, value = (F.lit("all").alias("k"), "value") if constant == "key" else ("key", F.lit(7))
    step = aggregate("s", key=key, n=count_distinct(value))
    run_to_end(feed.frame(spark).transform(step), tmp_path / "db")
    found = {"all": {"n": [1, 2]}} if constant == "key" else {"a": {"n": [7]}, "b": {"n": [7]}}
    assert states(tmp_path / "db", "s") == found


FLOW = """
import os, signal, subprocess
from pathlib import Path
from recovery import Flow, aggregate
from recovery.aggregates import count, sum_

def build(spark):
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text("in")
    frame = lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")
    return frame.transform(aggregate("totals", key="key", n=count(), total=sum_("value")))

def workers(batch, number):
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True).stdout
    processes = [line.split(None, 2) for line in listed.splitlines()]
    own = {str(os.getpid())}
    while more := {pid for pid, parent, _ in processes if parent in own} - own:
        own |= more
    started = any(pid in own and "-m recovery.spark.jvm.daemon" in words for pid, _, words in processes)
    print("rows", sorted(map(tuple, batch.collect())), started)

def killed(batch, number):
    if number == 2 and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)

looking, ending = Flow("looking", build, workers), Flow("ending", build, killed)
"""


def run_flow(directory: Path, name: str) -> subprocess.CompletedProcess:
    """A flow of FLOW as a user runs it, on what `directory` has in `in`, with an epoch after each micro-batch."""
    (directory / "flow.py").write_text(FLOW)
    if not (directory / "db").exists():
        init_partitions(directory / "db", 2)
    command = [sys.executable, "-m", "recovery", "run", f"flow.py:{name}", "-r", "db", "-s", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=240, env=environment)


@pytest.mark.long
def test_without_python_workers(tmp_path):
    """A run whose micro-batches the driver does starts none of Spark's processes for Python."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.txt").write_text(f"a,1\nb,{number}\n" * 50_000)
    done = run_flow(tmp_path, "looking")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("rows")]
    assert lines[-1].startswith("rows [('a', 150000, 150000), ('b', 150000, 150000)]")
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["False"] * 3


@pytest.mark.long
def test_killed_between_merging_and_the_sink(tmp_path):
    """What the driver had merged of the micro-batch is merged again, and counts once."""
    feed = Feed(tmp_path / "in")
    for seed in range(5):
        feed.add_random(seed)
    assert run_flow(tmp_path, "ending").returncode == -signal.SIGKILL
    done = run_flow(tmp_path, "ending")
    assert done.returncode == 0, done.stderr
    assert "resumes at epoch" in done.stdout + done.stderr
    assert states(tmp_path / "db", "totals") == truth(feed)


ABOVE = {
    "a projection": lambda frame: frame.select("key", (F.col("total") / F.col("n")).alias("average")),
    "a filter": lambda frame: frame.where("n % 2 = 0").withColumn("text", F.concat("key", F.lit("-"), "total")),
    "a function of Python's": lambda frame: frame.mapInPandas(lambda parts: parts, frame.schema),
    "numbers by chance": lambda frame: frame.withColumn("chance", F.rand()),
}


@pytest.mark.long
@pytest.mark.parametrize("above", some(ABOVE, "a projection"))
def test_what_is_done_with_the_output(spark, feed, tmp_path, merged, above, monkeypatch):
    """As where tasks do it: the same rows, and each time that the sink looks."""
    for seed in range(3):
        feed.add_random(seed)
    seen = []

    def sink(batch, _):
        first, second = batch.collect(), batch.collect()
        assert sorted(first) == sorted(second)
        seen.append(sorted(tuple(row)[:-1] if "chance" in batch.columns else tuple(row) for row in first))

    frame = ABOVE[above](feed.frame(spark).transform(totals()))
    run_to_end(frame, tmp_path / "db", sink)
    assert merged == ([] if above.startswith("a function") else [0, 1, 2])
    assert states(tmp_path / "db", "totals") == truth(feed)
    by_driver, seen = seen, []
    monkeypatch.setattr(merging, "FEW_ROWS", -1)
    run_to_end(frame, tmp_path / "again", sink)
    assert seen == by_driver


@pytest.mark.long
def test_files(spark, feed, tmp_path, merged):
    """Its rows in files, in the order of the columns and with their types."""
    for seed in range(3):
        feed.add_random(seed)
    sink = FileSink(tmp_path / "out")
    run_to_end(feed.frame(spark).transform(totals()), tmp_path / "db", sink)
    assert merged == [0, 1, 2]
    found = spark.read.parquet(*map(str, sink.files()))
    assert found.schema.simpleString() == "struct<key:string,n:bigint,total:bigint>"
    assert found.groupBy("key").agg(F.max("n").alias("n")).count() == len(feed.totals())


@pytest.mark.parametrize("known", some([True, False], True))
def test_a_step_below(spark, feed, tmp_path, merged, monkeypatch, known):
    """It runs in its tasks, once, also where its rows turn out to be many for the driver, or to be left to Spark."""
    if not known:
        monkeypatch.setattr(merging, "MOST_BYTES", -1)
    for keys in (5, 15_000, 5):
        feed.add((f"k{number % keys}", number) for number in range(15_000))
    frame = feed.frame(spark).transform(totals_step("below")).transform(aggregate("above", key="key", last=max_("n")))
    run_to_end(frame, tmp_path / "db")
    assert merged == ([0, 1] if known else [0])
    assert states(tmp_path / "db", "below") == feed.totals()
    assert states(tmp_path / "db", "above") == {key: {"last": n} for key, (n, _) in feed.totals().items()}


@pytest.mark.long
def test_two_aggregates(spark, feed, tmp_path, merged):
    """The first of two is for tasks, as there is another exchange behind it."""
    for seed in range(3):
        feed.add_random(seed)
    counted = feed.frame(spark).transform(aggregate("keys", key="key", n=count()))
    run_to_end(counted.transform(aggregate("all", key=F.lit("all"), most=max_("n"))), tmp_path / "db")
    assert merged == [0, 1, 2]
    assert states(tmp_path / "db", "all") == {"all": {"most": max(feed.counts().values())}}


@pytest.mark.long
def test_nothing_to_merge(spark, feed, tmp_path, merged):
    """Of a micro-batch whose rows are all left out the sink gets an empty frame."""
    feed.add([("a", 1)])
    feed.add([("b", -1)])
    feed.add([("a", 2)])
    seen = []
    frame = feed.frame(spark).where("value > 0").transform(totals())
    run_to_end(frame, tmp_path / "db", lambda batch, _: seen.append((batch.columns, list(map(tuple, batch.collect())))))
    columns = ["key", "n", "total"]
    assert seen == [(columns, [("a", 1, 1)]), (columns, []), (columns, [("a", 2, 3)])]
    assert merged == [0, 1, 2]


@pytest.mark.long
@pytest.mark.parametrize("zone", some(["GMT+8", "America/New_York"], "GMT+8"))
def test_types(spark, tmp_path, merged, zone, monkeypatch):
    """Keys and values of every type, and moments in the session's time zone, are those that tasks give."""
    rows = spark.range(0, 400).selectExpr(
        "id", "id % 7 AS number", "timestamp_micros(id % 5 * 3600000000 + 1604210400000000) AS moment",
        "cast(id % 3 AS decimal(20, 8)) AS price", "date_add(DATE'2020-01-01', cast(id % 11 AS int)) AS day",
        "cast(id AS string) AS text", "cast(cast(id AS string) AS binary) AS bytes", "id % 2 = 0 AS even",
        "cast(id AS double) / 3 AS real", "timestamp_micros(id * 1000000) AS at",
    )  # fmt: skip
    for number in range(3):
        part = rows.where(f"id % 3 = {number}")
        part.coalesce(2).write.parquet(str(tmp_path / f"in/{number}"))
    step = aggregate(
        "typed", key=["number", "moment", "price"], n=count(), average=mean("real"), newest=max_("at"), day=max_("day"),
        text=last("text", by="id"), bytes=last("bytes", by="id"), moments=collect("at", limit=3), total=sum_("price"),
        even=last("even", by="id"),
    )  # fmt: skip

    def run(name):
        seen = []
        files = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1)
        frame = files.parquet(str(tmp_path / "in/*")).transform(step)
        run_to_end(
            frame, tmp_path / name, lambda batch, _: seen.append((batch.schema, sorted(map(repr, batch.collect()))))
        )
        return seen, states(tmp_path / name, "typed")

    with set_to(spark, {"spark.sql.session.timeZone": zone}):
        by_driver = run("driver")
        assert len(merged) >= 3
        monkeypatch.setattr(merging, "FEW_ROWS", -1)
        del merged[:]
        assert run("tasks") == by_driver
        assert merged == []


@pytest.mark.long
def test_odd_keys(spark, tmp_path, merged, monkeypatch):
    """The driver finds the states that tasks have written, and the other way round."""
    for number in range(4):
        rows = [(key, number) for key in ODD_KEYS]
        spark.createDataFrame(rows, "key string, value long").coalesce(1).write.parquet(str(tmp_path / f"in/{number}"))
    files = spark.readStream.schema("key string, value long").option("maxFilesPerTrigger", 1)
    run = merging.Merging.run

    def in_turn(self, query, session, address, batch):
        return None if batch % 2 else run(self, query, session, address, batch)

    monkeypatch.setattr(merging.Merging, "run", in_turn)
    run_to_end(files.parquet(str(tmp_path / "in/*")).transform(totals()), tmp_path / "db")
    assert merged == [0, 2]
    found = states(tmp_path / "db", "totals")
    assert len(found) == len(ODD_KEYS)
    assert {each["n"] for each in found.values()} == {4}


@pytest.mark.long
@pytest.mark.parametrize("bad", some([0, 2], 2))
def test_an_error_of_the_flow(spark, feed, tmp_path, bad):
    """The same error as where the sink runs into it, whether rows were counted before or not; the next run goes on."""
    for _ in range(3):
        feed.add([("a", 1), ("b", 2)])
    path = feed.path / f"{bad:04}.txt"
    before = path.stat()
    path.write_text("a,1\nb,x\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    frame = feed.frame(spark).transform(totals())
    with pytest.raises(FlowFailedError) as raised:
        run_to_end(frame, tmp_path / "db")
    assert re.match(r"NumberFormatException: \[CAST_INVALID_INPUT\] The value 'x'", raised.value.found)
    path.write_text("a,1\nb,2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    run_to_end(frame, tmp_path / "db")
    assert states(tmp_path / "db", "totals") == truth(feed)


@pytest.mark.long
def test_a_sum_that_overflows(spark, feed, tmp_path, merged):
    """Names step and key; what was applied before it does not count."""
    feed.add([("a", 2**62), ("b", 1)])
    feed.add([("b", 1), ("a", 2**62)])
    with pytest.raises(StateValueError, match="step 'totals': key 'a': the sum of 'total' overflows"):
        run_to_end(feed.frame(spark).transform(totals()), tmp_path / "db")
    assert merged == [0, 1]
    assert states(tmp_path / "db", "totals") == {"a": {"n": 1, "total": 2**62}, "b": {"n": 1, "total": 1}}


def test_a_sink_that_fails(spark, feed, tmp_path, merged):
    """What the driver has merged of a micro-batch counts when its sink is done, and not before."""
    for seed in range(4):
        feed.add_random(seed)

    def fails(batch, number):
        if number == 2 and not tmp_path.joinpath("mended").exists():
            raise ValueError("not now")

    frame = feed.frame(spark).transform(totals())
    with pytest.raises(FlowFailedError, match="not now"):
        run_to_end(frame, tmp_path / "db", fails)
    (tmp_path / "mended").touch()
    run_to_end(frame, tmp_path / "db", fails)
    assert merged == [0, 1, 2, 2, 3]
    assert states(tmp_path / "db", "totals") == truth(feed)


@pytest.mark.long
def test_nothing_is_open_after_the_run(spark, feed, tmp_path, merged):
    """The driver has let go of what it kept open between micro-batches: no log is left, and no file."""
    for seed in range(3):
        feed.add_random(seed)
    run_to_end(feed.frame(spark).transform(totals()), tmp_path / "db")
    assert merged == [0, 1, 2]
    assert [path.name for path in (tmp_path / "db").iterdir() if path.name.endswith(("-wal", "-shm"))] == []
    opened = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert [path for path in opened if str(tmp_path) in path] == []


@pytest.mark.long
def test_two_concurrent_flows(spark, feed, tmp_path, merged):
    """Each has its own states, and its own micro-batches."""
    for seed in range(5):
        feed.add_random(seed)
    queries = []
    for name, step in (("one", totals()), ("two", aggregate("most", key="key", most=max_("value")))):
        init_partitions(tmp_path / name, 2)
        config = RecoveryConfig(tmp_path / name, snapshot_interval=0)
        frame = feed.frame(spark).transform(step)
        queries.append(start(frame, config, sink=DiscardSink(), name=name, trigger="available-now"))
    for each in queries:
        each.await_termination()
    assert sorted(merged) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert states(tmp_path / "one", "totals") == truth(feed)
    most = {key: max(value for one, value in feed.rows if one == key) for key in feed.totals()}
    assert states(tmp_path / "two", "most") == {key: {"most": value} for key, value in most.items()}


@pytest.mark.long
def test_a_stop_while_the_driver_merges(spark, feed, tmp_path, merged):
    """The micro-batch is finished, and its epoch closed; the next run begins behind it."""
    for seed in range(30):
        feed.add_random(seed, count=5000)
    init_partitions(tmp_path / "db", 2)
    frame, config = feed.frame(spark).transform(totals()), RecoveryConfig(tmp_path / "db", snapshot_interval=0)
    query = start(frame, config, sink=DiscardSink(), name="test", trigger="available-now")
    deadline = time.monotonic() + 60
    while len(merged) < 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    query.stop()
    done = len(merged)
    run_to_end(frame, tmp_path / "db", name="test")
    assert done < 30
    assert states(tmp_path / "db", "totals") == truth(feed)
