"""The state of Spark's own operators looked at: how many rows and timers."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as F

import recovery
from recovery.cli import main
from tests.flows.native import STORES, events, join, timers, tumbling, write_events
from tests.spark.support import run_to_end, set_to
from tests.spark.test_checkpoints import command

UNTRACKED = {**STORES["rocksdb"], "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false"}


def told(directory, *command):
    """What a command says as JSON, without Spark."""
    done = CliRunner().invoke(main, [*map(str, command), str(directory), "--json"])
    return json.loads(done.output)


def rows(directory):
    """What `status` says, by operator."""
    return {each["operator"]: each["rows"] for each in told(directory, "status")["operators"]}


@pytest.fixture(scope="module")
def ran(spark, tmp_path_factory):
    """Runs a query over some files of events, an epoch a micro-batch; once for each."""
    home = tmp_path_factory.mktemp("ran")

    def run(build, conf=None, files=2, **options):
        directory = home / build.__name__
        if not directory.exists():
            source = home / f"{files} files"
            write_events(source, 0, files)
            with set_to(spark, conf or {}):
                run_to_end(build(spark, source), directory, snapshot_interval=0, backup_interval="1h", **options)
        return directory

    return run


def by_value(spark, path):
    return events(spark, path).groupBy("key").agg(F.sum("value").alias("total")).orderBy("total")


def test_how_many_rows(spark, ran):
    """Of a join those that wait on both sides. RocksDB that is set not to count says 0: that is shown as unknown."""
    joined = ran(join)
    waiting = [recovery.native_state(spark, joined, store=side).count() for side in ("left", "right")]
    assert rows(joined) == {0: sum(waiting)}
    assert min(waiting) > 0
    check_unknown(spark, ran(tumbling, UNTRACKED))


@pytest.mark.long
def test_rows_of_a_plan_that_is_sorted(spark, ran):
    """It is computed twice, and Spark counts twice: unknown."""
    check_unknown(spark, ran(by_value, output_mode="complete"))


def check_unknown(spark, directory):
    """Not shown as a number."""
    assert rows(directory) == {0: None}
    assert recovery.native_state(spark, directory).count() > 0
    assert "unknown" in CliRunner().invoke(main, ["status", str(directory)]).output


def test_timers_and_variables(spark, ran):
    """The timers that are registered at an epoch, and which came and went between two; by all ways the same. Other
    operators have none."""
    pytest.importorskip("google.protobuf", reason="transformWithState in Python needs it")
    directory = ran(timers, STORES["rocksdb"], files=3)
    [operator] = told(directory, "checkpoint", "show")["operators"]
    assert (operator["variables"], operator["timers"]) == (["total", "values"], True)
    before = {
        (row.key.key, row.expiration_timestamp_ms)
        for row in recovery.native_state(spark, directory, epoch=1, timers=True).collect()
    }
    frame = recovery.native_state(spark, directory, timers=True)
    now = {(row.key.key, row.expiration_timestamp_ms) for row in frame.collect()}
    assert before > now
    changes = recovery.native_state(spark, directory, since=1, timers=True).collect()
    assert {(row.change, row.key.key, row.before, row.after) for row in changes} == {
        ("removed", key, at, None) for key, at in before - now
    }
    changes = recovery.native_state(spark, directory, since=0, epoch=1, timers=True).collect()
    assert {(row.change, row.key.key, row.before, row.after) for row in changes} == {
        ("added", key, None, at) for key, at in before
    }
    variables = [recovery.native_state(spark, directory, variable=name) for name in operator["variables"]]
    assert rows(directory) == {0: sum(variable.select("key").distinct().count() for variable in variables)}
    with pytest.raises(recovery.ConfigurationError, match="no store and no variable"):
        recovery.native_state(spark, directory, timers=True, variable="total")
    with pytest.raises(recovery.StateNotFoundError, match="has no timers"):
        recovery.native_state(spark, ran(tumbling, UNTRACKED), timers=True)


@pytest.mark.long
def test_the_commands_on_timers(spark, ran):
    """`checkpoint show`, `state list` and `state get` show the timers that native_state gives."""
    pytest.importorskip("google.protobuf", reason="transformWithState in Python needs it")
    directory = ran(timers, STORES["rocksdb"], files=3)
    frame = recovery.native_state(spark, directory, timers=True)
    known = {row.key.key: row.expiration_timestamp_ms for row in frame.collect()}
    options = (directory, "--operator", 0, "--timers", "--json")
    for verb in (("checkpoint", "show"), ("state", "list")):
        found = command(*verb, *options)["rows"]
        assert {row["key"]["key"]: row["expiration_timestamp_ms"] for row in found} == known
    changes = command("checkpoint", "show", *options, "--changes-since", 1)["rows"]
    assert len(changes) == recovery.native_state(spark, directory, timers=True, since=1).count() > 0
    got = command("state", "get", *options, "--key", min(known))["rows"]
    assert [row["expiration_timestamp_ms"] for row in got] == [known[min(known)]]
