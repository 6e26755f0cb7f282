"""What is committed is one attempt's view: tasks that fail and are tried again, and runs that are killed."""

from __future__ import annotations

from zlib import crc32

import pytest
from pyspark import TaskContext

from recovery import Flow, LeaseLostError, UnsupportedPlanError, aggregate, quarantine, stateful
from recovery.aggregates import sum_
from recovery.base.ids import BatchId, PartitionIndex, StepId
from recovery.storage.reach import reach
from recovery.storage.seam import BatchCount, Changes
from recovery.storage.sqlite.store import FilePartitions
from tests.flows import bad_rows
from tests.spark.support import ROOT, run_to_end, states, totals_step
from tests.spark.test_crashes import finish, recovery_command
from tests.spark.test_quarantine import Job
from tests.stores import problems

FLOW = ROOT / "tests" / "flows" / "bad_rows.py"
LAST = 2
"""The attempt that counts."""


def fails(key: str, attempt: int) -> bool:
    return crc32(f"{key} {attempt}".encode()) % 2 == 0


def update(key, rows, state):
    """Fails for other keys in each attempt."""
    state.update([*(state.getOption or []), *(row.value for row in rows)])
    yield key, len(rows)
    if fails(key, TaskContext.get().attemptNumber()):
        raise ValueError("by chance")


def failing_behind(batches):
    """Fails when the step has applied its changes, until the last attempt."""
    yield from batches
    if TaskContext.get().attemptNumber() < LAST:
        raise RuntimeError("behind the step")


@pytest.mark.usefixtures("retries")
def test_a_task_that_is_tried_again(tmp_path, feed, spark, tuning):
    """A row is in quarantine, or it counts and has its output: as the attempt that passes has seen it."""
    keys = [f"k{number}" for number in range(40)]
    feed.add((key, number) for number, key in enumerate(keys))

    def make(path, output, fixed):
        def build(session):
            step = stateful("totals", key="key", update=update, output="key string, total long", on_error="quarantine")
            rows = bad_rows.pairs(session, path).transform(step)
            return rows.mapInArrow(failing_behind, rows.schema)

        return Flow("totals", build, bad_rows.FileSink(output))

    job = Job(tmp_path, feed, spark, make)
    bad = {key for key in keys if fails(key, LAST)}
    assert job.run().quarantined == len(bad) > 5
    assert states(job.directory, "totals") == {key: [n] for n, key in enumerate(keys) if key not in bad}
    assert {key for key, _ in job.rows()} == {*keys} - bad
    assert problems(job.directory) == []


@pytest.mark.any_spark
def test_an_earlier_attempt_of_a_step_behind_a_quarantine(tmp_path, feed, spark, monkeypatch):
    """The step has no quarantine, and its rows are what an attempt of the step before has let through: what a cut off
    attempt still writes there is refused."""
    feed.add((f"k{number}", number) for number in range(20))
    addresses, refused = [], []
    address = FilePartitions.address
    monkeypatch.setattr(
        FilePartitions, "address", lambda self, lease: addresses.append(address(self, lease)) or addresses[-1]
    )

    def sink(batch, batch_id):
        batch.collect()
        late, count = reach(addresses[0], attempt=1)
        changes = {PartitionIndex(index): [Changes(("99\x1flate",), timeouts=False)] for index in range(count)}
        with pytest.raises(LeaseLostError, match="attempt 1 of a task of micro-batch 0 is over"):
            late.apply(StepId("second"), BatchId(batch_id), changes, BatchCount(0, 0))
        late.release()
        refused.append(batch_id)

    first = feed.frame(spark).transform(totals_step("first", on_error="quarantine"))
    second = first.selectExpr("key", "total AS value").transform(totals_step("second"))
    run_to_end(second, tmp_path / "db", sink)
    assert refused == [0]
    assert len(states(tmp_path / "db", "second")) == 20


@pytest.mark.parametrize(
    "step",
    [
        totals_step(on_error="quarantine"),
        quarantine("bad", when="value > 1"),
        aggregate("sums", key="key", total=sum_("value"), on_error="quarantine", hold="no"),
    ],
)
def test_speculation_is_refused(tmp_path, feed, spark, monkeypatch, step):
    """Two attempts at the same time could each leave a part of what they have seen."""
    settings = spark.sparkContext._conf
    settings.set("spark.speculation", "true")
    try:
        with pytest.raises(UnsupportedPlanError, match="speculation is on"):
            run_to_end(feed.frame(spark).transform(step), tmp_path / "db")
    finally:
        settings.set("spark.speculation", "false")


@pytest.mark.parametrize("point", ["close.2.snaps", "close.3"])
@pytest.mark.parametrize("make", ["make_condition", "make_sums"])
@pytest.mark.long
def test_killed_while_rows_are_put_aside_and_replayed(tmp_path, feed, spark, make, point):
    """Whatever was closed counts, the rest comes again: each row once in the states."""
    feed.add([("a", 1), ("b", 2), ("c", 3)])
    feed.add([("a", 1000), ("b", 4), ("d", 7)])
    feed.add([("a", 5), ("b", 6), ("c", 7)])
    job = Job(tmp_path, feed, spark)
    target = f"{FLOW}:{make}({str(feed.path)!r}, {str(job.output)!r}, {str(job.fixed)!r})"
    options = ("-s", "0")
    finish(recovery_command(target, job.directory, *options, crash_at=f"{point}:5"))
    assert "Probable" not in finish(recovery_command(target, job.directory, *options))
    assert job.waiting().rows == (1 if make == "make_condition" else 2)
    job.replay()
    job.fixed.touch()
    options = (*options, *(() if make == "make_condition" else ("--keep-step", "totals")))
    again = 5 if point == "close.2.snaps" else 2
    finish(recovery_command(target, job.directory, *options, crash_at=f"{point}:{again}"))
    finish(recovery_command(target, job.directory, *options))
    assert job.waiting().rows == 0
    found = states(job.directory, "totals")
    if make == "make_condition":
        assert {key: sorted(values) for key, values in found.items()} == job.truth()
    else:
        totals = {key: (each["n"], each["total"] // bad_rows.MANY) for key, each in found.items()}
        assert totals == {"a": (3, 6), "b": (3, 12), "c": (2, 10), "d": (1, 7)}
    assert problems(job.directory) == []
