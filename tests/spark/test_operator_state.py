"""The state of Spark's own operators looked at: how many rows, timers, and `format("recovery")`."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import recovery
from recovery.cli import main
from recovery.spark.jvm.versions import REPLACES_FORMATS
from recovery.spark.sources import operator_state
from recovery.spark.sources.formats import register
from tests.flows.operators import BUSY, STORES, events, join, timers, tumbling, write_events
from tests.owner.served import Served, spread, token_file
from tests.owner.served import invoked as called
from tests.shares import first
from tests.spark.support import run_to_end, set_to
from tests.spark.test_checkpoints import command

of_the_format = pytest.mark.skipif(not REPLACES_FORMATS, reason="tests/spark/jvm/test_versions.py: refused there")
UNTRACKED = {**STORES["rocksdb"], "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false"}


def facts(directory, *command):
    """What a command says as JSON, without Spark."""
    done = CliRunner().invoke(main, [*map(str, command), str(directory), "--json"])
    return json.loads(done.output)


def rows(directory):
    """What `status` says, by operator."""
    return {each["operator"]: each["rows"] for each in facts(directory, "status")["operators"]}


def ordered(frame):
    """All of it, in an order."""
    return sorted(frame.collect(), key=repr)


def same(spark, directory, since=None, **options):
    """Read in both ways, where Spark has both: equal, types and all. Returns the rows."""
    wanted = recovery.native_state(spark, directory, since=since, **options)
    if not REPLACES_FORMATS:
        return ordered(wanted)
    reader = spark.read.format("recovery").options(operator=0, **options)
    found = (reader if since is None else reader.option("sinceEpoch", since)).load(str(directory))
    assert found.schema == wanted.schema
    assert ordered(found) == ordered(wanted)
    return ordered(found)


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

    if REPLACES_FORMATS:
        register(spark)
    return run


def by_value(spark, path):
    return events(spark, path).groupBy("key").agg(F.sum("value").alias("total")).orderBy("total")


@pytest.mark.long
def test_how_many_rows(spark, ran):
    """Of a join those that wait on both sides. RocksDB that is set not to count says 0: that is shown as unknown."""
    joined = ran(join, files=1)
    waiting = [recovery.native_state(spark, joined, store=side).count() for side in ("left", "right")]
    assert rows(joined) == {0: sum(waiting)}
    assert min(waiting) > 0
    check_unknown(spark, ran(tumbling, UNTRACKED))


@pytest.mark.long
@pytest.mark.parametrize("words", ["checkpoint show DIR --operator 0 --store left", "status DIR"])
def test_at_owners(ran, tmp_path, words):
    """What a command says is what it says of all partitions in one directory, and names the run's directory."""
    here = Path(shutil.copytree(ran(join, files=1), tmp_path / "here"))
    count = len([*here.glob("part-*.sqlite3")])
    there, *away = spread(Path(shutil.copytree(here, tmp_path / "db")), [range(1, count), (0,)])
    token, found = token_file(tmp_path), []
    owner = Served(away[0], token)
    try:
        for directory, options in ((here, []), (there, ["--owner", owner.at, "--token-file", token])):
            done = called(*words.replace("DIR", str(directory)).split(), "--json", *options)
            assert done.returncode == 0, done.stderr
            found.append(json.loads(done.stdout.replace(str(directory), "DIR")))
    finally:
        owner.kill()
    files, owners = ({**each, "partitions": []} for each in found)
    assert owners == files
    assert owners["directory"] == "DIR"


@pytest.mark.long
def test_by_way_of_an_address(spark, ran, tmp_path):
    """The same frames, from a copy at a place that other hosts could read; made once for an epoch."""
    directory, place = ran(tumbling), f"file://{tmp_path}/share"
    for options in ({}, {"epoch": 1}, {"since": 1}):
        found = recovery.native_state(spark, directory, scratch_directory=place, **options)
        assert ordered(found) == ordered(recovery.native_state(spark, directory, **options))
    [table] = {tuple(row) for row in recovery.native_operators(spark, directory, scratch_directory=place).collect()}
    assert [table] == [tuple(row) for row in recovery.native_operators(spark, directory).collect()]
    assert len(list((tmp_path / "share").iterdir())) == 2
    for wrong, kind in (("share", recovery.ConfigurationError), ("nosuch://bucket/scratch", recovery.StorageError)):
        with pytest.raises(kind, match="scratch"):
            recovery.native_state(spark, directory, scratch_directory=wrong)


@pytest.mark.long
def test_rows_of_a_plan_that_is_sorted(spark, ran):
    """It is computed twice, and Spark counts twice: unknown."""
    check_unknown(spark, ran(by_value, output_mode="complete"))


def check_unknown(spark, directory):
    """Not shown as a number."""
    assert rows(directory) == {0: None}
    assert recovery.native_state(spark, directory).count() > 0
    assert "unknown" in CliRunner().invoke(main, ["status", str(directory)]).output


@of_the_format
def test_the_format_gives_what_native_state_gives(spark, ran):
    """Of windows at any epoch and between two, and of a side of a join; SQL on it is as on any frame."""
    windows = ran(tumbling, UNTRACKED)
    assert same(spark, windows, epoch=1) != same(spark, windows)
    assert {row.change for row in same(spark, windows, epoch=2, since=1)} == {"added", "changed"}
    same(spark, ran(join, files=1), store="left", epoch=1)
    frame = spark.read.format("recovery").option("operator", 0).option("epoch", 1).load(str(windows))
    assert frame.join(frame.select("key"), "key").where("key.key = 'k1'").select("value.*").columns == ["count", "sum"]
    assert "driver" not in frame._jdf.queryExecution().toString()


@of_the_format
@first(
    ("options", "error"),
    [({"operator": 5}, "operator 5 has no state"), ({"operator": "x"}, "is no operator"),
     ({"operator": 0, "step": "totals"}, "step or operator"), ({"operator": 0, "timers": "true"}, "has no timers"),
     ({"operator": 0, "epoch": 1, "sinceEpoch": 2}, "is newer than")],
)  # fmt: skip
def test_what_the_format_cannot_read(spark, ran, options, error):
    """It says why, as native_state does."""
    with pytest.raises(PySparkException, match=error):
        spark.read.format("recovery").options(**options).load(str(ran(tumbling, UNTRACKED))).collect()


@pytest.mark.long
def test_timers_and_variables(spark, ran):
    """The timers that are registered at an epoch, and which came and went between two; by all ways the same. Other
    operators have none."""
    pytest.importorskip("google.protobuf", reason="transformWithState in Python needs it")
    directory = ran(timers, STORES["rocksdb"], files=3)
    [operator] = facts(directory, "checkpoint", "show")["operators"]
    assert (operator["variables"], operator["timers"]) == (["total", "values"], True)
    before = {(row.key.key, row.expiration_timestamp_ms) for row in same(spark, directory, epoch=1, timers=True)}
    frame = recovery.native_state(spark, directory, timers=True)
    now = {(row.key.key, row.expiration_timestamp_ms) for row in frame.collect()}
    assert before > now
    changes = same(spark, directory, since=1, timers=True)
    assert {(row.change, row.key.key, row.before, row.after) for row in changes} == {
        ("removed", key, at, None) for key, at in before - now
    }
    changes = same(spark, directory, since=0, epoch=1, timers=True)
    assert {(row.change, row.key.key, row.before, row.after) for row in changes} == {
        ("added", key, None, at) for key, at in before
    }
    same(spark, directory, variable="values")
    variables = [recovery.native_state(spark, directory, variable=name) for name in operator["variables"]]
    assert rows(directory) == {0: sum(variable.select("key").distinct().count() for variable in variables)}
    with pytest.raises(recovery.ConfigurationError, match="cannot be combined with a store"):
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


def seen(spark, directory, **options):
    """The values of every key at every held epoch, by `native_state`: JSON text by epoch, by key. Of a key with several
    rows all of them."""
    found: dict[str, dict[int, list[str]]] = {}
    for epoch in filter(None, facts(directory, "status")["window"]):
        frame = recovery.native_state(spark, directory, epoch=epoch, **options)
        [value] = [name for name in frame.columns if name not in ("key", "partition_id")]
        rows = frame.select(F.to_json("key").alias("key"), F.to_json(F.struct(F.col(value).alias("value"))).alias("v"))
        for key, text in sorted((row.key, row.v) for row in rows.collect()):
            found.setdefault(key, {}).setdefault(epoch, []).append(json.loads(text)["value"])
    return found


def check_history(spark, directory, keys=1, **options):
    """The history of the keys that changed most is that of what they were at every epoch. Returns that of the first."""
    several = "store" in options or options.get("timers", False)
    expected = seen(spark, directory, **options)
    most = sorted(expected, key=lambda key: -len(set(map(str, expected[key].values()))))[:keys]
    found = [recovery.native_history(spark, directory, key, **options) for key in most]
    for key, history in zip(most, found, strict=True):
        at, now = {}, None
        versions = {each.epoch: each for each in history.versions}
        for epoch in range(history.oldest, history.newest + 1):
            version = versions.get(epoch)
            if version is not None:
                now = None if version.what == "removed" else version.value
            if now is not None:
                at[epoch] = now if several else [now]
        assert at == expected[key], key
        assert all(one.value != other.value for one, other in itertools.pairwise(history.versions))
    return found[0]


@pytest.mark.long
def test_how_a_key_came_to_its_value(spark, ran):
    """At every held epoch: by whom, and what changed."""
    directory = ran(tumbling, UNTRACKED)
    history = check_history(spark, directory)
    assert [each.what for each in history.versions] == ["written"] * len(history.versions)
    assert all(each.closed is not None for each in history.versions)
    assert {change.path for each in history.versions[1:] for change in each.changes} <= {"count", "sum"}
    no_such = json.dumps({**json.loads(history.key), "key": "no such"})
    with pytest.raises(recovery.StateNotFoundError, match="no state of key"):
        recovery.native_history(spark, directory, no_such)


@pytest.mark.long
def test_how_several_values_came_about(spark, ran):
    """Of a side of a join, of variables, and of timers."""
    check_history(spark, ran(join, files=1), keys=2, store="left")
    pytest.importorskip("google.protobuf", reason="transformWithState in Python needs it")
    directory = ran(timers, STORES["rocksdb"], files=3)
    check_history(spark, directory, keys=2, variable="total")
    check_history(spark, directory, keys=2, timers=True)


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
def test_how_a_key_came_to_its_value_over_many_epochs(spark, tmp_path, store):
    """Where Spark writes snapshots and removes files meanwhile, after a rewind, and where old epochs were collected."""
    source, directory = tmp_path / "in", tmp_path / "db"
    with set_to(spark, {**STORES[store], **BUSY}):
        for files, options in ((12, {}), (14, {"resume_epoch": 9}), (18, {"backup_interval": "3s"})):
            write_events(source, 0, files)
            run_to_end(tumbling(spark, source), directory, **{"backup_interval": "1h", **options}, discard_history=True)
    check_history(spark, directory, keys=2)


def test_what_spark_fails_to_read(spark, ran, monkeypatch):
    """An error in a task is one of this package's. Here it is that of rows with a field more than their schema."""
    monkeypatch.setattr(operator_state, "sound", lambda frame, _: frame)
    with pytest.raises(recovery.StateValueError, match="ArrayIndexOutOfBounds"):
        operator_state.rows_as_json(recovery.native_state(spark, ran(join, files=1), store="left"), 5)


@pytest.mark.long
def test_history_and_diff_on_the_command_line(spark, ran, monkeypatch):
    """Two epochs differ in an operator; a directory equals itself; without --operator nothing is taken for equal."""
    directory = ran(tumbling, UNTRACKED)
    for name in ("diff", "history", "operators"):
        module = importlib.import_module(f"recovery.cli.{name}")
        monkeypatch.setattr(module, "session", lambda conf: contextlib.nullcontext(spark))

    def call(*words, code=0):
        done = CliRunner().invoke(main, [*map(str, words)])
        assert done.exit_code == code, done.output
        return done

    sides = call("checkpoint", "show", ran(join, files=1), "--operator", 0, "--store", "left").stdout
    assert sides.splitlines()[0].split() == ["key", "value"]
    both = ["diff", directory, directory]
    found = json.loads(call(*both, "--epoch-a", 1, "--operator", 0, "--json", "--limit", 1000, code=1).stdout)
    counts = found["steps"]["operator 0"]
    assert (counts["only_in_a"], counts["changed"] > 0, counts["only_in_b"] > 0) == (0, True, True)
    changed = [each for each in found["differences"] if each["what"] == "changed"]
    assert len(changed) == counts["changed"]
    assert {field["path"] for each in changed for field in each["fields"]} == {"count", "sum"}
    known = json.loads(call(*both, "--operator", 0, "--json").stdout)
    assert known["equal"]
    assert known["steps"]["operator 0"]["equal"] == recovery.native_state(spark, directory).count()
    only = call(*both, "--epoch-a", 1, "--operator", 0, "--ignore-field", "count", "--ignore-field", "sum", code=1)
    assert "only in B" in only.stdout
    refused = call(*both, "--epoch-a", 1, code=recovery.ConfigurationError.exit_code)
    assert "Give --operator N" in refused.stderr
    key = changed[0]["key"]
    text = call("history", directory, "--operator", 0, "--key", key).stdout
    assert "sum: " in text
    shown = json.loads(call("history", directory, "--operator", 0, "--key", key, "--json").stdout)
    values = [each["value"] for each in shown["versions"]]
    assert (changed[0]["a"] in values, changed[0]["b"], shown["operator"]) == (True, values[-1], 0)
