"""Steps as users write them: keys, kinds of state, order, timeouts, and the errors of wrong ones."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery import (
    ConfigurationError,
    DiscardSink,
    FlowFailedError,
    FlowMismatchError,
    RecoveryConfig,
    RecoveryError,
    SparkCheckpointError,
    StateValueError,
    StepChangedError,
    UnknownStepError,
    UnsupportedPlanError,
    aggregate,
    init_partitions,
    run,
    start,
    stateful,
    stateful_map,
)
from recovery.aggregates import sum_
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.cli.flow_loader import load_flow
from recovery.epochs.writer import EpochWriter
from recovery.operational.steps import step_edits
from recovery.planning.resume import plan_resume
from recovery.storage.scan import scan
from recovery.storage.store import Store
from recovery.values.keys import encode_key, partition_of
from tests.shares import first, some
from tests.spark.support import ODD_KEYS, add_up, run_to_end, states, totals_step
from tests.stores import problems


@dataclass
class Totals:
    n: int = 0
    total: float = 0.0


class Pair(NamedTuple):
    n: int
    total: int = 0


@pytest.mark.usefixtures("tuning")
def test_composite_keys_of_any_type(spark, feed, tmp_path):
    """A key of several columns is a JSON array of texts; update gets the typed values as a tuple."""
    feed.add([("a", 1), ("a", 2), ("b", 1), ("a", 1)])
    keys = []

    def count(key, rows, state):
        state.update((state.getOption or 0) + len(rows))
        yield (json.dumps([str(part) for part in key]), [type(part).__name__ for part in key] == ["str", "int", "date"])

    frame = feed.frame(spark).selectExpr("key", "value", "date'2026-01-01' + cast(value AS int) AS day")
    step = stateful("s", key=["key", "value", "day"], update=count, output="key string, typed boolean")
    run_to_end(frame.transform(step), tmp_path / "db", lambda batch, _: keys.extend(batch.collect()))
    assert states(tmp_path / "db", "s") == {
        '["a","1","2026-01-02"]': 2,
        '["a","2","2026-01-03"]': 1,
        '["b","1","2026-01-02"]': 1,
    }
    assert all(row.typed for row in keys)


@pytest.mark.usefixtures("tuning")
def test_odd_keys(spark, tmp_path):
    """Empty, NULL, NUL, emoji and long keys are keys of their own, in the partition that Python computes."""
    rows = spark.createDataFrame([(key, number) for number, key in enumerate(ODD_KEYS * 2)], "key string, value long")
    rows.write.parquet(str(tmp_path / "input"))
    frame = spark.readStream.schema("key string, value long").parquet(str(tmp_path / "input"))
    seen = []
    run_to_end(frame.transform(totals_step()), tmp_path / "db", lambda batch, _: seen.extend(batch.collect()))
    found = states(tmp_path / "db", "totals")
    assert {key: n for key, (n, _) in found.items()} == {encode_key(key): 2 for key in ODD_KEYS}
    assert {row.key for row in seen} == set(ODD_KEYS)


def test_spark_and_python_agree_on_partitions(spark):
    """crc32 modulo N is the same number in Spark SQL and in Python, escapes and composite keys included."""

    from pyspark.sql import types as T

    from recovery.spark.steps.input_keys import key_text

    rows = spark.createDataFrame([(key, 'é\n"\\') for key in ODD_KEYS], "key string, other string")
    for columns in (["key"], ["key", "other"]):
        text = key_text(columns, [T.StringType()] * len(columns))
        for row in rows.selectExpr("key", f"{text} AS text", f"crc32(cast({text} AS binary)) AS hash").collect():
            assert partition_of(row.text, 1 << 16) == row.hash % (1 << 16)
            if len(columns) == 1:
                assert row.text == encode_key(row.key)
            else:
                assert json.loads(row.text) == [row.key, 'é\n"\\']


@pytest.mark.usefixtures("tuning")
def test_number_and_timestamp_keys(spark, tmp_path):
    """-0.0 is 0.0; a timestamp's key does not depend on the session's time zone."""
    data = [(0.0, 1), (-0.0, 1), (1.5, 1)]
    spark.createDataFrame(data, "key double, value long").write.parquet(str(tmp_path / "input"))
    frame = spark.readStream.schema("key double, value long").parquet(str(tmp_path / "input"))
    step = stateful("s", key="key", update=add_up, output="key double, n long, total long")
    run_to_end(frame.transform(step), tmp_path / "db")
    assert states(tmp_path / "db", "s") == {"0.0": [2, 2], "1.5": [1, 1]}
    frame = spark.readStream.schema("key double, value long").parquet(str(tmp_path / "input"))
    frame = frame.selectExpr("timestamp_seconds(cast(key AS long)) AS key", "value")
    step = stateful("s", key="key", update=add_up, output="key timestamp, n long, total long")
    run_to_end(frame.transform(step), tmp_path / "db2")
    assert states(tmp_path / "db2", "s") == {"0": [2, 2], "1000000": [1, 1]}


@pytest.mark.any_spark
def test_typed_state_evolves(spark, feed, tmp_path):
    """Dataclass and NamedTuple states come back typed; a field added later gets its default."""

    def with_dataclass(key, rows, state):
        totals = state.get if state.exists else Totals()
        assert isinstance(totals, Totals)
        state.update(Totals(totals.n + len(rows), totals.total + sum(row.value for row in rows)))
        yield key, totals.n

    def with_pair(key, rows, state):
        pair = state.get if state.exists else Pair(0)
        assert isinstance(pair, Pair)
        state.update(Pair(pair.n + len(rows)))
        yield key, pair.n

    for kind, update in ((Totals, with_dataclass), (Pair, with_pair)):
        directory = tmp_path / kind.__name__
        feed.add_random(1)
        step = stateful("s", key="key", update=update, state=kind, output="key string, n long")
        run_to_end(feed.frame(spark).transform(step), directory)
        found = states(directory, "s")
        assert {key: (v["n"] if kind is Totals else v[0]) for key, v in found.items()} == dict(feed.counts())


FLOW = """
from __future__ import annotations
from dataclasses import dataclass, field
from datetime import date
from recovery import DiscardSink, Flow, stateful

@dataclass
class Day:
    at: date
    total: int

@dataclass
class Days:
    seen: list[Day] = field(default_factory=list)

def update(key, rows, state):
    days = state.get if state.exists else Days()
    days.seen.append(Day(date(2026, 1, 1 + len(days.seen)), sum(row.value for row in rows)))
    state.update(days)
    yield key, len(days.seen)

def build(spark):
    frame = spark.readStream.schema("key string, value long").option("maxFilesPerTrigger", 1).csv({path!r})
    return frame.transform(stateful("s", key="key", update=update, state=Days, output="key string, n long"))

flow = Flow("days", build, DiscardSink())
"""


@pytest.mark.any_spark
def test_typed_state_of_a_flows_own_file(spark, feed, tmp_path):
    """Its types name each other, as all do under `from __future__ import annotations`."""
    feed.add([("a", 1)])
    feed.add([("a", 2)])
    (tmp_path / "days.py").write_text(FLOW.replace("{path!r}", repr(str(tmp_path / "input"))))
    init_partitions(tmp_path / "db", 2)
    run(load_flow(str(tmp_path / "days.py")), RecoveryConfig(tmp_path / "db"), spark=spark)
    days = [{"at": "2026-01-01", "total": 1}, {"at": "2026-01-02", "total": 2}]
    assert states(tmp_path / "db", "s") == {"a": {"seen": days}}


def test_a_function_that_cannot_be_sent(spark, feed, capfd):
    """The error names what in it cannot, also where a function that it calls uses it; nothing else is printed."""
    lock, session, good = threading.Lock(), spark, {"a": 1}

    def helper():
        return session

    def locking(key, rows, state):
        with lock:
            yield key, good["a"]

    def calling(key, rows, state):
        yield key, helper()

    def mapped(total, value):
        with lock:
            return total, value

    output = "key string, n long"
    steps = [
        ("lock", stateful("s", key="key", update=locking, output=output)),
        ("session", stateful("s", key="key", update=calling, output=output)),
        ("lock", stateful_map("s", key="key", value="value", mapper=mapped, output=output)),
    ]
    for name, step in steps:
        with pytest.raises(
            ConfigurationError, match="step 's': its function cannot be sent to the workers: "
        ) as raised:
            feed.frame(spark).transform(step)
        assert f"The function uses {name}, which cannot be pickled." in str(raised.value)
    assert "Traceback" not in capfd.readouterr().err


def test_stateful_map(spark, feed, tmp_path):
    """Bytewax's form: one call per value; None discards the key."""
    feed.add([("a", 1), ("b", 2), ("a", 3)])
    feed.add([("b", -1), ("a", 4)])
    seen = []

    def running(total, value):
        return (None, 0) if value < 0 else ((total or 0) + value, (total or 0) + value)

    step = stateful_map(
        "m", key="key", value="value", mapper=running, order_by="value", output="key string, total long"
    )
    run_to_end(feed.frame(spark).transform(step), tmp_path / "db", lambda b, _: seen.extend(map(tuple, b.collect())))
    assert states(tmp_path / "db", "m") == {"a": 8}
    assert sorted(seen) == [("a", 1), ("a", 4), ("a", 8), ("b", 0), ("b", 2)]


@pytest.mark.usefixtures("tuning")
def test_order_within_a_key(spark, feed, tmp_path):
    """order_by gives a key's rows in that order, descending too."""

    feed.add([(key, value) for value in (5, 1, 4, 2, 3) for key in ("a", "b")])

    def keep(key, rows, state):
        state.update([row.value for row in rows])
        return []

    for order, expected in (("value", [1, 2, 3, 4, 5]), (F.col("value").desc(), [5, 4, 3, 2, 1])):
        step = stateful("s", key="key", update=keep, output="key string", order_by=order)
        directory = tmp_path / str(expected[0])
        run_to_end(feed.frame(spark).transform(step), directory)
        assert states(directory, "s") == {"a": expected, "b": expected}


@pytest.mark.usefixtures("tuning")
def test_discarded_keys_leave_nothing(spark, feed, tmp_path):
    """state.remove() removes the key's row; a discarded key starts from nothing."""
    feed.add([("a", 1), ("b", 1)])
    feed.add([("a", -1)])
    feed.add([("a", 7)])

    def update(key, rows, state):
        if rows[-1].value < 0:
            state.remove()
        else:
            state.update((state.getOption or 0) + rows[-1].value)

    run_to_end(feed.frame(spark).transform(totals_step(update=update)), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == {"a": 7, "b": 1}


@pytest.mark.usefixtures("tuning")
def test_timeouts_fire_on_an_idle_stream(spark, feed, tmp_path):
    """A key without new rows times out although no input comes, once, and after a resume too."""
    init_partitions(tmp_path / "db", 2)
    fired = []

    def session(key, rows, state):
        if state.hasTimedOut:
            assert rows == []
            yield key, state.get
            state.remove()
        else:
            state.update((state.getOption or 0) + len(rows))
            state.setTimeoutDuration(700)

    def sink(batch, _):
        fired.extend(map(tuple, batch.collect()))

    def begin():
        step = stateful("sessions", key="key", update=session, output="key string, n long")
        config = RecoveryConfig(tmp_path / "db", snapshot_interval=0)
        return start(feed.frame(spark).transform(step), config, sink=sink, name="sessions")

    query = begin()
    feed.add([("a", 1), ("b", 1), ("a", 2)])
    wait_until(query, lambda: len(fired) == 2)
    query.stop()
    assert sorted(fired) == [("a", 2), ("b", 1)]
    assert query.summary.rows == 3, "rows that wake the step are no input"
    assert states(tmp_path / "db", "sessions") == {}
    query = begin()
    feed.add([("c", 1)])
    wait_until(query, lambda: query.summary.batches >= 1)
    query.stop()
    if fired[2:] != [("c", 1)]:
        assert states(tmp_path / "db", "sessions") == {"c": 1}
        time.sleep(0.8)  # the timeout passes while nothing runs
        query = begin()
        wait_until(query, lambda: len(fired) == 3)
        query.stop()
    assert fired[2:] == [("c", 1)]


def wait_until(query, condition, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        query.await_termination(0.1)


def test_unserialisable_state_names_step_and_key(spark, feed, tmp_path):
    """State that would not come back equal aborts the micro-batch, naming step and key; nothing of it is kept."""
    feed.add([("fine", 1)])
    feed.add([("bad", 1)])

    def update(key, rows, state):
        state.update((1, 2) if key == "bad" else [1])
        return []

    with pytest.raises(StateValueError, match=r"step 'totals', key 'bad': tuple \(1, 2\) would come back as list"):
        run_to_end(feed.frame(spark).transform(totals_step(update=update)), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == {"fine": [1]}


@pytest.mark.usefixtures("tuning", "retries")
def test_errors_of_update_name_step_and_key(spark, feed, tmp_path):
    """An exception in update reaches the user with its step, key and place first; the epochs before it are closed."""
    feed.add([("fine", 1)])
    feed.add([("bad", 1)])

    def update(key, rows, state):
        state.update(1)
        return [(key, 1, 1 // (0 if key == "bad" else 1))]

    with pytest.raises(FlowFailedError, match="ZeroDivisionError") as caught:
        run_to_end(feed.frame(spark).transform(totals_step(update=update)), tmp_path / "db", snapshot_interval=3600)
    first, frame, code = caught.value.found.splitlines()[:3]
    line = update.__code__.co_firstlineno + 2
    assert first == (
        "step 'totals', key 'bad', micro-batch 1: ZeroDivisionError: integer division or modulo by zero"
        f" (test_steps.py, line {line})"
    )
    assert frame == f'  File "{__file__}", line {line}, in update'
    assert code.strip().startswith("return [(key, 1")
    assert states(tmp_path / "db", "totals") == {"fine": 1}


@pytest.mark.long
def test_wrong_output_is_named(spark, feed, tmp_path):
    """Output that does not fit its declaration is a StateValueError that shows it."""
    feed.add([("a", 1)])
    with pytest.raises(StateValueError, match="has 3 columns"):
        run_to_end(feed.frame(spark).transform(totals_step(update=lambda k, r, s: [(k, 1)])), tmp_path / "db")
    with pytest.raises(StateValueError, match="output column 'n'"):
        run_to_end(feed.frame(spark).transform(totals_step(update=lambda k, r, s: [(k, "x", 1)])), tmp_path / "db")


def test_a_step_used_twice_is_refused(spark, feed, tmp_path):
    """A plan that would run a step twice is refused, and nothing is written."""
    frame = feed.frame(spark).transform(totals_step())
    with pytest.raises(UnsupportedPlanError, match="used 2 times"):
        run_to_end(frame.union(frame), tmp_path / "db")
    again = feed.frame(spark).transform(totals_step()).union(feed.frame(spark).transform(totals_step()))
    with pytest.raises(UnsupportedPlanError, match="2 steps are called 'totals'"):
        run_to_end(again, tmp_path / "db")


def test_static_aggregations_are_fine(spark, feed, tmp_path):
    """An aggregation on the static side of a join keeps no state."""
    feed.add([("a", 1), ("b", 2)])
    static = spark.createDataFrame([("a", 1), ("a", 2)], "key string, n long").groupBy("key").count()
    seen = []
    run_to_end(
        feed.frame(spark).join(static, "key"), tmp_path / "db", lambda b, _: seen.extend(map(tuple, b.collect()))
    )
    assert seen == [("a", 1, 2)]


def test_batch_frames_and_unknown_columns(spark, feed):
    """Mistakes in building a plan are errors where they are made."""
    with pytest.raises(ConfigurationError, match="no column 'nope'"):
        feed.frame(spark).transform(stateful("s", key="nope", update=add_up, output="key string"))
    with pytest.raises(ConfigurationError, match="a dot or a backtick"):
        feed.frame(spark).withColumnRenamed("value", "a.value").transform(totals_step())
    with pytest.raises(ConfigurationError, match="has the type map<string,string>"):
        feed.frame(spark).selectExpr("map('a', key) AS key").transform(totals_step())
    with pytest.raises(ConfigurationError, match="has the type string collate UTF8_LCASE"):
        feed.frame(spark).selectExpr("key COLLATE UTF8_LCASE AS key", "value").transform(totals_step())
    assert feed.frame(spark).selectExpr("key COLLATE UTF8_BINARY AS key", "value").transform(totals_step()).columns
    with pytest.raises(ConfigurationError, match="not a schema"):
        feed.frame(spark).transform(stateful("s", key="key", update=add_up, output="key strin"))
    with pytest.raises(ConfigurationError, match="not a step id"):
        stateful("$checkpoint", key="key", update=add_up, output="key string")


def test_a_plain_write_stream_is_reported(spark, feed, tmp_path):
    """A step started without recovery.start says so instead of computing without state."""
    feed.add([("a", 1)])
    query = (
        feed.frame(spark)
        .transform(totals_step())
        .writeStream.foreachBatch(lambda batch, _: batch.collect())
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="runs outside a micro-batch of a recovery run"):
        query.awaitTermination()


@pytest.mark.any_spark
def test_unknown_steps_give_the_choices(spark, feed, tmp_path):
    """A renamed or removed step is refused; --rename-step keeps its state, --drop-step discards it, both rewindable."""
    from recovery.planning.resume import plan_resume

    feed.add_random(1)
    directory = tmp_path / "db"
    run_to_end(feed.frame(spark).transform(totals_step("old")), directory, backup_interval="1h")
    before = [file.description for file in scan(directory)]
    with pytest.raises(UnknownStepError, match=r"'old'; the flow has 'new'.*"):
        run_to_end(feed.frame(spark).transform(totals_step("new")), directory)
    assert [file.description for file in scan(directory)] == before
    feed.add_random(2)
    run_to_end(
        feed.frame(spark).transform(totals_step("new")), directory, rename_steps={"old": "new"}, backup_interval="1h"
    )
    assert states(directory, "new") == feed.totals()
    assert states(directory, "old") == {}
    run_to_end(feed.frame(spark), directory, drop_steps=("new",), backup_interval="1h")
    assert states(directory, "new") == {}
    first = plan_resume(scan(directory)).window[1]
    run_to_end(feed.frame(spark).transform(totals_step("old")), directory, resume_epoch=first + 1)
    assert states(directory, "old") == feed.totals()


def add_up_typed(key, rows, state):
    """Like add_up."""
    before = state.get if state.exists else Totals()
    state.update(Totals(before.n + len(rows), before.total + sum(row.value for row in rows)))


@pytest.mark.any_spark
def test_changed_steps_give_the_choices(spark, feed, tmp_path):
    """Another state type or key is refused and nothing written; a migration converts every state, and can be undone."""
    feed.add_random(1)
    directory = tmp_path / "db"
    run_to_end(feed.frame(spark).transform(totals_step()), directory, backup_interval="1h")
    before = [file.description for file in scan(directory)]
    typed = totals_step(update=add_up_typed, state=Totals)
    with pytest.raises(StepChangedError, match="the state was a plain JSON value and is Totals"):
        run_to_end(feed.frame(spark).transform(typed), directory)
    renamed = stateful("totals", key="word", update=add_up, output="word string, n long, total long")
    frame = feed.frame(spark).withColumnRenamed("key", "word")
    with pytest.raises(StepChangedError, match="its key was key string and is word string"):
        run_to_end(frame.transform(renamed), directory)
    assert [file.description for file in scan(directory)] == before

    feed.add_random(2)
    migrated = totals_step(update=add_up_typed, state=Totals, migrate=lambda old: Totals(*old))
    summary = run_to_end(feed.frame(spark).transform(migrated), directory, backup_interval="1h")
    assert {key: list(value.values()) for key, value in states(directory, "totals").items()} == feed.totals()
    run_to_end(feed.frame(spark).transform(migrated), directory, backup_interval="1h")
    # Before the migration the state is plain again, and so is what was declared.
    frame = feed.frame(spark).withColumnRenamed("key", "word")
    run_to_end(frame.transform(renamed), directory, resume_epoch=summary.resume_epoch, keep_steps=("totals",))
    assert states(directory, "totals") == feed.totals()


def count_up(key, rows, state):
    """Like add_up, of the rows alone."""
    state.update((state.getOption or 0) + len(rows))


def lengthen(key, rows, state):
    """The same as a text of so many characters."""
    state.update((state.getOption or "") + "x" * len(rows))


@pytest.mark.long
def test_state_is_kept_only_where_it_can_be_read(spark, feed, tmp_path):
    """What the new type does not read is an error before anything is written; its ways out lead on, and so
    does the old code."""
    directory = tmp_path / "db"
    number = feed.frame(spark).transform(totals_step(update=count_up, state=int))
    text = {"update": lengthen, "state": str}
    feed.add([("a", 1), ("b", 1), ("b", 1)])
    run_to_end(number, directory, backup_interval="1h")
    before = [file.description for file in scan(directory)]
    feed.add([("new", 1)])
    feed.add([("a", 1)])
    kept = feed.frame(spark).transform(totals_step(**text))
    expected = "the state was int and is str; the state of key '[ab]', [12], cannot be read: Expected `str`, got `int`"
    with pytest.raises(StepChangedError, match=expected) as raised:
        run_to_end(kept, directory, keep_steps=("totals",))
    assert "--keep-step" not in raised.value.remedy
    assert [file.description for file in scan(directory)] == before

    summary = run_to_end(number, directory, backup_interval="1h")
    assert states(directory, "totals") == {"a": 2, "b": 2, "new": 1}
    feed.add([("b", 1)])
    migrated = totals_step(**text, migrate=lambda old: "x" * old)
    config = {"keep_steps": ("totals",), "backup_interval": "1h"}
    run_to_end(feed.frame(spark).transform(migrated), directory, **config)
    assert states(directory, "totals") == {"a": "xx", "b": "xxx", "new": "x"}
    # Without the migration, after going back before it.
    back = {"resume_epoch": summary.last_epoch + 1, "drop_steps": ("totals",)}
    run_to_end(kept, directory, backup_interval="1h", **back)
    assert states(directory, "totals") == {"b": "x"}
    run_to_end(kept, directory, drop_steps=("totals",))
    assert states(directory, "totals") == {"b": "x"}


@pytest.mark.long
def test_a_state_that_cannot_be_read(spark, feed, tmp_path, monkeypatch):
    """An edit that the step could not read is refused. If an older version made one, the error names step and key, and
    the state can be put right, or dropped with all of the step."""
    directory = tmp_path / "db"
    frame = feed.frame(spark).transform(totals_step(update=count_up, state=int))
    feed.add([("a", 1), ("b", 1)])
    run_to_end(frame, directory)
    edit = ["state", "set", str(directory), "--step", "totals", "--yes", "--key"]
    refused = CliRunner().invoke(main, [*edit, "a", '"many"'])
    assert refused.exit_code == 33
    assert "step 'totals', key 'a': this does not fit what it declares, int: Expected `int`" in refused.output
    assert states(directory, "totals") == {"a": 1, "b": 1}
    monkeypatch.setattr(step_edits, "_check_fits", lambda newest, changes: None)
    assert CliRunner().invoke(main, [*edit, "a", '"many"']).exit_code == 0
    feed.add([("a", 1)])
    with pytest.raises(StateValueError, match="step 'totals', key 'a': its state \"many\" cannot be read") as raised:
        run_to_end(frame, directory)
    assert raised.value.remedy == "Correct it with `recovery state`, or start again with --drop-step."
    assert CliRunner().invoke(main, [*edit, "a", "5"]).exit_code == 0
    run_to_end(frame, directory)
    assert states(directory, "totals") == {"a": 6, "b": 1}
    assert CliRunner().invoke(main, [*edit, "b", '"many"']).exit_code == 0
    feed.add([("b", 1)])
    run_to_end(frame, directory, drop_steps=("totals",))
    assert states(directory, "totals") == {"b": 1}


def test_an_aggregate_over_a_lambda_is_the_same_in_every_build(spark, feed, tmp_path):
    """Spark renames the variables of lambdas each time."""
    for number in range(2):
        feed.add([("a", 1), ("a", 2)])
        one = F.aggregate(F.array("value", "value"), F.lit(0).cast("long"), lambda total, value: total + value)
        frame = feed.frame(spark).transform(aggregate("twice", key="key", total=sum_(one)))
        run_to_end(frame, tmp_path / "db")
        assert states(tmp_path / "db", "twice") == {"a": {"total": 6 * (number + 1)}}


@pytest.mark.any_spark
def test_another_flow_is_refused(spark, feed, tmp_path):
    """A recovery directory belongs to the flow of its first execution."""
    feed.add_random(1)
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", name="mine")
    with pytest.raises(FlowMismatchError, match="'mine', not of 'other'"):
        run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", name="other")


@pytest.mark.parametrize("name", some(["with space", "per%20cent", "häsh#?", "a:b"], "per%20cent"))
def test_directories_of_any_name(spark, feed, tmp_path, name):
    """Spark finds the seeded position whatever characters the directory's name holds: nothing is read twice."""
    directory = tmp_path / name / "db"
    directory.parent.mkdir()
    feed.add_random(1)
    assert run_to_end(feed.frame(spark).transform(totals_step()), directory).rows == 300
    feed.add_random(2, count=70)
    assert run_to_end(feed.frame(spark).transform(totals_step()), directory).rows == 70
    assert states(directory, "totals") == feed.totals()


def test_without_recovery(spark, feed, tmp_path):
    """config=None runs the same flow and leaves nothing behind."""
    for seed in range(3):
        feed.add_random(seed)
    seen = {}

    def sink(batch, _):
        seen.update({row.key: [row.n, row.total] for row in batch.collect()})

    frame = feed.frame(spark).transform(totals_step())
    query = start(frame, None, sink=sink, name="free", trigger="available-now")
    query.await_termination()
    assert seen == feed.totals()
    assert query.summary.epochs == 0


def test_discard_sink_needs_no_steps(spark, feed, tmp_path):
    """A stateless stream has its position kept all the same: nothing is read twice."""
    feed.add_random(1)
    assert run_to_end(feed.frame(spark), tmp_path / "db", DiscardSink()).rows == 300
    feed.add_random(2, count=70)
    assert run_to_end(feed.frame(spark), tmp_path / "db", DiscardSink()).rows == 70


@pytest.mark.long
def test_what_a_start_that_fails_leaves(spark, feed, tmp_path, monkeypatch):
    """An unreadable trigger is refused before anything begins; what fails later leaves no file and no lock."""
    feed.add([("a", 1)])
    init_partitions(tmp_path / "db", 2)
    before = {path: path.read_bytes() for path in (tmp_path / "db").iterdir()}

    def waiting(key, rows, state):
        yield from add_up(key, rows, state)
        state.setTimeoutDuration(1000)

    def begin(trigger):
        frame = feed.frame(spark).transform(totals_step(update=waiting))
        return start(frame, RecoveryConfig(tmp_path / "db"), name="flow", trigger=trigger)

    with pytest.raises(ConfigurationError, match="parsecs"):
        begin("5 parsecs")
    assert {path: path.read_bytes() for path in before} == before
    (tmp_path / "mailboxes").mkdir()

    def fail(*_):
        raise RuntimeError("no query")

    @contextlib.contextmanager
    def fail_behind(*_):
        yield
        fail()

    steps = {"launch._triggered": fail, "launch._session_settings": fail_behind, "stream.announce": fail}
    for step, failing in steps.items():
        monkeypatch.setattr(f"recovery.spark.run.{step}", failing)
        # Elsewhere other tests have theirs.
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "mailboxes"))
        with pytest.raises(RecoveryError, match="no query"):
            begin("available-now")
        assert list((tmp_path / "mailboxes").rglob("recovery-ticks-*")) == []
        assert not spark.streams.active
        monkeypatch.undo()
    begin("available-now").await_termination()
    assert states(tmp_path / "db", "totals") == {"a": [1, 1]}


@pytest.mark.long
@pytest.mark.usefixtures("tuning")
def test_a_step_gets_timeouts_and_loses_them(spark, feed, tmp_path):
    """The source of ticks comes and goes with them; the other sources keep their places in the input."""

    def waiting(key, rows, state):
        yield from add_up(key, rows, state)
        state.setTimeoutDuration(3_600_000)

    other = type(feed)(tmp_path / "other")
    for number, updates in enumerate([(add_up, add_up), (waiting, add_up), (add_up, waiting)]):
        for each in (feed, other):
            each.add_random(number)
            each.add_random(10 + number)
        first, second = (
            each.frame(spark).transform(totals_step(step, update=update))
            for each, step, update in zip((feed, other), ("first", "second"), updates, strict=True)
        )
        run_to_end(first.union(second), tmp_path / "db")
        assert states(tmp_path / "db", "first") == feed.totals()
        assert states(tmp_path / "db", "second") == other.totals()
        assert problems(tmp_path / "db") == []


@pytest.mark.long
def test_what_a_step_without_timeouts_holds_of_them_wakes_nobody(spark, feed, tmp_path):
    """They are due for ever, since no task of the step asks for them: another step's ticks do not come for them."""

    def waiting(after_ms):
        def update(key, rows, state):
            yield from add_up(key, rows, state)
            state.setTimeoutDuration(after_ms)

        return update

    def frame(first, second):
        one, other = (feed.frame(spark).transform(totals_step(s, update=u)) for s, u in (("a", first), ("b", second)))
        return one.union(other)

    feed.add_random(0)
    run_to_end(frame(waiting(1000), add_up), tmp_path / "db")
    time.sleep(1)
    feed.add_random(1)
    query = start(frame(add_up, waiting(3_600_000)), RecoveryConfig(tmp_path / "db"), name="test", sink=DiscardSink())
    wait_until(query, lambda: query.summary.batches >= 1)
    time.sleep(2)
    query.stop()
    assert query.summary.batches <= 2


@pytest.mark.long
def test_a_source_in_two_places(spark, feed, tmp_path):
    """Spark gives it two lines in its log of offsets and one log of files: those after it keep their own place."""
    other = type(feed)(tmp_path / "other")
    for number in range(3):
        for each in (feed, other) if number == 0 else (other,):
            each.add_random(number)
            each.add_random(10 + number)
        read = feed.frame(spark)
        twice = read.filter("value < 3").union(read.filter("value >= 3")).transform(totals_step("first"))
        run_to_end(twice.union(other.frame(spark).transform(totals_step("second"))), tmp_path / "db")
        assert states(tmp_path / "db", "first") == feed.totals()
        assert states(tmp_path / "db", "second") == other.totals()


@pytest.mark.long
def test_a_query_with_a_name_for_a_part_of_it(spark, feed, tmp_path):
    """What refers to that part is not a place where a source is read."""
    feed.frame(spark).createOrReplaceTempView("read")
    low = "SELECT * FROM read WHERE value < 3"
    both = f"WITH low AS ({low}) SELECT * FROM low UNION ALL SELECT * FROM read WHERE value > 3"
    for number in range(3):
        feed.add_random(number)
        run_to_end(spark.sql(both).transform(totals_step("totals")), tmp_path / "db")
        wanted = [(key, value) for key, value in feed.rows if value != 3]
        assert sum(n for n, _ in states(tmp_path / "db", "totals").values()) == len(wanted)


def test_a_source_that_cleans_up_is_refused(spark, feed, tmp_path):
    """Spark would remove files that a run that is killed has to read again."""
    feed.add([("a", 1)])
    frame = spark.readStream.schema("key string, value long").option("CleanSource", "delete").csv(str(feed.path))
    with pytest.raises(UnsupportedPlanError, match="cleanSource=delete"):
        run_to_end(frame.transform(totals_step()), tmp_path / "db")


@pytest.mark.any_spark
def test_nothing_is_discarded_for_an_invalid_position(spark, feed, tmp_path, monkeypatch):
    """Whether Spark can go on is known before epochs are abandoned."""
    for seed in range(3):
        feed.add_random(seed)
    frame = feed.frame(spark).transform(totals_step("totals"))
    run_to_end(frame, tmp_path / "db", backup_interval="1h")
    before = [file.description for file in scan(tmp_path / "db")]

    def torn(*_):
        raise SparkCheckpointError("sources/0/0 is missing")

    monkeypatch.setattr("recovery.spark.run.position.check_logs", torn)
    with pytest.raises(SparkCheckpointError):
        run_to_end(frame, tmp_path / "db", resume_epoch=2)
    assert [file.description for file in scan(tmp_path / "db")] == before
    monkeypatch.undo()
    run_to_end(frame, tmp_path / "db", resume_epoch=2)
    assert states(tmp_path / "db", "totals") == feed.totals()


@pytest.mark.any_spark
def test_epochs_of_a_pipeline_are_no_position(spark, feed, tmp_path):
    """A flow of the same name would take its micro-batches for closed ones."""
    feed.add([("a", 1)])
    init_partitions(tmp_path / "db", 2)
    plan = plan_resume(scan(tmp_path / "db"))
    writer = EpochWriter(Store(tmp_path / "db"), plan, "test", SystemClock(), backup_interval_s=0)
    writer.close({}, batches=1)
    writer.release()
    with pytest.raises(FlowMismatchError, match="counts 1 micro-batch, and it holds the position after 0"):
        run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db")


@pytest.mark.any_spark
def test_a_flow_that_goes_elsewhere(spark, feed, tmp_path, monkeypatch):
    """The directory is where it was when the flow was started."""
    for seed in range(3):
        feed.add_random(seed)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    frame = feed.frame(spark).transform(totals_step("totals"))
    run_to_end(frame, Path("db"), lambda *_: os.chdir(tmp_path / "elsewhere"))
    assert states(tmp_path / "db", "totals") == feed.totals()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.long
def test_a_step_with_timeouts_is_dropped(spark, feed, tmp_path):
    """With its state, and the flow goes on."""

    def waiting(key, rows, state):
        yield from add_up(key, rows, state)
        state.setTimeoutDuration(3_600_000)

    feed.add_random(0)
    frame = feed.frame(spark)
    kept = frame.transform(totals_step("kept")).select("key", F.col("n").alias("value"))
    run_to_end(kept.transform(totals_step("gone", update=waiting)), tmp_path / "db")
    feed.add_random(1)
    config = RecoveryConfig(tmp_path / "db", snapshot_interval=0, drop_steps=["gone"])
    query = start(frame.transform(totals_step("kept")), config, name="test", trigger="available-now")
    query.await_termination()
    assert states(tmp_path / "db", "kept") == feed.totals()


def test_a_step_on_a_table_is_refused(spark, feed, tmp_path):
    """It would count the whole table in every micro-batch."""
    feed.add([("a", 1)])
    table = spark.createDataFrame([("a", 1)], "key string, value long").transform(totals_step("table"))
    frame = feed.frame(spark).join(table.select("key", F.col("total").alias("of_table")), "key")
    with pytest.raises(UnsupportedPlanError, match="not a stream"):
        run_to_end(frame, tmp_path / "db")


def test_a_list_of_one_key_is_that_key(spark, feed, tmp_path):
    """Also where the mapper's output has the key in front."""
    feed.add([("cellar", 1), ("cellar", 2)])
    step = stateful_map(
        "sum", key=["key"], value="value", mapper=lambda s, v: ((s or 0) + v, (s or 0) + v), output="key string, n long"
    )
    rows = []
    run_to_end(feed.frame(spark).transform(step), tmp_path / "db", lambda batch, _: rows.extend(batch.collect()))
    assert [tuple(row) for row in rows] == [("cellar", 1), ("cellar", 3)]


def test_what_a_mapper_gave_stays_as_it_was(spark, feed, tmp_path):
    """Also when it is its state, which it goes on changing."""
    feed.add([("a", 1), ("a", 1), ("a", 1)])

    def growing(held, value):
        held = held or []
        held.append(value)
        return held, (held, {"n": held})

    rows = []
    one = stateful_map("one", key="key", value="value", mapper=growing,
                       output="key string, held array<long>, in map<string, array<long>>")  # fmt: skip
    run_to_end(feed.frame(spark).transform(one), tmp_path / "db", lambda batch, _: rows.extend(batch.collect()))
    assert [(len(row.held), len(row["in"]["n"])) for row in rows] == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.any_spark
def test_a_sink_whose_target_is_away(spark, feed, tmp_path):
    """Its error is the flow's, whatever type it has; what was finished before is kept."""
    for seed in range(3):
        feed.add_random(seed)

    def write(batch, batch_id):
        batch.collect()
        if batch_id == 2:
            raise ConnectionRefusedError("database away")

    init_partitions(tmp_path / "db", 2)
    config = RecoveryConfig(tmp_path / "db", snapshot_interval=3600)
    query = start(feed.frame(spark).transform(totals_step()), config, sink=write, name="test", trigger="available-now")
    with pytest.raises(
        FlowFailedError, match=r"^the sink, micro-batch 2: ConnectionRefusedError: database away \(test_s"
    ):
        query.await_termination()
    assert query.summary.last_epoch == 1
    assert sum(n for n, _ in states(tmp_path / "db", "totals").values()) == 600


@first(
    ("kind", "where"),
    [
        *((SystemExit, where) for where in ("sink", "batch", "prepare", "publish", "closed")),
        (KeyboardInterrupt, "sink"),
    ],
    count=2,
)
@pytest.mark.any_spark
def test_what_would_end_a_program_ends_the_run(spark, feed, tmp_path, kind, where):
    """sys.exit() in the flow's own code, on whatever thread: the run fails as by any other error, and does not wait for
    ever."""
    feed.add_random(1)

    def leave(at):
        if at == where:
            raise kind(4)

    def observe(event):
        leave({"BatchDone": "batch", "EpochClosed": "closed"}.get(type(event).__name__))

    class Sink:
        single_action = False

        def write(self, batch, batch_id):
            leave("sink")
            batch.collect()

        def rollback(self, resume):
            pass

        def prepare(self, output):
            leave("prepare")
            return "note"

        def publish(self, output):
            leave("publish")

    init_partitions(tmp_path / "db", 2)
    query = start(
        feed.frame(spark).transform(totals_step()), RecoveryConfig(tmp_path / "db"), sink=Sink(), name="test",
        trigger="available-now", observer=observe,
    )  # fmt: skip
    with pytest.raises(FlowFailedError, match=rf"{kind.__name__}: 4 \(test_steps.py, line \d+\)"):
        query.await_termination()


@first("where", ["sink", "observer", "publish"])
@pytest.mark.any_spark
def test_a_query_that_stops_itself(spark, feed, tmp_path, where):
    """stop() in the flow's own code returns, and the run ends when that has; everything finished is kept."""
    for seed in range(4):
        feed.add_random(seed)
    held, ready = [], threading.Event()

    def stop():
        assert ready.wait(30)
        held[0].stop()

    class Sink:
        single_action = False

        def write(self, batch, batch_id):
            if where == "sink" and batch_id == 1:
                stop()

    class Publishing(Sink):
        def rollback(self, resume):
            pass

        def prepare(self, output):
            return "note"

        def publish(self, output):
            stop()

    init_partitions(tmp_path / "db", 2)
    query = start(
        feed.frame(spark).transform(totals_step()),
        RecoveryConfig(tmp_path / "db", snapshot_interval=0),
        sink=Publishing() if where == "publish" else Sink(),
        observer=lambda event: stop() if where == "observer" and type(event).__name__ == "EpochClosed" else None,
        name="test",
    )
    held.append(query)
    ready.set()
    assert query.await_termination(60)
    assert query.summary.last_epoch >= 1
    assert sum(n for n, _ in states(tmp_path / "db", "totals").values()) == 300 * query.summary.batches


@pytest.mark.long
def test_a_frame_with_timeouts_runs_once(spark, feed, tmp_path):
    """Twice at a time would be woken by one file."""

    def waiting(key, rows, state):
        yield from add_up(key, rows, state)
        state.setTimeoutDuration(3_600_000)

    frame = feed.frame(spark).transform(totals_step(update=waiting))
    for name in ("one", "two"):
        init_partitions(tmp_path / name, 2)
    first = start(frame, RecoveryConfig(tmp_path / "one"), name="flow")
    with pytest.raises(ConfigurationError, match="runs already"):
        start(frame, RecoveryConfig(tmp_path / "two"), name="flow")
    first.stop()
    second = start(frame, RecoveryConfig(tmp_path / "two"), name="flow", trigger="available-now")
    second.await_termination()


@first(("zone", "hours"), [("Europe/Berlin", 1), ("GMT+8", 8)])
def test_times_without_a_zone_are_those_of_the_session(spark, feed, tmp_path, zone, hours):
    """As in Spark's own functions; with a zone they are what they are. Those of rows and keys can be read, whatever
    Spark calls the zone."""
    feed.add([("local", 0), ("zoned", 0), ("none", 0)])
    at = datetime.fromisoformat("2024-01-01T12:00")
    values = {"local": at, "zoned": at.replace(tzinfo=UTC), "none": None}

    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    def update(key, rows, state):
        name, at = key
        assert at == rows[0].at == epoch
        assert at.utcoffset() == timedelta(hours=hours)
        yield name, values[name]

    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        step = stateful("times", key=["key", "at"], update=update, output="key string, at timestamp")
        found = []

        def write(batch, batch_id):
            found.extend(batch.selectExpr("key", "unix_seconds(at)").collect())

        frame = feed.frame(spark).selectExpr("key", "timestamp_seconds(value) AS at")
        run_to_end(frame.transform(step), tmp_path / "db", write)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    noon = int(at.replace(tzinfo=UTC).timestamp())
    assert dict(map(tuple, found)) == {"local": noon - hours * 3600, "zoned": noon, "none": None}


@first("columns", ["n long, total long, last string", "struct"])
def test_a_state_declared_by_columns(spark, feed, tmp_path, columns):
    """As in applyInPandasWithState: the state is a tuple of these columns, and NULL is None."""
    if columns == "struct":
        columns = T.StructType.fromDDL("n long, total long, last string")

    def update(key, rows, state):
        n, total, _ = state.getOption or (0, 0, None)
        state.update((n + len(rows), total + sum(row.value for row in rows), None if key == "k1" else key))
        assert isinstance(state.get, tuple)
        yield key, n + len(rows), total

    for seed in range(2):
        feed.add_random(seed)
        step = stateful("totals", key="key", update=update, state=columns, output="key string, n long, total long")
        run_to_end(feed.frame(spark).transform(step), tmp_path / "db")
    wanted = {key: [*totals, None if key == "k1" else key] for key, totals in feed.totals().items()}
    assert states(tmp_path / "db", "totals") == wanted


@pytest.mark.long
def test_a_state_of_columns_by_name(spark, feed, tmp_path):
    """A lesson's way: a dict of the columns is stored, and the state is read by their names."""

    def update(key, rows, state):
        before = state.get if state.exists else {"n": 0, "total": 0}
        now = {"total": before["total"] + sum(row.value for row in rows), "n": before["n"] + len(rows)}
        state.update(now)
        yield key, state.get["n"], now["total"]

    for seed in range(2):
        feed.add_random(seed)
        step = stateful(
            "totals",
            key="key",
            update=update,
            state="n int not null, total long",
            output="key string, n int, total long",
        )
        run_to_end(feed.frame(spark).transform(step), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == {key: list(found) for key, found in feed.totals().items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("state", "said"),
    [pytest.param((None, 1), r"`null` - at `\$\.n`", marks=pytest.mark.long),
     pytest.param((2**31, 1), r"`int` <= 2147483647 - at `\$\.n`", marks=pytest.mark.long),
     pytest.param({"n": 1, "m": 1}, "'m', which is none", marks=pytest.mark.long),
     ((1, "x"), r"`str` - at `\$\.total`")],
    ids=str,
)  # fmt: skip
def test_a_state_that_violates_its_columns(spark, feed, tmp_path, state, said):
    """The error names the step, the key and the column."""
    feed.add([("a", 1)])

    def update(key, rows, group):
        group.update(state)

    step = stateful("totals", key="key", update=update, state="n int not null, total long", output="key string")
    with pytest.raises(StateValueError, match=f"step 'totals', key 'a'.*{said}"):
        run_to_end(feed.frame(spark).transform(step), tmp_path / "db")


@pytest.mark.parametrize(("columns", "found"), [("n longer", "not a schema"), ("at interval month", "interval month")])
def test_columns_that_no_state_can_have(spark, feed, columns, found):
    feed.add([("a", 1)])
    step = stateful("totals", key="key", update=lambda *_: None, state=columns, output="key string")
    with pytest.raises(ConfigurationError, match=found):
        feed.frame(spark).transform(step)


def test_a_function_that_a_call_does_not_run_is_refused():
    """An asynchronous update, mapper or migrate would do nothing; an update with `yield` is run, a mapper is not."""

    async def later(*_):
        pass

    def some(*_):
        yield

    def update(key, rows, state):
        yield key, 1

    for asked, what in (
        (lambda: stateful("s", key="k", update=later, output="k string, n int"), "update"),
        (lambda: stateful("s", key="k", update=update, output="k string, n int", migrate=later), "migrate"),
        (lambda: stateful_map("s", key="k", value="v", mapper=later, output="k string, n int"), "mapper"),
        (lambda: stateful_map("s", key="k", value="v", mapper=some, output="k string, n int"), "mapper"),
    ):
        with pytest.raises(ConfigurationError, match=rf"{what} of step 's' is an? (asynchronous|generator) function"):
            asked()
    stateful("s", key="k", update=update, output="k string, n int")
