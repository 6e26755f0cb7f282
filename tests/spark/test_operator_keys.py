"""A Spark job stops halfway, its state moves into a step, and a flow goes on behind it: totals are those of all input.

One table of jobs: both APIs, each kind of state and of time, and the state stores."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import GroupedData, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout

from recovery import StepChangedError, init_partitions, stateful
from recovery.base.clock import SystemClock
from recovery.errors import ConfigurationError, StateValueError, UnsupportedPlanError
from recovery.operators.into_step import IntoStep, import_into_step
from recovery.spark.sources.operator_keys import is_text, keys_reader
from recovery.spark.steps.stateful import stored_type
from recovery.storage.snapshot import snapshot_at
from recovery.storage.store import Store
from recovery.values.keys import encode_key
from tests.flows.operators import STORES
from tests.operators.support import held, place
from tests.spark.support import ODD_KEYS, run_to_end, set_to
from tests.stores import problems

HOUR_MS = 3_600_000
COLUMNS = "n long, total long"
OUTPUT = "key string, n long, total long"
CLOCK = SystemClock()


def added(before, frames):
    n, total = before
    for frame in frames:
        n, total = n + len(frame), total + int(frame["value"].sum())
    return n, total


def told(key, n, total):
    yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})


def grouped(key, frames, state):
    n, total = added(state.get if state.exists else (0, 0), frames)
    state.update((n, total))
    return told(key, n, total)


def grouped_for_a_while(key, frames, state):
    state.setTimeoutDuration(1)
    return grouped(key, frames, state)


def grouped_until(key, frames, state):
    yield from grouped(key, frames, state)
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + HOUR_MS)


class Processor(StatefulProcessor):
    """Count and total in one variable."""

    ttl: int | None = None

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.totals = handle.getValueState("totals", COLUMNS, self.ttl)

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # noqa: N802 - Spark calls it so
        n, total = added(self.totals.get() if self.totals.exists() else (0, 0), rows)
        self.totals.update((n, total))
        return told(key, n, total)

    def close(self) -> None:
        pass


class Expiring(Processor):
    """What has outlived its lifetime is absent."""

    ttl = HOUR_MS


class Timed(Processor):
    """One timer a key."""

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # noqa: N802
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(timers.getCurrentProcessingTimeInMs() + HOUR_MS)
        return super().handleInputRows(key, rows, timers)


class TimedTwice(Timed):
    """Two timers a key."""

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # noqa: N802
        yield from super().handleInputRows(key, rows, timers)
        self.handle.registerTimer(timers.getCurrentProcessingTimeInMs() + 2 * HOUR_MS)


class Several(StatefulProcessor):
    """The count in a value, every value in a list, and how often it came in a map; no value for key k1."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")
        self.every = handle.getListState("every", "value long", HOUR_MS)
        self.often = handle.getMapState("often", "value long", "n long")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # noqa: N802
        n = self.count.get()[0] if self.count.exists() else 0
        for frame in rows:
            n += len(frame)
            for value in frame["value"].tolist():
                self.every.appendValue((value,))
                found = self.often.getValue((value,))
                self.often.updateValue((value,), ((found[0] if found else 0) + 1,))
        if key[0] != "k1":
            self.count.update((n,))
        return iter(())

    def close(self) -> None:
        pass


class ByRow(StatefulProcessor):
    """Like Processor, for transformWithState, which gives rows."""

    def init(self, handle: Any) -> None:
        self.totals = handle.getValueState("totals", COLUMNS)

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # noqa: N802
        n, total = self.totals.get() if self.totals.exists() else (0, 0)
        for row in rows:
            n, total = n + 1, total + row.value
        self.totals.update((n, total))
        yield Row(key=key[0], n=n, total=total)

    def close(self) -> None:
        pass


def of_groups(function, timeout):
    def build(frame):
        timed = frame.withColumn("t", F.timestamp_seconds("value")).withWatermark("t", "10 seconds")
        source = timed if timeout == GroupStateTimeout.EventTimeTimeout else frame
        return source.groupBy("key").applyInPandasWithState(function, OUTPUT, COLUMNS, "update", timeout)

    return build


def of_pandas(processor, mode):
    return lambda frame: frame.groupBy("key").transformWithStateInPandas(processor(), OUTPUT, "update", mode)


def of_rows(frame):
    return frame.groupBy("key").transformWithState(ByRow(), OUTPUT, "update", "None")


def added_later(key, rows, state):
    """The step that goes on: what times out is shown, and stays."""
    n, total = state.get if state.exists else (0, 0)
    n, total = n + len(rows), total + sum(row.value for row in rows)
    state.update((n, total))
    if state.hasTimedOut:
        yield key, -n, -total
    else:
        yield key, n, total


@dataclass
class Kept:
    n: int
    values: list[int]
    until: int | None = None


def kept_later(key, rows, state):
    """As above, with every value in the state."""
    values = [*(state.get.values if state.exists else []), *(row.value for row in rows)]
    state.update(Kept(len(values), values))
    yield key, len(values), sum(values)


def from_several(key, state):
    n = state["count"].n if state["count"] is not None else len(state["every"])
    assert Counter(value for (value,) in state["every"]) == {each.value: n for each, (n,) in state["often"].items()}
    return Kept(n, [each.value for each in state["every"]])


def from_several_with_times(key, state, times):
    return from_several(key, state), None


def columns(state):
    return None if state is None else (state.n, state.total)


def until_in_state(key, state, times):
    return {"n": state.n, "total": state.total, "until": times[0]}, None


def last(key, state, times):
    return columns(state), times[-1]


def added_with_until(key, rows, state):
    before = state.getOption or {"n": 0, "total": 0}
    n, total = before["n"] + len(rows), before["total"] + sum(row.value for row in rows)
    state.update({**before, "n": n, "total": total})
    yield key, n, total


APPLY = GroupStateTimeout.NoTimeout
PROCESSING = GroupStateTimeout.ProcessingTimeTimeout
EVENT = GroupStateTimeout.EventTimeTimeout
JOBS = {
    "groups, hdfs": (of_groups(grouped, APPLY), "hdfs", {}, added_later, COLUMNS),
    "groups, changelog": (of_groups(grouped, APPLY), "changelog", {}, added_later, COLUMNS),
    "groups, processing time": (
        of_groups(grouped_for_a_while, PROCESSING), "rocksdb", {"processing_time": True}, added_later, COLUMNS,
    ),
    "groups, event time": (
        of_groups(grouped_until, EVENT), "hdfs", {"function": until_in_state}, added_with_until, None,
    ),
    "pandas": (of_pandas(Processor, "None"), "rocksdb", {}, added_later, COLUMNS),
    "pandas, lifetime": (of_pandas(Expiring, "ProcessingTime"), "rocksdb", {}, added_later, COLUMNS),
    "pandas, timer": (of_pandas(Timed, "ProcessingTime"), "rocksdb", {}, added_later, COLUMNS),
    "pandas, two timers": (
        of_pandas(TimedTwice, "ProcessingTime"), "changelog", {"function": last, "state": COLUMNS}, added_later,
        COLUMNS,
    ),
    "several variables": (
        of_pandas(Several, "ProcessingTime"), "rocksdb", {"function": from_several_with_times}, kept_later, Kept,
    ),
    "rows": (of_rows, "rocksdb", {}, added_later, COLUMNS),
}  # fmt: skip


def first_half(spark, feed, job, store, checkpoint):
    """The Spark job over what is there, stopped."""
    pytest.importorskip("google.protobuf", reason="transformWithState in Python needs it")
    if job is of_rows and not hasattr(GroupedData, "transformWithState"):
        pytest.skip("this PySpark has transformWithStateInPandas only")
    for seed in (1, 2):
        feed.add_random(seed, count=60, keys=12)
    # A line of text has no NULL, no line end and no comma in its key.
    feed.add((key, 5) for key in ODD_KEYS if key is not None and "," not in key)
    feed.add([("only early", 7)])
    with set_to(spark, STORES[store]):
        written(job(feed.frame(spark)), checkpoint)


def written(frame, checkpoint):
    """Run a job to the end of its input."""
    writer = frame.writeStream.foreachBatch(lambda batch, _: batch.collect()).outputMode("update")
    writer.option("checkpointLocation", str(checkpoint)).trigger(once=True).start().awaitTermination()


def imported(spark, checkpoint, directory, *, function=None, state=None, processing_time=False, dry_run=False):
    if not directory.exists():
        init_partitions(directory, 3)
    wanted = IntoStep("totals", function, stored_type("totals", state), processing_time)
    read = keys_reader(spark, CLOCK.wall_ms())
    return import_into_step(place(checkpoint), Store(directory), "test", wanted, read, clock=CLOCK, dry_run=dry_run)


def totals_in(directory):
    """Count and total of every key, from any of these forms of state."""
    found = {}
    for each in snapshot_at(directory).states("totals"):
        state = json.loads(each.value)
        if isinstance(state, dict):
            state = [state["n"], state["total"] if "total" in state else sum(state["values"])]
        found[each.key] = state
    return found


def truth(feed):
    return {encode_key(key): total for key, total in feed.totals().items()}


LONG = {"groups, changelog", "pandas", "pandas, lifetime", "pandas, two timers"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in JOBS]
)
def test_a_flow_goes_on_exactly_behind_the_job(spark, feed, tmp_path, name):
    """The state is that of the first half; with the rest it is that of a batch over everything. The source is only
    read; a dry run counts the same and writes nothing."""
    job, store, options, update, state = JOBS[name]
    began_ms = CLOCK.wall_ms()
    first_half(spark, feed, job, store, tmp_path / "job")
    before, half = held(tmp_path / "job"), truth(feed)
    tried = imported(spark, tmp_path / "job", tmp_path / "db", **options, dry_run=True)
    assert (tried.epoch, tried.keys, snapshot_at(tmp_path / "db").epoch) == (None, len(half), 0)
    done = imported(spark, tmp_path / "job", tmp_path / "db", **options)
    assert (done.epoch, done.keys, done.left_out, done.expired) == (1, len(half), 0, 0)
    assert done.timeouts == tried.timeouts
    assert totals_in(tmp_path / "db") == half
    assert held(tmp_path / "job") == before
    _check_timeouts(name, tmp_path / "db", began_ms, done, len(half))

    feed.add_random(3, count=60, keys=20)
    output: dict[str, Any] = {}

    def keep(batch, batch_id):
        output.update({row.key: (row.n, row.total) for row in batch.collect()})

    step = stateful("totals", key="key", update=update, output=OUTPUT, state=state, timeout=True)
    run_to_end(feed.frame(spark).transform(step), tmp_path / "db", keep)
    assert totals_in(tmp_path / "db") == truth(feed)
    assert problems(tmp_path / "db") == []
    late = {key for key, _ in feed.rows[-60:]}
    assert {key: output[key] for key in late} == {key: tuple(feed.totals()[key]) for key in late}
    rest = {key: (n, total) for key, (n, total) in output.items() if key not in late}
    # A timeout that was pending is due in the first micro-batch.
    timed_out = set(feed.totals()) - late if name == "groups, processing time" else set()
    assert rest == {key: (-feed.totals()[key][0], -feed.totals()[key][1]) for key in timed_out}


def _check_timeouts(name, directory, began_ms, done, keys):
    """Each key has the time that the job gave it, or that the function chose."""
    timeouts = [each.timeout_ms for each in snapshot_at(directory).states("totals")]
    hours = {"groups, processing time": 0, "pandas, lifetime": 1, "pandas, timer": 1, "pandas, two timers": 2}.get(name)
    if hours is None:
        assert (done.timeouts, set(timeouts)) == (0, {None})
        return
    assert done.timeouts == keys
    assert all(began_ms + hours * HOUR_MS <= each <= CLOCK.wall_ms() + hours * HOUR_MS for each in timeouts)


def test_what_a_step_cannot_have_is_refused(spark, feed, tmp_path):
    """By name, with the way out: two timers, times of which nobody says what they are, variables without a function;
    and a step whose key or state is another is refused by its first run, which changes nothing."""
    first_half(spark, feed, of_pandas(TimedTwice, "ProcessingTime"), "rocksdb", tmp_path / "two")
    keys = len(feed.totals())
    with pytest.raises(StateValueError, match=f"^{keys} of {keys} keys cannot") as refused:
        imported(spark, tmp_path / "two", tmp_path / "db")
    assert "it has 2 timers or lifetimes" in refused.value.found
    with set_to(spark, STORES["rocksdb"]):
        for name, job in (
            ("lone", of_groups(grouped_for_a_while, PROCESSING)),
            ("many", of_pandas(Several, "ProcessingTime")),
        ):
            written(job(feed.frame(spark)), tmp_path / name)
    with pytest.raises(UnsupportedPlanError, match="does not say in which time"):
        imported(spark, tmp_path / "lone", tmp_path / "db")
    with pytest.raises(ConfigurationError, match="the variables count, every, often"):
        imported(spark, tmp_path / "many", tmp_path / "db")
    assert snapshot_at(tmp_path / "db").epoch == 0

    imported(spark, tmp_path / "lone", tmp_path / "db", processing_time=True)
    frame = feed.frame(spark)
    other_key = stateful("totals", key=["key", "value"], update=added_later, output=OUTPUT, state=COLUMNS, timeout=True)
    other_state = stateful("totals", key="key", update=kept_later, output=OUTPUT, state=Kept, timeout=True)
    for step, why in ((other_key, "its key was key string"), (other_state, "was columns")):
        with pytest.raises(StepChangedError, match=why):
            run_to_end(frame.transform(step), tmp_path / "db")
    assert totals_in(tmp_path / "db") == truth(feed)


def test_a_lifetime_that_has_passed_is_absent(spark, feed, tmp_path):
    """As in Spark's next micro-batch: counted, not taken over."""
    first_half(spark, feed, of_pandas(Expiring, "ProcessingTime"), "rocksdb", tmp_path / "job")
    init_partitions(tmp_path / "db", 3)
    read = keys_reader(spark, CLOCK.wall_ms() + 2 * HOUR_MS)
    done = import_into_step(
        place(tmp_path / "job"), Store(tmp_path / "db"), "test", IntoStep("totals"), read, clock=CLOCK
    )
    assert (done.keys, done.expired) == (0, len(feed.totals()))
    assert totals_in(tmp_path / "db") == {}


TYPED = "n int, at timestamp, day date, price decimal(10,2), raw binary, inner struct<x: double, s: string>"
AT = datetime(2024, 3, 31, 1, 30, 0, 1234, tzinfo=UTC)


def typed(key, frames, state):
    for _ in frames:
        pass
    at = AT.astimezone().replace(tzinfo=None)
    state.update((7, at, date(2024, 2, 29), Decimal("1.50"), b"\0\xff", (0.5, None)))
    return iter(())


def test_keys_and_states_of_every_type(spark, tmp_path):
    """The keys are those that the step computes for the same rows; the states are equal, moments included."""
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "1.csv").write_text("a,1,2024-05-06T07:08:09Z,-0.0\n,2,1900-01-01T00:00:00Z,1e300\n")
    rows = spark.readStream.schema("name string, n int, at timestamp, x double").csv(str(tmp_path / "input"))
    key = ["name", "n", "at", "x", "price", "raw"]
    rows = rows.withColumn("price", F.col("n").cast("decimal(10,2)")).withColumn("raw", F.col("name").cast("binary"))
    job = rows.groupBy(*key).applyInPandasWithState(typed, "n long", TYPED, "update", APPLY)
    written(job, tmp_path / "job")
    assert imported(spark, tmp_path / "job", tmp_path / "db").keys == 2

    seen = []

    def look(batch, batch_id):
        seen.extend(batch.collect())

    def update(key, rows, state):
        n, at, day, price, raw, inner = state.get
        same = (n, at, str(day), str(price), raw, inner)
        yield key[1], str(same == (7, AT, "2024-02-29", "1.50", b"\0\xff", (0.5, None)))

    (tmp_path / "input" / "2.csv").write_text((tmp_path / "input" / "1.csv").read_text())
    step = stateful("totals", key=key, update=update, output="n int, same string", state=TYPED)
    run_to_end(rows.transform(step), tmp_path / "db", look)
    assert sorted((row.n, row.same) for row in seen) == [(1, "True"), (2, "True")]


class Counted(StatefulProcessor):
    """The number of rows."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # noqa: N802
        self.count.update((sum(map(len, rows)),))
        return iter(())

    def close(self) -> None:
        pass


@pytest.mark.parametrize("zone", [None, "Asia/Kathmandu"])
def test_moments_in_keys_of_transform_with_state(spark, tmp_path, zone):
    """PySpark stores other moments where the session's time zone is not that of the workers. Spark's own partitions
    show it: such a state, which no row of the step would find, is refused."""
    pytest.importorskip("google.protobuf", reason="transformWithState in Python needs it")
    times = [f"2024-05-06T{hour:02}:08:09Z" for hour in range(24)]
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "1.csv").write_text("".join(f"a,{at}\n" for at in times))
    rows = spark.readStream.schema("name string, at timestamp").csv(str(tmp_path / "input"))
    with set_to(spark, {**STORES["rocksdb"], **({"spark.sql.session.timeZone": zone} if zone else {})}):
        job = rows.groupBy("name", "at").transformWithStateInPandas(Counted(), "n long", "update", "None")
        written(job, tmp_path / "job")
    if zone is not None:
        with pytest.raises(UnsupportedPlanError, match="in a partition in which Spark would not look"):
            imported(spark, tmp_path / "job", tmp_path / "db")
        assert snapshot_at(tmp_path / "db").epoch == 0
        return
    assert imported(spark, tmp_path / "job", tmp_path / "db").keys == len(times)
    moments = [int(datetime.fromisoformat(at).timestamp()) * 10**6 for at in times]
    assert {each.key for each in snapshot_at(tmp_path / "db").states("totals")} == {f'["a","{at}"]' for at in moments}


def test_strings_that_are_not_text_are_noticed(spark):
    """In key or state, at any depth, also beside bytes: Python would get other characters for them. Bytes may have any
    value."""
    beside = "named_struct('raw', X'ff', 'x', cast(X'ff' AS string))"
    for bad in (
        "named_struct('x', cast(X'ff' AS string))",
        "array(cast(X'61ff' AS string))",
        beside,
        f"array(NULL, {beside})",
        f"map('k', array(map({beside}, X'ff')))",
    ):
        frame = spark.sql(f"SELECT named_struct('k', 'é') AS key, {bad} AS state, X'ff' AS raw")
        assert [row[0] for row in frame.select(is_text(frame)).collect()] == [False]
    frame = spark.sql(
        "SELECT named_struct('k', cast(NULL AS string), 'raw', X'ff') AS key, array('\ufffd', NULL) AS state, "
        "map(X'ff', array(1)) AS raw, cast(NULL AS struct<x: string, y: array<string>>) AS nothing"
    )
    assert [row[0] for row in frame.select(is_text(frame)).collect()] == [True]
