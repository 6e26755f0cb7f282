"""Rows that a condition puts into quarantine: they wait, the others pass; replayed rows are looked at again."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as F

from recovery import ConfigurationError, QuarantineError, RecoveryConfig, aggregate, quarantine, start
from recovery.aggregates import sum_
from recovery.cli import main
from recovery.idle.code import CodeWatch
from recovery.operational.steps.quarantine import Wanted, entries_of
from recovery.spark.jvm.session import gateway_port, jobs_begun
from recovery.storage.store import Store
from recovery.values.quarantined_rows import unpacked
from tests.flows import bad_rows
from tests.shares import first
from tests.spark.test_quarantine import Job
from tests.stores import content, problems


@pytest.fixture
def job(tmp_path, feed, spark):
    feed.add([("a", 1), ("b", 2), ("c", 3)])
    feed.add([("a", 1000), ("b", 4), ("d", 2001)])
    feed.add([("a", 5), ("b", 6), ("c", 1007)])
    return Job(tmp_path, feed, spark, bad_rows.make_condition)


def waiting(job) -> list[tuple[int, str, list[int]]]:
    """The entries: attempts, the error, and the values of the rows."""
    at = Store(job.directory).at()
    return [
        (entry.attempts, entry.failure.text, unpacked(entry.data, AssertionError)["value"].to_pylist())
        for _, _, entry in entries_of(at, Wanted().keys(at))
    ]


def test_rows_wait_and_pass_once_when_they_are_replayed(job, tuning):
    """Before newer rows, in their order; those for which the condition still holds stay, with one more attempt."""
    summary = job.run()
    assert (summary.batches, summary.quarantined) == (3, 3)
    assert waiting(job) == [(1, "when: value >= 1000", [1000, 2001]), (1, "when: value >= 1000", [1007])]
    assert job.totals() == {"a": [1, 5], "b": [2, 4, 6], "c": [3]}
    job.replay()
    assert job.run().quarantined == 3, "the condition is the same"
    assert [attempts for attempts, _, _ in waiting(job)] == [2, 2]
    job.fixed.touch()
    job.replay()
    job.feed.add([("a", 9)])
    assert job.run().quarantined == 1
    assert waiting(job) == [(3, "when: value >= 2000", [2001])]
    assert job.totals() == {"a": [1, 5, 9, 1000], "b": [2, 4, 6], "c": [3, 1007]}
    assert problems(job.directory) == []


@pytest.mark.long
def test_replayed_rows_need_no_new_input(job):
    """Replayed rows wake the run; a rewind takes the replay back."""
    job.run()
    job.fixed.touch()
    job.replay()
    summary = job.run()
    assert (summary.batches, summary.quarantined) == (1, 1)
    after = job.totals()
    job.run(resume_after=1)
    assert waiting(job) == [(1, "when: value >= 2000", [2001])]
    assert job.totals() == after
    assert problems(job.directory) == []


@pytest.mark.any_spark
def test_the_commands_show_what_waits(job):
    """The condition is the error; the rows of the step have no key."""
    job.run()
    shown = CliRunner().invoke(main, ["quarantine", "show", str(job.directory)]).stdout
    assert "step 'large', key ''" in shown
    assert "when: value >= 1000 (1 attempt)" in shown
    assert '{"key":"a","value":1000}' in shown
    dropped = CliRunner().invoke(main, ["quarantine", "drop", str(job.directory), "--no-save", "--yes"])
    assert "dropped 3 rows of 1 key" in dropped.output
    assert job.run().quarantined == 0


@first(
    ("when", "passes"),
    [
        (lambda: F.col("value") > 5, [1, None]),
        ("NULL", [1, 9, None]),
        ("true", []),
        ("value > 5", [1, None]),
        ("coalesce(value > 5, true)", [1]),
        ("value IS NULL", [1, 9]),
    ],
    count=3,
)
def test_a_condition_that_is_null_is_not_true(tmp_path, feed, spark, when, passes):
    """The row passes, as in WHERE."""
    (feed.path / "rows.txt").write_text("a,1\nb,9\nc,x\n")
    job = Job(tmp_path, feed, spark)
    seen = []
    rows = spark.readStream.text(str(feed.path)).selectExpr("try_cast(split(value, ',')[1] AS long) AS value")
    start(
        rows.transform(quarantine("bad", when=when() if callable(when) else when)),
        RecoveryConfig(job.directory),
        name="conditions",
        sink=lambda batch, _: seen.extend(row.value for row in batch.collect()),
        trigger="available-now",
    ).await_termination()
    assert seen == passes
    assert job.waiting().rows == 3 - len(passes)


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (lambda frame: quarantine("", when="true"), "not a step id"),
        (lambda frame: quarantine("bad", when=" "), "is not a condition"),
        (lambda frame: quarantine("bad", when=lambda row: True), "is not a condition"),
        (lambda frame: quarantine("bad", when="value"), "has the type bigint"),
        (lambda frame: quarantine("bad", when="missing > 1"), "missing"),
        (lambda frame: quarantine("bad", when="value >"), "value >"),
        (lambda frame: quarantine("bad", when=frame["value"] > 1), "names columns by their frame"),
        (lambda frame: quarantine("bad", when="t.value > 1"), "names columns by their frame"),
    ],
)
def test_conditions_that_cannot_be_are_refused(feed, spark, step, found):
    """When the step is declared or applied, with what is wrong."""
    frame = feed.frame(spark).alias("t")
    with pytest.raises(ConfigurationError, match=found):
        frame.transform(step(frame))


@pytest.mark.parametrize(
    "step",
    [quarantine("bad", when="value > 5"), aggregate("totals", key="key", n=sum_("value"), on_error="quarantine")],
    ids=["condition", "aggregate"],
)
def test_the_step_reads_nothing_while_it_is_built(feed, spark, step):
    """So a run with --if-new-input is skipped in spite of it."""
    watch = CodeWatch({})
    watch.building(lambda session: feed.frame(session).transform(step), gateway_port, jobs_begun)(spark)
    assert watch.code().why_not == ""


def test_a_frame_that_was_built_before_does_not_replay(job, spark):
    """Spark could not look at the rows again. Refused, and nothing is changed."""
    job.run()
    job.replay()
    before = content(job.directory)
    flow = job.make(str(job.feed.path), str(job.output), str(job.fixed))
    with pytest.raises(QuarantineError, match="its frame was built before"):
        start(flow.build(spark), RecoveryConfig(job.directory), sink=flow.sink, name="totals")
    assert content(job.directory) == before


@pytest.mark.long
def test_rows_of_another_type_stay(job, spark):
    """The input has other columns since: the error says so, and the rows are as before."""
    job.run()
    job.replay()

    def make(path, output, fixed):
        flow = bad_rows.make_condition(path, output, fixed)
        rows = lambda session: bad_rows.pairs(session, path).selectExpr("key", "value > 0 AS value")  # noqa: E731
        return type(flow)("totals", lambda session: rows(session).transform(quarantine("large", when="value")),
                          flow.sink)  # fmt: skip

    job.make = make
    job.run(drop_steps=("totals",))
    assert [(attempts, "types" in error) for attempts, error, _ in waiting(job)] == [(2, True), (2, True)]
