"""Sinks that read a batch once get its plan instead of a copy; whatever they then do, state is exact."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recovery import RecoveryError
from recovery.spark.jvm.java_sources import new_for_tasks
from recovery.spark.tuning import row_width
from recovery.spark.tuning.lending import Lending
from recovery.spark.tuning.row_width import LIMIT
from recovery.spark.tuning.tuning import VARIABLE
from tests.shares import first, some
from tests.spark.support import add_up, run_to_end, states, totals_step


@pytest.fixture
def loans(monkeypatch):
    """Whether each batch that was lent runs without the limit of its Arrow batches."""
    found: list[bool] = []
    lent = Lending.lent

    def noted(self, batch, *, unlimited):
        found.append(unlimited)
        return lent(self, batch, unlimited=unlimited)

    monkeypatch.setattr(Lending, "lent", noted)
    return found


@pytest.fixture(params=some(["gathered", "exchanged"], "gathered"))
def plan(request, monkeypatch):
    """Small micro-batches in one task, or in one for each partition."""
    monkeypatch.setenv(VARIABLE, "" if request.param == "gathered" else "-gathering")
    return request.param


class Counting:
    """The function of `totals_step`, with a note of each key it is called for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, key, rows, state):
        with self.path.open("a") as file:
            file.write(f"{key}\n")
        yield from add_up(key, rows, state)

    def calls(self) -> int:
        return len(self.path.read_text().splitlines())


def batches(feed, count=3):
    for seed in range(count):
        feed.add_random(seed)


def collect(batch, _):
    batch.collect()


def in_threads(batch, _):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: sorted(batch.collect()), range(2))
    assert first == second


def in_one_thread(batch, _):
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(batch.collect).result()


ONCE = {
    "collect": collect,
    "write": lambda batch, _: batch.write.format("noop").mode("overwrite").save(),
    "pandas": lambda batch, _: batch.toPandas(),
    "foreachPartition": lambda batch, _: batch.foreachPartition(list),
    "aggregate": lambda batch, _: batch.groupBy("n").count().collect(),
    "cached": lambda batch, _: (batch.cache().count(), batch.collect(), batch.unpersist()),
    "coalesce": lambda batch, _: batch.coalesce(1).collect(),
    "in another thread": in_one_thread,
}


@pytest.mark.parametrize("name", some(ONCE, "in another thread"))
def test_one_reading(spark, feed, tmp_path, loans, plan, name):
    """It gets the plan from its second micro-batch on, and no function of a step is called twice."""
    batches(feed)
    update = Counting(tmp_path / "calls")
    summary = run_to_end(feed.frame(spark).transform(totals_step(update=update)), tmp_path / "db", ONCE[name])
    assert loans == [False, False]
    assert states(tmp_path / "db", "totals") == feed.totals()
    assert update.calls() == summary.states


def swallowing(batch, _):
    with pytest.raises(Exception, match="on purpose"):
        batch.select(F.raise_error(F.lit("on purpose"))).collect()


OTHERWISE = {
    "nothing": lambda batch, _: None,
    "first row": lambda batch, _: batch.first(),
    "limit": lambda batch, _: batch.limit(1).collect(),
    "twice": lambda batch, _: (batch.count(), batch.collect()),
    "threads": in_threads,
    "with itself": lambda batch, _: batch.union(batch).join(batch.select("key"), "key").count(),
    "sorted": lambda batch, _: batch.orderBy("n").collect(),
    "filtered away": lambda batch, _: batch.filter(F.lit(False)).collect(),
    "an error that it catches": swallowing,
    "cartesian": lambda batch, _: batch.crossJoin(batch.select("n")).count(),
}


@pytest.mark.parametrize("name", some(OTHERWISE, "threads"))
def test_another_reading_later(spark, feed, tmp_path, loans, plan, name):
    """A sink that has the plan and reads it otherwise leaves exact state, and gets copies from then on."""
    batches(feed, 4)

    def sink(batch, batch_id):
        (OTHERWISE[name] if batch_id == 1 else collect)(batch, batch_id)

    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", sink)
    # To sort a single partition, Spark reads it once.
    assert len(loans) == (3 if (name, plan) == ("sorted", "gathered") else 1)
    assert states(tmp_path / "db", "totals") == feed.totals()


@pytest.mark.parametrize("name", some(OTHERWISE, "first row"))
def test_another_reading_always(spark, feed, tmp_path, monkeypatch, loans, name):
    """Such a sink never has the plan, so no function of a step is called twice."""
    monkeypatch.setenv(VARIABLE, "-gathering")
    batches(feed)
    update = Counting(tmp_path / "calls")
    frame = feed.frame(spark).transform(totals_step(update=update))
    summary = run_to_end(frame, tmp_path / "db", OTHERWISE[name])
    assert loans == []
    assert update.calls() == summary.states


def test_a_step_below_an_exchange(spark, feed, tmp_path, loans):
    """A thread of the sink could not start the stage of the step."""
    batches(feed)
    frame = feed.frame(spark).transform(totals_step())
    run_to_end(frame.repartition(2, "n"), tmp_path / "db", collect)
    assert loans == []


def test_a_filter_above_the_step(spark, feed, tmp_path, loans):
    batches(feed)
    run_to_end(feed.frame(spark).transform(totals_step()).filter("n > 3").select("key"), tmp_path / "db", collect)
    assert loans == [False, False]


@first(("plan", "lent"), [("gathered", 2), ("exchanged", 0)], indirect=["plan"])
def test_partitions_one_after_the_other(spark, feed, tmp_path, loans, plan, lent):
    """A job for each partition would run the step's tasks in turn."""
    batches(feed)
    frame = feed.frame(spark).transform(totals_step())
    run_to_end(frame, tmp_path / "db", lambda batch, _: list(batch.toLocalIterator()))
    assert len(loans) == lent
    assert states(tmp_path / "db", "totals") == feed.totals()


def test_the_frame_before_is_refused(spark, feed, tmp_path, loans):
    """It cannot run the step again for a micro-batch that is over."""
    batches(feed, 4)
    kept: list[DataFrame] = []

    def sink(batch, _):
        for before in kept:
            with pytest.raises(Exception, match=r"after its sink had returned|checkpoint|not find"):
                before.collect()
        kept.append(batch)
        batch.collect()

    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", sink)
    assert len(loans) == 3
    assert states(tmp_path / "db", "totals") == feed.totals()


@pytest.mark.long
def test_an_error_of_the_step(spark, feed, tmp_path, loans):
    """It names the step as it does when rows are copied, and the next run continues."""
    batches(feed, 1)
    feed.add([("bad", 1)])

    def failing(key, rows, state):
        if key == "bad":
            raise ValueError("bad luck")
        yield from add_up(key, rows, state)

    with pytest.raises(RecoveryError, match=r"step 'totals'.*bad luck"):
        run_to_end(feed.frame(spark).transform(totals_step(update=failing)), tmp_path / "db", collect)
    assert len(loans) == 1
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", collect)
    assert states(tmp_path / "db", "totals") == feed.totals()


def test_switched_off(spark, feed, tmp_path, monkeypatch, loans):
    monkeypatch.setenv(VARIABLE, "-lending")
    batches(feed)
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", collect)
    assert loans == []


@pytest.mark.long
def test_state_of_sparks_own_is_not_repeated(spark, feed, tmp_path, loans):
    batches(feed)
    run_to_end(feed.frame(spark).groupBy("key").count(), tmp_path / "db", collect, output_mode="update")
    assert loans == []


def test_large_batches_run_without_the_limit(spark, feed, tmp_path, monkeypatch, loans):
    """As their copies do."""
    monkeypatch.setattr(row_width, "MANY_ROWS", 100)
    batches(feed)
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", collect)
    assert loans == [True, True]


def sizes(rows):
    """The size of each Arrow batch."""
    for each in rows:
        yield pa.record_batch({"n": pa.array([each.num_rows])})


@pytest.mark.long
@first("own", [None, "64m"])
def test_a_setting_below_the_loan(spark, own):
    """What the sink adds keeps the session's settings, and so does the plan if the session has that one."""
    lending = new_for_tasks(spark, "tuning/Lending.java", "recovery.Lending")
    frame = spark.range(0, 2000, 1, 1).mapInArrow(sizes, "n long")
    spark.sparkContext.setLocalProperty(LIMIT, own)
    try:
        loan = lending.lend(frame._jdf, LIMIT, "1000")
        lent = DataFrame(loan.frame(), spark)
        found = lent.collect()
        above = lent.mapInArrow(sizes, "n long").collect()
        assert loan.end() == "AGAIN"
    finally:
        spark.sparkContext.setLocalProperty(LIMIT, None)
    assert (len(found) > 10) == (own is None)
    assert [each.n for each in above] == [len(found)]
