"""Small micro-batches whose rows one task gathers: results as where they are exchanged, and when it is done."""

from __future__ import annotations

import json
import re
import time

import pytest
from pyspark.sql import functions as F

from recovery import RecoveryConfig, aggregate, init_partitions, start, stateful
from recovery.aggregates import count, sum_
from recovery.spark.tuning import gathering
from recovery.spark.tuning.outcome import Outcome
from recovery.spark.tuning.tuning import VARIABLE
from recovery.values.keys import encode_key, partition_of
from tests.shares import first
from tests.spark.support import ODD_KEYS, add_up, run_to_end, states, totals_step
from tests.stores import paths_of
from tests.stores import query as query_file


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """What counts as few rows, as outside of tests, on a machine that is never slow."""
    monkeypatch.setattr(gathering, "FEW_ROWS", 2000)
    monkeypatch.setattr(gathering, "LONG_S", 60)


@pytest.fixture
def exchanged_first(monkeypatch):
    """A run's first micro-batch is exchanged, however little there is to read."""
    monkeypatch.setattr(gathering, "FIRST_BYTES", -1)


class Plans:
    """A sink that notes for each micro-batch how its plan brings rows together, once for each step."""

    def __init__(self, spark) -> None:
        self._spark = spark
        self.gathered: list[list[bool]] = []
        self.rows: list[tuple] = []

    def __call__(self, batch, _) -> None:
        self.rows += map(tuple, batch.collect())
        [query] = self._spark.streams.active
        plan = query._jsq.streamingQuery().lastExecution().executedPlan().toString()
        places = [line for line in plan.splitlines() if "Coalesce" in line or "Exchange" in line]
        self.gathered.append(["Coalesce 1" in line for line in places])


def test_small_ones_are_gathered(spark, feed, tmp_path):
    """Also the first. One that is known to be large is exchanged, and so is the one after it."""
    for seed in range(3):
        feed.add_random(seed)
    feed.add((f"k{number % 50}", number * 1_000_003) for number in range(100_000))
    for seed in range(3, 6):
        feed.add_random(seed)
    plans = Plans(spark)
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", plans)
    assert plans.gathered == [[True], [True], [True], [False], [False], [True], [True]]
    assert states(tmp_path / "db", "totals") == feed.totals()


def test_a_large_first_one_is_exchanged(spark, feed, tmp_path):
    """Before it nothing is known but the size of the files."""
    feed.add((f"k{number % 50}", number) for number in range(20_000))
    plans = Plans(spark)
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", plans)
    assert plans.gathered == [[False]]
    assert states(tmp_path / "db", "totals") == feed.totals()


def test_nothing_is_open_after_the_run(spark, feed, tmp_path):
    """Spark's Python workers live on, and have let go of the partitions: no log is left beside them."""
    for seed in range(4):
        feed.add_random(seed)
    plans = Plans(spark)
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", plans)
    assert plans.gathered[-1] == [True]
    assert [path.name for path in (tmp_path / "db").iterdir() if path.name.endswith(("-wal", "-shm"))] == []


@pytest.mark.long
@first("reader", ["of Python", "of the JVM"])
def test_a_large_one_that_was_not_foreseen(spark, tmp_path, monkeypatch, reader):
    """A source that does not tell its size, as those of Python: what comes after a small micro-batch is gathered,
    however much it is, and the first is not. One that tells it is exchanged if it is large."""
    if reader == "of Python":
        monkeypatch.setenv(VARIABLE, "-appended-lines")
    (tmp_path / "input").mkdir()
    lines = spark.readStream.format("appended").load(str(tmp_path / "input"))
    keyed = lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")
    init_partitions(tmp_path / "db", 3)
    plans = Plans(spark)
    config = RecoveryConfig(tmp_path / "db", snapshot_interval=0)
    written = 0

    def add(lines: int) -> None:
        """Move a file there when it is whole, so that it is one micro-batch."""
        nonlocal written
        (tmp_path / "file").write_text("".join(f"k{each % 5000},{each}\n" for each in range(lines)))
        (tmp_path / "file").rename(tmp_path / "input" / str(written))
        written += lines

    # Before the start: a first scan that finds nothing is a micro-batch of its own.
    add(5)
    query = start(keyed.transform(totals_step()), config, sink=plans, name="test")
    for lines in (0, 5, 100_000):
        if lines:
            add(lines)
        deadline = time.monotonic() + 60
        while query.is_active and query.summary.rows < written and time.monotonic() < deadline:
            time.sleep(0.05)
    query.stop()
    assert plans.gathered == [[reader == "of the JVM"], [True], [reader == "of Python"]]
    n = {key: n for key, (n, _) in states(tmp_path / "db", "totals").items()}
    assert n == {f"k{each}": 20 + 2 * (each < 5) for each in range(5000)}


@pytest.mark.long
@first("columns", ["one", "two"])
@pytest.mark.usefixtures("exchanged_first")
def test_odd_keys(spark, tmp_path, columns):
    """The task computes of a key what Spark does where rows are exchanged."""
    for number in range(3):
        rows = [(key, number) for key in ODD_KEYS]
        spark.createDataFrame(rows, "key string, value long").coalesce(1).write.parquet(str(tmp_path / f"in/{number}"))
    files = spark.readStream.schema("key string, value long").option("maxFilesPerTrigger", 1)
    frame = files.parquet(str(tmp_path / "in/*"))
    key = "key" if columns == "one" else ["key", F.concat("key", F.lit("é")).alias("other")]

    def counted(_, rows, state):
        state.update((state.get if state.exists else 0) + len(rows))

    plans = Plans(spark)
    step = stateful("totals", key=key, update=counted, output="key string")
    run_to_end(frame.transform(step), tmp_path / "db", plans)
    assert plans.gathered == [[False], [True], [True]]
    found = states(tmp_path / "db", "totals")
    # A key that two partitions held would have a part of its count in each.
    assert set(found.values()) == {3}
    names = set(found) if columns == "one" else {encode_key(json.loads(key)[0]) for key in found}
    assert names == set(map(encode_key, ODD_KEYS))


def test_tasks_are_no_more_than_run_concurrently(spark, feed, tmp_path, monkeypatch):
    """Rows of seven partitions are exchanged over two tasks; each key has its state in its own partition."""
    monkeypatch.setattr(gathering, "FEW_ROWS", -1)
    monkeypatch.setattr(gathering, "FIRST_BYTES", -1)
    for seed in range(3):
        feed.add_random(seed)
    exchanges: list[str] = []

    def note(batch, _) -> None:
        [query] = spark.streams.active
        plan = query._jsq.streamingQuery().lastExecution().executedPlan().toString()
        exchanges.extend(line for line in plan.splitlines() if "Exchange" in line)

    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", note, partitions=7)
    assert spark.sparkContext.defaultParallelism == 2
    assert len(exchanges) == 3
    assert all(re.search(r", 2\)?, REPARTITION_BY_NUM", line) for line in exchanges), exchanges
    assert states(tmp_path / "db", "totals") == feed.totals()
    for number, path in enumerate(paths_of(tmp_path / "db")):
        keys = [key for (key,) in query_file(path, "SELECT state_key FROM snaps WHERE step_id = 'totals'")]
        assert keys
        assert {partition_of(key, 7) for key in keys} == {number}


@pytest.mark.long
def test_order_within_a_key(spark, feed, tmp_path):
    """Spark sorts in the one task, too."""
    for number in range(4):
        feed.add((f"k{value % 7}", (value * 37) % 101 + 101 * number) for value in range(101))

    def collected(key, rows, state):
        state.update([*(state.get if state.exists else []), *(row.value for row in rows)])
        yield key, len(rows), 0

    plans = Plans(spark)
    run_to_end(feed.frame(spark).transform(totals_step(update=collected, order_by="value")), tmp_path / "db", plans)
    assert plans.gathered == [[True], [True], [True], [True]]
    for key, values in states(tmp_path / "db", "totals").items():
        assert values == sorted(value for name, value in feed.rows if name == key)


@pytest.mark.long
def test_steps_in_a_chain_and_side_by_side(spark, feed, tmp_path):
    """Each has its own place; with a declared aggregate, whose rows are combined before."""
    for seed in range(4):
        feed.add_random(seed)
    chain = feed.frame(spark).transform(totals_step("first"))
    chain = chain.select("key", F.lit(1).cast("long").alias("value")).transform(totals_step("second"))
    side = feed.frame(spark).transform(aggregate("third", key="key", n=count(), total=sum_("value")))
    plans = Plans(spark)
    run_to_end(chain.select("key", "n", "total").union(side), tmp_path / "db", plans)
    # The driver may run an aggregate, if the first micro-batch is exchanged.
    assert [all(each) for each in plans.gathered] == [False, True, True, True]
    assert {len(each) for each in plans.gathered} == {3}
    assert states(tmp_path / "db", "first") == feed.totals()
    assert {key: [s["n"], s["total"]] for key, s in states(tmp_path / "db", "third").items()} == feed.totals()
    calls = {key: total for key, (_, total) in states(tmp_path / "db", "second").items()}
    files = [feed.rows[start : start + 300] for start in range(0, 1200, 300)]
    assert calls == {key: sum(any(key == k for k, _ in rows) for rows in files) for key in feed.totals()}


@pytest.mark.long
def test_timeouts(spark, feed, tmp_path):
    """Of all partitions, in one task."""
    for number in range(3):
        feed.add([(f"k{number}-{each}", 1) for each in range(30)])

    def expiring(key, rows, state):
        if state.hasTimedOut:
            state.remove()
            yield key, -1, -1
            return
        state.update(len(rows))
        state.setTimeoutDuration(1)
        yield key, 1, 1

    plans = Plans(spark)
    run_to_end(feed.frame(spark).transform(totals_step(update=expiring)), tmp_path / "db", plans)
    assert [each[0] for each in plans.gathered[1:]] == [True] * (len(plans.gathered) - 1)
    gone = {key for key, n, _ in plans.rows if n == -1}
    assert {key for key, _ in feed.rows} == gone | set(states(tmp_path / "db", "totals"))
    assert len(gone) >= 60


@first("wide", ["repartition", "hint", "state"])
def test_what_is_below_continues_in_parallel(spark, feed, tmp_path, wide):
    """Where the flow has an exchange or state of Spark's own before the step, there is another one behind it."""
    for seed in range(3):
        feed.add_random(seed)
    frame = feed.frame(spark)
    if wide == "state":
        frame = frame.dropDuplicates(["key", "value"])
    else:
        frame = frame.repartition(3) if wide == "repartition" else frame.hint("repartition")
    plans = Plans(spark)
    run_to_end(frame.transform(totals_step()), tmp_path / "db", plans)
    assert plans.gathered == [[False, False]] * 3


@pytest.mark.long
def test_what_takes_long_is_exchanged(spark, feed, tmp_path, monkeypatch):
    """For some micro-batches: then it is tried again."""
    monkeypatch.setattr(gathering, "PAUSE", 2)
    monkeypatch.setattr(gathering, "LONG_S", 0.3)
    for _ in range(6):
        feed.add([(f"k{number}", 1) for number in range(20)])

    def slow(key, rows, state):
        time.sleep(0.05)
        yield from add_up(key, rows, state)

    plans = Plans(spark)
    run_to_end(feed.frame(spark).transform(totals_step(update=slow)), tmp_path / "db", plans)
    assert plans.gathered == [[True], [True], [False], [False], [True], [False]]
    assert states(tmp_path / "db", "totals") == feed.totals()


@pytest.mark.usefixtures("retries")
def test_a_task_that_fails_between_partitions(spark, feed, tmp_path):
    """What it has applied to the partitions before is undone when it runs again."""
    for seed in range(4):
        feed.add_random(seed, keys=20)
    marker = tmp_path / "failed"

    def fragile(key, rows, state):
        if state.exists and key == last and not marker.exists():
            marker.touch()
            raise RuntimeError("lost")
        yield from add_up(key, rows, state)

    last = max((f"k{number}" for number in range(20)), key=lambda key: (partition_of(key, 3), key))
    run_to_end(feed.frame(spark).transform(totals_step(update=fragile)), tmp_path / "db")
    assert marker.exists()
    assert states(tmp_path / "db", "totals") == feed.totals()


@pytest.mark.usefixtures("retries")
def test_a_task_that_runs_again_with_other_keys(spark, feed, tmp_path):
    """What is below the one task runs again with it, and may give others: what the first attempt left is undone."""
    for _ in range(3):
        feed.add([("x", 1), ("last", 1)])
    marker = tmp_path / "failed"
    of = {partition: next(k for k in map(str, range(99)) if partition_of(k, 3) == partition) for partition in range(3)}

    def fragile(key, rows, state):
        if key == of[2] and state.exists and not marker.exists():
            marker.touch()
            raise RuntimeError("lost")
        yield from add_up(key, rows, state)

    @F.udf("string")
    def of_attempt(key):
        if key == "last":
            return of[2]
        return of[1] if marker.exists() else of[0]

    frame = feed.frame(spark).withColumn("key", of_attempt.asNondeterministic()("key"))
    plans = Plans(spark)
    run_to_end(frame.transform(totals_step(update=fragile)), tmp_path / "db", plans)
    assert marker.exists()
    assert plans.gathered == [[True], [True], [True]]
    assert states(tmp_path / "db", "totals") == {of[0]: [1, 1], of[1]: [2, 2], of[2]: [3, 3]}


@pytest.mark.long
def test_a_plan_that_spark_runs_twice(spark, feed, tmp_path):
    """To divide rows by ranges it looks at samples first, in a job of its own, for which the one task runs, too: what
    that left for keys that do not come again is undone."""
    for _ in range(3):
        feed.add([("x", 1)])
    times = tmp_path / "times"
    of = {partition: next(k for k in map(str, range(99)) if partition_of(k, 3) == partition) for partition in range(3)}

    @F.udf("string")
    def of_time(key):
        with times.open("a") as file:
            file.write(key)
        return of[times.stat().st_size % 2]

    frame = feed.frame(spark).withColumn("key", of_time.asNondeterministic()("key")).transform(totals_step())
    plans = Plans(spark)
    run_to_end(frame.repartitionByRange(2, "key"), tmp_path / "db", plans)
    assert [any(each) for each in plans.gathered] == [True, True, True]
    assert sum(n for n, _ in states(tmp_path / "db", "totals").values()) == 3
    assert times.stat().st_size > 3, "it ran more often than there were rows"


@pytest.mark.long
def test_a_large_one_beside_timeouts(spark, feed, tmp_path):
    """What the files tell of their size counts, although the ticks beside them tell nothing."""
    for seed in range(2):
        feed.add_random(seed)
    feed.add((f"k{number % 50}", number * 1_000_003) for number in range(100_000))

    def waiting(key, rows, state):
        yield from add_up(key, rows, state)
        state.setTimeoutDuration(3_600_000)

    plans = Plans(spark)
    run_to_end(feed.frame(spark).transform(totals_step(update=waiting)), tmp_path / "db", plans)
    assert plans.gathered == [[False], [True], [False]]
    assert states(tmp_path / "db", "totals") == feed.totals()


class Expected:
    """In the place of the planner's strategy: the last value that it got."""

    few = False

    def gather(self, _: str, most_bytes: int, unreported_bytes: int) -> None:
        self.few = unreported_bytes <= most_bytes

    def exchange(self, _: str) -> None:
        self.few = False


def test_when_it_is_tried_again(spark, monkeypatch):
    """What takes long gathered, and longer than exchanged, is exchanged for ever longer; what does not is gathered."""
    expected = Expected()
    monkeypatch.setattr(gathering, "planner_strategy", lambda *_: expected)
    monkeypatch.setattr(gathering, "LONG_S", 0.25)

    def exchanged(gathered_s: float, exchanged_s: float, count: int) -> int:
        found = 0
        for _ in range(count):
            found += not expected.few
            learning.learn(Outcome(rows=100, keys=100, seconds=gathered_s if expected.few else exchanged_s))
        return found

    learning = gathering.Gathering(spark, ["hash"])
    assert exchanged(0.1, 0.2, 100) == 1
    learning = gathering.Gathering(spark, ["hash"])
    assert exchanged(0.3, 0.5, 1000) == 1 + gathering.PAUSE
    learning = gathering.Gathering(spark, ["hash"])
    assert exchanged(0.3, 0.2, 1000) > 990
    # Of keys that timed out there are no rows.
    learning.learn(Outcome(rows=gathering.FEW_ROWS + 1, keys=1, seconds=0.1))
    assert not expected.few


@pytest.mark.long
@pytest.mark.usefixtures("exchanged_first")
def test_the_next_run_of_a_frame_knows_nothing(spark, feed, tmp_path):
    """What was expected at the end of a run is forgotten: the first micro-batch of the next may be large."""
    frame = feed.frame(spark).transform(totals_step())
    for number in range(2):
        for seed in range(2):
            feed.add_random(10 * number + seed)
        plans = Plans(spark)
        init_partitions(tmp_path / f"db-{number}", 2)
        config = RecoveryConfig(tmp_path / f"db-{number}", snapshot_interval=0)
        start(frame, config, sink=plans, name="test", trigger="available-now").await_termination()
        assert plans.gathered == [[False], *[[True]] * (2 * number + 1)]
        assert states(tmp_path / f"db-{number}", "totals") == feed.totals()
