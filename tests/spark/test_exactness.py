"""State is exact whatever the sink, the scheduler or the plan do."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from recovery import DiscardSink, RecoveryConfig, init_partitions, start
from recovery.epochs import closer as closing
from recovery.planning.folding import FoldLimits
from recovery.storage.scan import read_step
from tests.shares import some
from tests.spark.support import add_up, run_to_end, set_to, states, totals_step
from tests.stores import paths_of, problems, query


def in_two_threads(batch, _):
    threads = [threading.Thread(target=lambda n=n: batch.filter(f"n % 2 = {n}").collect()) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class KeepsTheFrameBefore:
    """Reads the frame of the micro-batch before again: it is gone then, which must not run a step again."""

    single_action = False

    def __init__(self):
        self.before = None
        self.refused = 0

    def write(self, batch, _):
        if self.before is not None:
            try:
                self.before.collect()
            except Exception:
                self.refused += 1
        batch.count()
        self.before = batch


SINKS = {
    "threads": in_two_threads,
    "coalesce": lambda batch, _: batch.coalesce(1).collect(),
    "limit": lambda batch, _: batch.limit(1).collect(),
    "first row": lambda batch, _: batch.first(),
    "nothing": lambda batch, _: None,
    "filtered away": lambda batch, _: batch.filter(F.lit(False)).collect(),
    "twice": lambda batch, _: (batch.count(), batch.collect()),
    "with itself": lambda batch, _: batch.union(batch).join(batch.select("key"), "key").count(),
    "one partition": lambda batch, _: batch.rdd.mapPartitionsWithIndex(lambda i, it: it if i == 0 else []).count(),
    "the frame before": KeepsTheFrameBefore(),
    "one action of ours": DiscardSink(),
}


@pytest.mark.parametrize("name", some(SINKS, "twice", "threads", "the frame before"))
def test_hostile_sinks(spark, feed, tmp_path, name):
    """However a sink reads its batch, every row is counted once."""
    for seed in range(3):
        feed.add_random(seed)
    sink = SINKS[name]
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", sink)
    assert states(tmp_path / "db", "totals") == feed.totals()
    if isinstance(sink, KeepsTheFrameBefore):
        assert sink.refused == 2


@pytest.mark.usefixtures("tuning")
def test_output_is_the_running_state(spark, feed, tmp_path):
    """The sink sees each touched key once per micro-batch, with the state after it."""
    for seed in range(3):
        feed.add_random(seed)
    seen: dict = {}

    def sink(batch, _):
        rows = batch.collect()
        assert len(rows) == len({row.key for row in rows})
        seen.update({row.key: [row.n, row.total] for row in rows})

    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", sink)
    assert seen == feed.totals()


@pytest.mark.usefixtures("tuning", "retries")
def test_failed_tasks_are_undone(spark, feed, tmp_path):
    """A task that fails after some of its keys, or after applying them, is repeated without counting twice."""
    for seed in range(3):
        feed.add_random(seed, keys=200)
    marks = tmp_path / "marks"
    marks.mkdir()

    def flaky(key, rows, state):
        yield from add_up(key, rows, state)
        mark = Path(marks, key)
        if key in ("k7", "k57") and not mark.exists():
            mark.touch()
            raise RuntimeError("first attempt fails")

    run_to_end(feed.frame(spark).transform(totals_step(update=flaky)), tmp_path / "db")
    assert any(marks.iterdir())
    assert states(tmp_path / "db", "totals") == feed.totals()


@pytest.mark.usefixtures("tuning", "retries")
def test_downstream_failure_repeats_the_step(spark, feed, tmp_path):
    """A stage behind the step that fails makes Spark run the step's task again, after it had applied its changes."""
    for seed in range(3):
        feed.add_random(seed)
    marks = tmp_path / "marks"
    marks.mkdir()

    def fail_once(batches):
        from pyspark import TaskContext

        mark = Path(marks, f"{TaskContext.get().getLocalProperty('streaming.sql.batchId')}")
        yield from batches
        if not mark.exists():
            mark.touch()
            raise RuntimeError("first attempt fails")

    frame = feed.frame(spark).transform(totals_step())
    run_to_end(frame.mapInArrow(fail_once, frame.schema), tmp_path / "db")
    assert len(list(marks.iterdir())) == 3
    assert states(tmp_path / "db", "totals") == feed.totals()


PLANS = {
    "coalesce": lambda frame: frame.coalesce(1),
    "range repartition": lambda frame: frame.repartitionByRange(3, "key"),
    "hash repartition": lambda frame: frame.repartition(5, "n"),
    "filter": lambda frame: frame.filter("n > 3").select("key"),
}


@pytest.mark.parametrize("name", some(PLANS, "range repartition"))
def test_plans_behind_a_step(spark, feed, tmp_path, name):
    """What the plan does with a step's output, stages that run early included, does not change its state."""
    for seed in range(3):
        feed.add_random(seed)
    frame = PLANS[name](feed.frame(spark).transform(totals_step()))
    run_to_end(frame, tmp_path / "db", lambda batch, _: batch.collect())
    assert states(tmp_path / "db", "totals") == feed.totals()


@pytest.mark.long
def test_broadcast_of_a_steps_output(spark, feed, tmp_path):
    """A step whose output is broadcast runs a stage early; its state is exact all the same."""
    for seed in range(3):
        feed.add_random(seed)
    table = spark.createDataFrame([(f"k{n}", n) for n in range(40)], "key string, number long")
    stepped = feed.frame(spark).transform(totals_step())
    run_to_end(table.join(F.broadcast(stepped), "key"), tmp_path / "db", lambda batch, _: batch.collect())
    assert states(tmp_path / "db", "totals") == feed.totals()


@pytest.mark.long
@pytest.mark.usefixtures("tuning")
def test_parallel_steps(spark, feed, tmp_path):
    """Two steps side by side, their outputs united, keep to their own partitions."""
    for seed in range(3):
        feed.add_random(seed)
    source = feed.frame(spark)
    by_key = source.transform(totals_step("by key"))
    by_value = source.selectExpr("cast(value % 7 AS string) AS key", "1L AS value").transform(totals_step("by value"))
    run_to_end(by_key.union(by_value).coalesce(2), tmp_path / "db", lambda batch, _: batch.collect())
    assert states(tmp_path / "db", "by key") == feed.totals()
    counted: dict = {}
    for _, value in feed.rows:
        entry = counted.setdefault(str(value % 7), [0, 0])
        entry[0] += 1
        entry[1] += 1
    assert states(tmp_path / "db", "by value") == counted


@pytest.mark.usefixtures("tuning")
def test_chained_steps(spark, feed, tmp_path):
    """A step on the output of a step: the second sees every output of the first once."""
    for seed in range(4):
        feed.add_random(seed)
    outputs = []
    first = feed.frame(spark).transform(totals_step("first"))
    second = first.selectExpr("cast(n % 5 AS string) AS key", "total AS value").transform(totals_step("second"))
    run_to_end(second, tmp_path / "db", lambda batch, _: outputs.extend(batch.collect()))
    assert states(tmp_path / "db", "first") == feed.totals()
    assert sum(n for n, _ in states(tmp_path / "db", "second").values()) == sum(
        len({key for key, _ in feed.rows[start : start + 300]}) for start in range(0, 1200, 300)
    )


@pytest.mark.usefixtures("tuning")
def test_late_tasks_are_refused(spark, feed, tmp_path):
    """A task that still runs when its query has been stopped leaves nothing in the next run's state."""
    from recovery import LeaseLostError
    from recovery.base.ids import BatchId, PartitionIndex, StepId
    from recovery.storage.reach import reach
    from recovery.storage.seam import BatchCount, Changes
    from recovery.storage.sqlite import store as files_module

    addresses = []
    original = files_module.FilePartitions.address
    files_module.FilePartitions.address = lambda self, lease: addresses.append(original(self, lease)) or addresses[-1]
    try:
        feed.add_random(1)
        running = []

        def sink(batch, batch_id):
            store, _ = reach(addresses[0])
            running.append(store)
            store.read(StepId("totals"), BatchId(batch_id), {PartitionIndex(0): ("k1",)})[PartitionIndex(0)]

        run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", sink)
    finally:
        files_module.FilePartitions.address = original
    with pytest.raises(LeaseLostError):
        running[0].apply(
            StepId("totals"), BatchId(0), {PartitionIndex(0): [Changes(("[9,9]\x1fk1",), False)]}, BatchCount(1, 1)
        )
    fresh, _ = reach(addresses[0])
    with pytest.raises(LeaseLostError, match="gone"):
        fresh.read(StepId("totals"), BatchId(0), {PartitionIndex(0): ("k1",)})[PartitionIndex(0)]
    assert states(tmp_path / "db", "totals") == feed.totals()


def test_large_batches_are_chunked(spark, feed, tmp_path, monkeypatch):
    """More rows than a chunk, keys that span Arrow batches, and a key larger than a chunk give the same state."""
    rows = [(f"k{n:05}", 1) for n in range(3000)] + [("k01500", 1)] * 5000 + [("k02999", 1)] * 300
    feed.add(rows)
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")

    def small(key, rows, state):
        from recovery.spark.tasks import spool, step_task

        step_task.StepTask.chunk_rows, spool.SPOOL_BYTES = 250, 2000
        yield from add_up(key, rows, state)

    try:
        run_to_end(feed.frame(spark).transform(totals_step(update=small)), tmp_path / "db")
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before)
    assert states(tmp_path / "db", "totals") == feed.totals()


def test_the_timer_closes_an_idle_stream(spark, feed, tmp_path):
    """When no micro-batch comes, the epoch closes by itself once the interval has passed."""
    feed.add_random(1)
    init_partitions(tmp_path / "db", 2)
    frame = feed.frame(spark).transform(totals_step())
    query = start(frame, RecoveryConfig(tmp_path / "db", snapshot_interval=0.3), name="idle", sink=DiscardSink())
    try:
        deadline = time.monotonic() + 120
        while query.summary.epochs == 0 and time.monotonic() < deadline:
            query.await_termination(0.1)
        assert query.summary.epochs == 1
        assert states(tmp_path / "db", "totals") == feed.totals()
        feed.add_random(2)
        while query.summary.epochs == 1 and time.monotonic() < deadline:
            query.await_termination(0.1)
        assert states(tmp_path / "db", "totals") == feed.totals()
    finally:
        query.stop()


@pytest.mark.long
def test_rows_are_counted_when_the_stream_waits_in_between(spark, feed, tmp_path):
    """Spark reports an idle stream too, under the number of the next micro-batch: no row is missed or counted twice."""
    init_partitions(tmp_path / "db", 3)
    expected = 0
    with set_to(spark, {"spark.sql.streaming.noDataProgressEventInterval": "300"}):
        config = RecoveryConfig(tmp_path / "db", snapshot_interval=0.1)
        frame = feed.frame(spark).transform(totals_step())
        query = start(frame, config, name="waiting", sink=DiscardSink(), trigger=0.05)
        try:
            for seed in range(3):
                feed.add_random(seed, count=40)
                expected += 40
                deadline = time.monotonic() + 120
                while query.summary.rows < expected or not idle(query):
                    assert time.monotonic() < deadline, query.summary
                    query.await_termination(0.05)
        finally:
            query.stop()
    assert query.summary.rows == query.meter.totals.input_rows == expected
    assert states(tmp_path / "db", "totals") == feed.totals()


def idle(query) -> bool:
    """Whether Spark's newest report is of a stream that waits, under a number that is still to come."""
    progress = query.streaming_query.lastProgress
    return progress["batchId"] == query.summary.batches and not progress["numInputRows"]


@pytest.mark.long
@pytest.mark.parametrize("fold_s", some([0.0, 0.5, 3600.0], 0.5))
def test_epochs_that_follow_closely(spark, feed, tmp_path, monkeypatch, fold_s):
    """Each is closed after its micro-batch; they are logged, and folded now and then and in the end. What a reader is
    told meanwhile is the newest, and what the next run goes on from is all of it."""
    monkeypatch.setattr(closing, "LIMITS", FoldLimits(fold_s=fold_s))
    directory = tmp_path / "db"
    logged, read = [], []

    def look(batch, batch_id):
        paths = paths_of(directory)
        logged.append(sum(query(path, "SELECT count(DISTINCT epoch) FROM changes")[0][0] for path in paths))
        if batch_id == 6:
            read.append({key: json.loads(text) for key, text in read_step(paths, "totals")})

    for seed in range(9):
        feed.add_random(seed)
        if seed == 4:
            expected = feed.totals()
    frame = feed.frame(spark).transform(totals_step())
    summary = run_to_end(frame, directory, look)
    assert summary.epochs == summary.batches == 9
    assert states(directory, "totals") == feed.totals()
    assert (max(logged) > 0) == (fold_s > 0)
    # The epoch of micro-batch 5 may be written while 6 runs.
    assert all(expected.keys() <= found.keys() for found in read)
    assert sum(query(path, "SELECT count(*) FROM changes")[0][0] for path in paths_of(directory)) == 0
    feed.add_random(9)
    run_to_end(frame, directory)
    assert states(directory, "totals") == feed.totals()
    assert problems(directory) == []
