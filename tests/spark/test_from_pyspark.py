"""A lesson on state in PySpark, from top to bottom, on recovery partitions. Files take the place of Kafka and of the
rate source. docs/coming-from-spark.md has the names that differ."""

from __future__ import annotations

import importlib
import json
import os
import urllib.request
from collections import Counter

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery import (
    ConsoleSink,
    EpochClosed,
    FlowFailedError,
    GroupState,
    RecoveryConfig,
    Resumed,
    StateValueError,
    UnsupportedPlanError,
    init_partitions,
    start,
    stateful,
)
from recovery.cli import main
from recovery.planning.health import DEFAULTS
from recovery.spark.planner.state_store import PROVIDER_SETTING
from tests.spark.support import run_to_end, set_to

FIVE = {"state-size", "snapshot-duration", "update-latency", "cleanup-time", "memory"}


def update_function(user_id, actions, state: GroupState):
    """The lesson's, whose rows are Spark's and whose time is a number of milliseconds."""
    if state.hasTimedOut:
        current_state = state.get
        yield (user_id, current_state["action_count"], "TIMEOUT", state.getCurrentProcessingTimeMs())
        state.remove()
    elif state.exists:
        current_state = state.get
        new_count = current_state["action_count"] + len(actions)
        last_action = actions[-1].action if actions else current_state["last_action"]
        new_state = {
            "user_id": user_id,
            "action_count": new_count,
            "last_action": last_action,
            "last_updated": state.getCurrentProcessingTimeMs(),
        }
        state.update(new_state)
        state.setTimeoutDuration("5 minutes")
        yield (user_id, new_count, last_action, state.getCurrentProcessingTimeMs())
    else:
        initial_state = {
            "user_id": user_id,
            "action_count": len(actions),
            "last_action": actions[-1].action if actions else None,
            "last_updated": state.getCurrentProcessingTimeMs(),
        }
        state.update(initial_state)
        state.setTimeoutDuration("5 minutes")
        yield (user_id, len(actions), actions[-1].action, state.getCurrentProcessingTimeMs())


def add(directory, number, lines):
    """A file of JSON: one micro-batch."""
    directory.mkdir(exist_ok=True)
    file = directory / f"{number}.json"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(file, (1_700_000_000 + number,) * 2)


def read(spark, directory, schema):
    """The stream of these files, a file at a time."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(directory))


SCHEMA = T.StructType([
    T.StructField("user_id", T.IntegerType(), False),
    T.StructField("action_count", T.IntegerType(), True),
    T.StructField("last_action", T.StringType(), True),
    T.StructField("last_updated", T.LongType(), True),
])  # fmt: skip
"""The lesson's, whose time is a number of milliseconds."""


def actions_of(spark, directory, state=None):
    """The step over the lesson's actions."""
    step = stateful(
        "users",
        key="user_id",
        state=state,
        update=update_function,
        output="user_id int, action_count int, last_action string, updated_ms long",
        order_by="action",
    )
    return read(spark, directory, "user_id int, action string").transform(step)


def invoke(*words):
    """What a command prints."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


class Scrapes:
    """An observer that scrapes the metrics whenever an epoch is closed, and keeps what it gets."""

    def __init__(self):
        self.url, self.text = None, ""

    def __call__(self, event):
        if isinstance(event, Resumed):
            self.url = event.metrics_url
        elif isinstance(event, EpochClosed):
            with urllib.request.urlopen(self.url, timeout=30) as answer:
                self.text += answer.read().decode()


def assert_five_metrics(directory, text, measured):
    """`status`, the report and Prometheus have the lesson's five; those of `measured` with a value, others without."""
    facts = {each["target"]: each for each in json.loads(invoke("status", directory, "--json"))["health"]}
    assert facts.keys() >= FIVE
    shown = invoke("status", directory)
    invoke("report", directory, "-o", directory / "report.html")
    page = (directory / "report.html").read_text()
    for target in DEFAULTS:
        if target.name not in FIVE:
            continue
        found = facts[target.name]
        assert (found["value"] is not None) == (target.name in measured), found
        assert f'recovery_health{{target="{target.name}"}}' in text
        assert (f'recovery_target{{target="{target.name}"}}' in text) == (target.name in measured)
        if target.name not in measured:
            assert (found["level"], found["note"]) == ("unknown", "not measured")
            assert f"{target.title} not measured" in shown
            assert "not measured" in page


def test_the_table_of_metrics():
    """The lesson's five, with its levels."""
    assert {each.name: (each.warning, each.critical) for each in DEFAULTS if each.name in FIVE} == {
        "state-size": (1e9, 5e9), "snapshot-duration": (10, 30), "update-latency": (0.010, 0.050),
        "cleanup-time": (5, 15), "memory": (2e9, 4e9),
    }  # fmt: skip


@pytest.mark.long
def test_a_stateful_operation_with_timeouts(spark, tmp_path, capsys):
    """mapGroupsWithState becomes a step. It crashes in a micro-batch and continues exactly; older versions of the state
    stay readable; its state has a schema; each of the five metrics has a value."""
    directory, events = tmp_path / "db", tmp_path / "in"
    init_partitions(directory, 2)
    files = [[{"user_id": n % 3, "action": f"{batch}{n}"} for n in range(4)] for batch in range(4)]
    for number, lines in enumerate(files):
        add(events, number, lines)
    seen, crashes, scrapes = [], [True], Scrapes()

    def sink(batch, batch_id):
        if batch_id == 2 and crashes:
            crashes.clear()
            raise RuntimeError("CRASH")
        ConsoleSink(truncate=False).write(batch, batch_id)
        seen.append([tuple(row)[:3] for row in batch.collect()])

    with pytest.raises(FlowFailedError, match="CRASH"):
        run_to_end(actions_of(spark, events), directory, sink, backup_interval="1h")
    run_to_end(actions_of(spark, events), directory, sink, backup_interval="1h", metrics_port=0, observer=scrapes)
    expected, counts = [], Counter()
    for lines in files:
        counts.update(line["user_id"] for line in lines)
        last = {line["user_id"]: line["action"] for line in lines}
        expected.append({(user, counts[user], last[user]) for user in last})
    assert [set(rows) for rows in seen] == expected
    assert "user_id=0  action_count=2  last_action=03" in capsys.readouterr().out

    def at(epoch):
        options = {"step": "users", "epoch": str(epoch)}
        found = spark.read.format("recovery").options(**options).load(str(directory)).collect()
        return {row.key: json.loads(row.state)["action_count"] for row in found}

    assert at(1) == {"0": 2, "1": 1, "2": 1}
    assert at(4) == {"0": 8, "1": 4, "2": 4}
    [schema] = json.loads(invoke("status", directory, "--json"))["schemas"].values()
    assert schema["key"] == [{"name": "user_id", "type": "int"}]
    assert schema["text"] == "a plain JSON value"
    assert_five_metrics(directory, scrapes.text, FIVE)
    stated = {"user_id": 7, "action_count": 3, "last_action": "x", "last_updated": 1}
    idle = GroupState.of(stated, now_ms=300_001, timed_out=True)
    assert list(update_function(7, [], idle)) == [(7, 3, "TIMEOUT", 300_001)]
    assert not idle.exists
    with pytest.raises(AttributeError, match=r"did you mean state\.getCurrentProcessingTimeMs"):
        _ = GroupState.of().getCurrentProcessingTime


@pytest.mark.long
def test_windows_and_their_clean_up(spark, tmp_path):
    """The sliding window and the window per user run as they are. The watermark removes state, and Spark's report of
    it gives the five metrics; without it two of them are not measured."""
    directory, events = tmp_path / "db", tmp_path / "in"
    init_partitions(directory, 2)
    for number in range(4):
        lines = [
            {"event_time": f"2026-01-01T0{number}:{minute:02}:00Z", "user_id": n, "action": "a"}
            for minute in (1, 7)
            for n in range(3)
        ]
        add(events, number, lines)
    schema = "event_time timestamp, user_id int, action string"

    def cleaned():
        watermarked = read(spark, events, schema).withWatermark("event_time", "10 minutes")
        return watermarked.groupBy(F.window("event_time", "5 minutes"), "user_id").agg(
            F.count("*").alias("action_count"), F.collect_list("action").alias("actions")
        )

    scrapes = Scrapes()
    run_to_end(
        cleaned(), directory, ConsoleSink(truncate=False), output_mode="update", metrics_port=0, observer=scrapes
    )
    [operator] = json.loads(invoke("status", directory, "--json"))["operators"]
    assert operator["name"] == "stateStoreSave"
    assert 0 < operator["rows"] < 24
    assert operator["work"]["removed"] > 0
    assert operator["work"]["memory_bytes"] > 0
    assert operator["schemas"] == {
        "default": {
            "key": [
                {"name": "window", "type": "struct<start:timestamp,end:timestamp>"}, {"name": "user_id", "type": "int"},
            ],
            "value": [{"name": "count", "type": "bigint"}, {"name": "buf", "type": "binary"}],
        }
    }  # fmt: skip
    assert 'recovery_operator_removed_rows_total{operator="0"} ' in scrapes.text
    assert_five_metrics(directory, scrapes.text, FIVE)
    invoke("checkpoint", "export", directory, tmp_path / "checkpoint")
    assert {"commits", "offsets", "metadata", "sources", "state"} <= {
        path.name for path in (tmp_path / "checkpoint").iterdir()
    }

    values = read(spark, events, schema).withColumn("value", F.col("user_id").cast("double"))
    sliding = values.withWatermark("event_time", "1 minute").groupBy(
        F.window("event_time", "5 minutes", "1 minute"), F.lit(1).alias("dummy")
    )
    aggregated = sliding.agg(F.count("*").alias("count"), F.sum("value"), F.min("value"), F.max("value")).select(
        F.col("window.start").alias("window_start"), "count", "sum(value)", "min(value)", "max(value)"
    )
    # Spark runs the tasks of a sorted aggregation twice and adds up their counts, so its report is worth nothing.
    rows, silent = [], tmp_path / "silent"
    init_partitions(silent, 2)
    scrapes = Scrapes()
    query = start(
        aggregated.orderBy("window_start"),
        RecoveryConfig(silent, snapshot_interval=0, metrics_port=0),
        sink=lambda batch, _: rows.append(batch.collect()),
        name="sliding",
        output_mode="complete",
        trigger="available-now",
        observer=scrapes,
    )
    query.await_termination()
    assert {tuple(row)[1:] for row in rows[-1]} == {(3, 3.0, 0.0, 2.0)}
    assert len(rows[-1]) == 4 * 2 * 5
    assert_five_metrics(silent, scrapes.text, FIVE - {"update-latency", "cleanup-time"})


def test_a_state_store_class_of_the_user(spark, tmp_path):
    """PySpark has no classes for it, and a class of Python cannot be one: the reason is given."""
    streaming = importlib.import_module("pyspark.sql.streaming")
    assert not hasattr(streaming, "StateStoreProvider")
    add(tmp_path / "in", 0, [{"timestamp": "2026-01-01T00:00:00Z", "value": 5}])

    def counted():
        frame = read(spark, tmp_path / "in", "timestamp timestamp, value long").withWatermark("timestamp", "1 minute")
        return frame.groupBy(F.window("timestamp", "5 minutes"), (F.col("value") % 10).alias("bucket")).count()

    with (
        set_to(spark, {PROVIDER_SETTING: "__main__.CustomStateStoreProvider"}),
        pytest.raises(UnsupportedPlanError, match="not a class that Spark can load") as raised,
    ):
        run_to_end(counted(), tmp_path / "db")
    assert "a state store runs in the JVM" in raised.value.cause
    run_to_end(counted(), tmp_path / "db", output_mode="update")


@pytest.mark.long
def test_the_lesson_s_schema_of_the_state(spark, tmp_path):
    """Declared, the state is still read and written by the names of its fields; a time of the lesson's type, which a
    number is not, is refused with step, key and field."""
    add(tmp_path / "events", 1, [{"user_id": 1, "action": "a"}, {"user_id": 2, "action": "b"}])
    add(tmp_path / "events", 2, [{"user_id": 1, "action": "c"}])
    rows = []
    sink = lambda batch, _: rows.extend(tuple(row)[:3] for row in batch.collect())  # noqa: E731
    init_partitions(tmp_path / "db", 2)
    run_to_end(actions_of(spark, tmp_path / "events", SCHEMA), tmp_path / "db", sink)
    assert sorted(rows) == [(1, 1, "a"), (1, 2, "c"), (2, 1, "b")]
    [schema] = json.loads(invoke("status", tmp_path / "db", "--json"))["schemas"].values()
    assert schema["text"] == "columns(user_id, action_count, last_action, last_updated)"
    init_partitions(tmp_path / "other", 2)
    timed = T.StructType([*SCHEMA[:3], T.StructField("last_updated", T.TimestampType())])
    with pytest.raises(StateValueError, match=r"step 'users', key .*Expected `datetime.*at `\$\.last_updated`"):
        run_to_end(actions_of(spark, tmp_path / "events", timed), tmp_path / "other", sink)
