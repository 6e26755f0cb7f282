"""Pipelines and incremental loads on Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from recovery import (
    ConfigurationError,
    Flow,
    FlowFailedError,
    FlowMismatchError,
    InputUnavailableError,
    Node,
    Pipeline,
    RecoveryConfig,
    SparkFailedError,
    StateBackendError,
    StateLockedError,
    StateManager,
    incremental,
    init_partitions,
    run_pipeline,
    start,
)
from recovery.base.clock import SystemClock
from recovery.base.ids import BatchId
from recovery.epochs.writer import EpochWriter
from recovery.spark.jvm.versions import VERSION
from recovery.spark.pipelines.incremental import FlowLoads, Incremental, Load, Loading, _current
from tests.operational.support import IMPATIENT, SetClock
from tests.owner.served import invoked
from tests.shares import first, some
from tests.spark.support import ROOT, run_here, run_to_end, totals_step

MOMENT = datetime(2024, 5, 1, 12, tzinfo=UTC)


class Table:
    """A source table that grows, and what the node wrote of it, load by load."""

    def __init__(self, spark, kind: str) -> None:
        self.spark = spark
        self.kind = kind
        self.rows: list = []
        self.loads: list[list] = []

    def read(self, spark):
        return spark.createDataFrame([(n, value) for n, value in enumerate(self.rows)], f"n int, value {self.kind}")

    def write(self, frame) -> None:
        self.loads.append([row.n for row in frame.orderBy("n").collect()])


@pytest.fixture
def directory(tmp_path):
    init_partitions(tmp_path / "db", 2)
    return tmp_path / "db"


def run(spark, directory, *nodes, **options):
    """Run a pipeline of these nodes."""
    config = RecoveryConfig(directory, backup_interval="1h", resume_epoch=options.pop("resume_epoch", None))
    return run_pipeline(Pipeline("nightly", nodes), config, spark=spark, **options)


def load(table, **options):
    """A node that loads a table incrementally."""
    return Node("load", read=incremental(table.read, column="value", key="orders", **options), write=table.write)


KINDS = {
    "int": [1, 2, 3],
    "string": ["a", "b", "c"],
    "decimal(9,2)": [Decimal("1.10"), Decimal("2"), Decimal("3")],
    "date": [date(2024, 5, day) for day in (1, 2, 3)],
    "timestamp": [MOMENT + timedelta(microseconds=n) for n in range(3)],
    "timestamp_ntz": [MOMENT.replace(tzinfo=None) + timedelta(hours=n) for n in range(3)],
}


@pytest.mark.parametrize("kind", some(KINDS, "timestamp"))
def test_loads_what_is_newer(spark, directory, kind):
    """All the first time, then what lies above the mark; NULLs the first time only, and counted."""
    table, values = Table(spark, kind), KINDS[kind]
    table.rows = [values[0], None, values[1]]
    summary = run(spark, directory, load(table))
    check_counts(summary.nodes["load"], 3, 1)
    assert StateManager(directory).get_hwm("orders") == values[1]
    assert type(StateManager(directory).get_hwm("orders")) is type(values[1])
    run(spark, directory, load(table))
    table.rows += [values[2], None]
    summary = run(spark, directory, load(table))
    assert table.loads == [[0, 1, 2], [], [3]]
    check_counts(summary.nodes["load"], 1, 2)


def check_counts(node, rows, nulls):
    """How many rows were loaded, and how many have no mark. Before 4.3 Spark may count rows more than once."""
    assert node.details["nulls"] == {"orders": nulls}
    assert node.rows == rows if VERSION >= (4, 3) else node.rows >= rows


@pytest.mark.any_spark
def test_going_back_loads_again(spark, directory):
    """The mark belongs to the epoch that closed after the write: before it, it is as it was."""
    table = Table(spark, "int")
    for value in (1, 2, 3):
        table.rows.append(value)
        run(spark, directory, load(table))
    assert StateManager(directory).get_last_run_info("nightly", "load")["details"]["epoch"] == 3
    run(spark, directory, load(table), resume_epoch=2)
    assert table.loads == [[0], [1], [2], [1, 2]]
    assert [r.kind for r in StateManager(directory).list_runs()] == ["pipeline"] * 4


def test_lag_window_and_fallback(spark, directory):
    """Rows that come late, the last days, and another column where the first is NULL."""
    table = Table(spark, "timestamp")
    table.rows = [MOMENT, MOMENT + timedelta(hours=2)]
    run(spark, directory, load(table, watermark_lag="1h"))
    table.rows += [MOMENT + timedelta(minutes=90), MOMENT + timedelta(minutes=30)]
    run(spark, directory, load(table, watermark_lag="1h"))
    assert table.loads == [[0, 1], [1, 2]]
    assert StateManager(directory).get_hwm("orders") == MOMENT + timedelta(hours=2)
    window = incremental(table.read, column="value", key="window", mode="rolling_window", lookback="1h")
    clock = SetClock(int((MOMENT + timedelta(hours=2)).timestamp() * 1000))
    run(spark, directory, Node("window", read=window, write=table.write), clock=clock)
    assert table.loads[-1] == [1, 2]
    assert StateManager(directory).get_hwm("window") is None
    table.rows = [MOMENT, None]
    reader = lambda spark: table.read(spark).selectExpr("n", "value", "timestamp '2024-05-02 00:00:00' AS other")  # noqa: E731
    fallback = incremental(reader, column="value", key="fallback", fallback_column="other")
    run(spark, directory, Node("fallback", read=fallback, write=table.write))
    assert StateManager(directory).get_hwm("fallback") == datetime(2024, 5, 2, tzinfo=UTC)


def pipelines(spark, directory, name, table, **options):
    """Run a pipeline of one load whose key is the name of its node."""
    node = Node(options.pop("node", "load"), read=incremental(table.read, column="value"), write=table.write)
    return run_pipeline(Pipeline(name, [node]), RecoveryConfig(directory, backup_interval="1h"), spark=spark, **options)


@pytest.mark.long
def test_several_pipelines_in_one_directory(spark, directory):
    """In turn; each has its marks, whose keys are the names of the nodes; the same mark of two pipelines is refused
    before anything is written, until it is set by hand."""
    orders, customers = Table(spark, "int"), Table(spark, "int")
    for rows in ([1], [1, 2]):
        orders.rows = customers.rows = rows
        pipelines(spark, directory, "orders", orders, node="load orders")
        pipelines(spark, directory, "customers", customers)
    assert orders.loads == customers.loads == [[0], [1]]
    state = StateManager(directory)
    assert [(mark.key, mark.value, mark.pipeline) for mark in state.list_hwms()] == [
        ("load", 2, "customers"), ("load orders", 2, "orders"),
    ]  # fmt: skip
    assert {run.pipeline for run in state.list_runs()} == {"orders", "customers"}
    other = Table(spark, "int")
    other.rows = [1, 2, 3]
    with pytest.raises(FlowFailedError, match="pipeline 'customers' moves the high-water mark 'load', and 'renamed'"):
        pipelines(spark, directory, "renamed", other)
    assert other.loads == []
    state.set_hwm("load", 2, force=True)
    pipelines(spark, directory, "renamed", other)
    assert other.loads == [[2]]


def test_loads_without_a_key(spark):
    """One a node; none where there is no node."""
    load = Incremental(lambda spark: None, "value", None, "stateful", None, None, None)
    context = Loading(spark, lambda _: None, SetClock(), "load", loads=[Load("load", None, 1, 0)])
    with pytest.raises(ConfigurationError, match="two loads without a key"):
        load._load_for_node(context)
    with pytest.raises(ConfigurationError, match="it has no key"):
        load._load_for_node(Loading(spark, lambda _: None, SetClock()))


def test_a_flow_s_directory_is_refused(spark, feed, tmp_path):
    """A pipeline would abandon the flow's state."""
    feed.add_random(1, count=5)
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db")
    with pytest.raises(FlowMismatchError):
        pipelines(spark, tmp_path / "db", "nightly", Table(spark, "int"))


@pytest.mark.parametrize("elsewhere", some([False, True], False))
@pytest.mark.any_spark
def test_full_refresh_and_no_state_update(spark, directory, tmp_path, elsewhere):
    """Everything is loaded again, and the mark follows what there is now, backwards too; or it does not move at all."""
    table = Table(spark, "int")
    config = RecoveryConfig(directory, state_backend=f"file://{tmp_path}/state?create=1" if elsewhere else None)
    pipeline = Pipeline("nightly", [load(table)])

    def again(rows, **options):
        table.rows = rows
        summary = run_pipeline(pipeline, config, spark=spark, **options)
        state = StateManager(directory, backend=config.state_backend)
        return table.loads[-1], state.get_hwm("orders"), summary.nodes["load"].status

    again([1, 2, 3])
    assert again([1, 2, 3, 4], no_state_update=True) == ([3], 3, "succeeded")
    assert again([1, 2, 3, 4], resume=True)[2] == "skipped"
    assert again([1, 2, 3, 4]) == ([3], 4, "succeeded")
    assert again([1, 2], full_refresh=True, no_state_update=True) == ([0, 1], 4, "succeeded")
    assert again([1, 2], full_refresh=True) == ([0, 1], 2, "succeeded")
    assert again([None], full_refresh=True) == ([0], None, "succeeded")
    assert again([1]) == ([0], 1, "succeeded")
    for options in ({"resume": True, "full_refresh": True}, {"no_state_update": True}):
        going_back = replace(config, resume_epoch=None if "resume" in options else 1)
        with pytest.raises(ConfigurationError, match="Run the pipeline with one of them"):
            run_pipeline(pipeline, going_back, spark=spark, **options)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("oracle", "20-APR-24"),
        *(pytest.param(*each, marks=pytest.mark.long) for each in [("us", "04/20/2024"), ("eu", "20/04/2024")]),
    ],
)
def test_odibi_s_names_of_date_formats(spark, directory, name, text):
    table = Table(spark, "string")
    table.rows = [text]
    run(spark, directory, load(table, date_format=name))
    assert StateManager(directory).get_hwm("orders") == date(2024, 4, 20)


@pytest.mark.any_spark
def test_a_write_that_leaves_its_work_undone_moves_no_mark(spark, directory):
    """The node fails, and the next run loads its rows again; a function that shows it is refused before."""

    async def later(frame):
        pass

    table = Table(spark, "int")
    table.rows = [1, 2]
    load = incremental(table.read, column="value", key="t")
    for write in (later, lambda frame: later(frame)):
        with pytest.raises((ConfigurationError, FlowFailedError), match=r"asynchronous|returned a coroutine"):
            run_pipeline(Pipeline("p", [Node("a", load, write)]), RecoveryConfig(directory), spark=spark)
    run_pipeline(Pipeline("p", [Node("a", load, table.write)]), RecoveryConfig(directory), spark=spark)
    assert table.loads == [[0, 1]]


@pytest.mark.any_spark
def test_a_failed_write_moves_no_mark(spark, directory):
    """The next run loads the same again; what needs the node is blocked, the others run."""
    table, other = Table(spark, "int"), Table(spark, "int")
    table.rows, other.rows = [1, 2], [1]

    def broken(frame):
        frame.count()
        raise ZeroDivisionError("disk on fire")

    nodes = [
        Node("load", read=incremental(table.read, column="value", key="orders"), write=broken),
        Node("report", read=other.read, write=other.write, needs=["load"]),
        Node("other", read=other.read, write=other.write),
    ]
    with pytest.raises(FlowFailedError, match=r"node 'load': ZeroDivisionError: disk on fire"):
        run(spark, directory, *nodes)
    state = StateManager(directory)
    assert state.get_hwm("orders") is None
    statuses = {n: state.get_last_run_info("nightly", n)["status"] for n in ("load", "report", "other")}
    assert statuses == {"load": "failed", "report": "blocked", "other": "succeeded"}
    assert state.get_last_run_info("nightly", "load")["details"] == {"data_written": False}
    summary = run(spark, directory, load(table), *nodes[1:], resume=True)
    assert table.loads == [[0, 1]]
    assert {name: node.status for name, node in summary.nodes.items()} == {
        "load": "succeeded", "report": "succeeded", "other": "skipped",
    }  # fmt: skip
    assert summary.nodes["report"].why == "it was blocked in the last run"
    summary = run(spark, directory, load(table), *nodes[1:], resume=True)
    assert {node.status for node in summary.nodes.values()} == {"skipped"}


@pytest.mark.long
def test_what_was_to_blame_for_all_nodes_that_failed_ends_the_run(spark, directory):
    """A source that does not answer, a worker that was killed: a supervisor may start the command again. Beside a node
    whose own code failed, that one counts."""

    def die(batches):
        yield from batches
        os.kill(os.getpid(), signal.SIGKILL)

    table = Table(spark, "int")
    table.rows = [1]
    remote = Node("remote", read=lambda spark: spark.read.text("hdfs://127.0.0.1:1/in"), write=table.write)
    other = Node("other", read=lambda spark: spark.read.text("hdfs://127.0.0.1:1/other"), write=table.write)
    killed = Node("killed", read=table.read, write=lambda frame: frame.mapInArrow(die, frame.schema).collect())
    broken = Node("broken", read=table.read, write=lambda frame: 1 // 0)
    for nodes, kind in (
        ([remote, other], InputUnavailableError),
        ([killed], SparkFailedError),
        ([remote, broken], FlowFailedError),
    ):
        with pytest.raises(
            kind, match=rf"node '{nodes[0].name}': {'Spark' if nodes[0] is killed else 'Input'}"
        ) as raised:
            run(spark, directory, *nodes)
        assert type(raised.value) is kind
        assert "--resume" in raised.value.remedy


@pytest.mark.any_spark
def test_a_mark_that_cannot_be_moved_fails_its_node_and_says_that_the_data_were_written(spark, directory, monkeypatch):
    """The next run loads them again."""
    table = Table(spark, "int")
    table.rows = [1]

    def unreachable(*_, **__):
        raise StateBackendError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(EpochWriter, "close", unreachable)
        with pytest.raises(FlowFailedError, match="its data were written, but the high-water mark of 'orders'"):
            run(spark, directory, load(table))
    state = StateManager(directory)
    info = state.get_last_run_info("nightly", "load")
    assert (info["status"], info["details"]) == ("failed", {"data_written": True})
    assert state.get_hwm("orders") is None
    run(spark, directory, load(table), resume=True)
    assert table.loads == [[0], [0]]
    assert state.get_hwm("orders") == 1


@pytest.mark.long
def test_with_a_state_backend_elsewhere(spark, tmp_path):
    """Marks and history live there, without a recovery directory."""
    table = Table(spark, "int")
    table.rows = [1]
    uri = f"file://{tmp_path}"
    config = RecoveryConfig(uri, state_backend=uri)
    run_pipeline(Pipeline("nightly", [load(table)]), config, spark=spark, environment="prod")
    assert StateManager(uri, environment="prod").get_hwm("orders") == 1
    assert StateManager(uri).get_hwm("orders") is None
    assert StateManager(uri, environment="prod").get_last_run_status("nightly", "load") is True
    with (
        StateManager(uri).lock("pipelines/nightly", "the other run"),
        pytest.raises(StateLockedError, match="the other"),
    ):
        run_pipeline(Pipeline("nightly", [load(table)]), config, spark=spark, retry=IMPATIENT)


@pytest.mark.long
def test_in_the_sink_of_a_flow(spark, feed, tmp_path):
    """Each micro-batch loads what is newer than the one before it; the mark goes back with the epoch that has it."""
    table = Table(spark, "int")
    seen: list[list] = []

    def write(batch, batch_id):
        table.rows.append(len(table.rows))
        newer = incremental(table.read, column="value", key="orders")
        seen.append([row.n for row in newer.orderBy("n").collect()])
        if len(seen) == 3:
            raise ZeroDivisionError

    frame = feed.frame(spark).transform(totals_step())
    for seed in range(4):
        feed.add_random(seed, count=5)
    with pytest.raises(FlowFailedError):
        run_to_end(frame, tmp_path / "db", write, snapshot_interval=1000, backup_interval="1h")
    assert seen == [[0], [1], [2]]
    assert StateManager(tmp_path / "db").get_hwm("orders") == 1
    run_to_end(frame, tmp_path / "db", write, backup_interval="1h")
    assert seen[3:] == [[2, 3], [4]]
    assert StateManager(tmp_path / "db").get_hwm("orders") == 4
    del seen[:]
    seen.append([])
    run_to_end(frame, tmp_path / "db", resume_epoch=2, backup_interval="1h")
    assert StateManager(tmp_path / "db").get_hwm("orders") == 1


@first(
    ("kind", "values", "then", "changed"),
    [("bigint", [9], "string", ["10", "11"]), ("string", ["9"], "bigint", [10]),
     ("date", [date(2024, 5, 1)], "timestamp", [MOMENT + timedelta(days=9)]),
     ("timestamp", [MOMENT], "timestamp_ntz", [MOMENT.replace(tzinfo=None) + timedelta(days=9)])],
)  # fmt: skip
@pytest.mark.parametrize("lag", some([None, 1], 1))
def test_a_column_of_another_type(spark, directory, kind, values, then, changed, lag):
    """It is not compared with the mark, by which rows would be passed over, but refused, with the way out."""
    table, options = Table(spark, kind), {"watermark_lag": lag if kind != "string" else None}
    table.rows = values
    run(spark, directory, load(table, **options))
    table.kind, table.rows = then, changed
    with pytest.raises(FlowFailedError, match=rf"HighWaterMarkError: .*'value' of {then}.*--force"):
        run(spark, directory, load(table, **options))
    assert len(table.loads) == 1


@pytest.mark.parametrize(
    ("kind", "values", "then", "changed", "loaded"),
    [pytest.param("double", [-1.5], "bigint", [-2, -1, 0], [1, 2], marks=pytest.mark.long),
     pytest.param("decimal(10,1)", [Decimal("1.9")], "decimal(10,0)", [Decimal(1), Decimal(2)], [1],
                  marks=pytest.mark.long),
     ("bigint", [2], "decimal(10,1)", [Decimal("1.9"), Decimal("2.1")], [1]),
     pytest.param("float", [0.5], "double", [0.5, 0.75], [1], marks=pytest.mark.long)],
)  # fmt: skip
def test_a_column_of_other_numbers(spark, directory, kind, values, then, changed, loaded):
    """They are compared as what they are: neither the mark nor the column is rounded."""
    table = Table(spark, kind)
    table.rows = values
    run(spark, directory, load(table))
    table.kind, table.rows = then, changed
    run(spark, directory, load(table))
    assert table.loads[1] == loaded


def test_one_mark_for_two_loads(spark, directory):
    """What one has loaded the other would pass over: refused, in one pipeline and in one node."""
    one, two = Table(spark, "int"), Table(spark, "int")
    one.rows, two.rows = [10], [4]
    nodes = [Node(name, read=load(table).read, write=table.write) for name, table in (("one", one), ("two", two))]
    with pytest.raises(ConfigurationError, match="2 loads with the high-water mark 'orders'"):
        Pipeline("nightly", nodes)
    both = Node("both", lambda spark: nodes[0].read(spark).union(nodes[1].read(spark)), one.write)
    with pytest.raises(FlowFailedError, match="loaded here already"):
        run(spark, directory, both)
    assert one.loads == []


@first("code", [None, 0, "bad input"])
@pytest.mark.any_spark
def test_a_node_that_leaves_the_program_fails(spark, directory, code):
    """Others go on, and the history says what failed."""
    table, other = Table(spark, "int"), Table(spark, "int")
    table.rows = other.rows = [1]

    def leave(frame):
        sys.exit(code)

    with pytest.raises(
        FlowFailedError,
        match=rf"node 'load': SystemExit: {'' if code is None else code} \(test_pipelines.py, line \d+\)",
    ):
        run(
            spark, directory, Node("load", read=load(table).read, write=leave),
            Node("after", read=other.read, write=other.write, needs=["load"]),
            Node("other", read=other.read, write=other.write),
        )  # fmt: skip
    [last] = StateManager(directory).list_runs("nightly")
    assert {name: node.status for name, node in last.nodes.items()} == {
        "load": "failed", "after": "blocked", "other": "succeeded",
    }  # fmt: skip
    assert StateManager(directory).get_hwm("orders") is None
    assert other.loads == [[0]]


def test_going_back_goes_with_no_skipping(spark, directory):
    """A node would be skipped whose mark was just put back."""
    table = Table(spark, "int")
    table.rows = [1]
    run(spark, directory, load(table))
    with pytest.raises(ConfigurationError, match="resume_epoch puts back"):
        run(spark, directory, load(table), resume=True, resume_epoch=1)


def test_going_back_needs_epochs(spark, directory, tmp_path):
    """Marks in a state backend elsewhere belong to none: the option would change nothing."""
    table = Table(spark, "int")
    table.rows = [1]
    config = RecoveryConfig(directory, state_backend=f"file://{tmp_path}")
    run_pipeline(Pipeline("nightly", [load(table)]), config, spark=spark)
    with pytest.raises(ConfigurationError, match="those in a state backend belong to none"):
        run_pipeline(Pipeline("nightly", [load(table)]), replace(config, resume_after=0), spark=spark)


def test_a_flow_without_recovery_has_no_marks(spark, feed):
    """The error says so; before, the sink got something that is no frame. A window needs no mark."""
    feed.add([("a", 1)])
    moments, counts = Table(spark, "timestamp"), []
    moments.rows = [MOMENT]

    def write(batch, batch_id):
        counts.append(incremental(moments.read, column="value", key="m", lookback="1h").count())
        incremental(moments.read, column="value", key="m").count()

    flow = Flow("totals", lambda _: feed.frame(spark).transform(totals_step()), write)
    with pytest.raises(ConfigurationError, match="the load of 'm' cannot be done: a run without a recovery directory"):
        start(flow, None, spark=spark, trigger="available-now").await_termination()
    assert counts == [0]


@pytest.mark.any_spark
def test_micro_batches_without_marks_leave_nothing_behind():
    """A run without recovery closes no epoch. Of a micro-batch that is processed again, the second time counts."""
    loads = FlowLoads(None, SystemClock())
    for batch in range(3):
        with loads.during(None, BatchId(batch)):
            pass
    assert loads._moved == {}
    for found in ([Load("m", None, 1, 0)], []):
        with loads.during(None, BatchId(3)):
            _current.get().loads.extend(found)
        assert loads._moved == ({3: {"m": 1}} if found else {})


def test_a_lag_that_does_not_fit_the_column(spark, directory):
    """The first run reports it, before anything is written."""
    table = Table(spark, "int")
    table.rows = [1]
    with pytest.raises(FlowFailedError, match="watermark_lag='1d' cannot be taken from 1"):
        run(spark, directory, load(table, watermark_lag="1d"))
    assert table.loads == []


@pytest.mark.long
def test_a_number_of_days(spark, directory):
    """Of a column of dates, a lag and a lookback without a unit are days."""
    table = Table(spark, "date")
    table.rows = [date(2024, 5, 1), date(2024, 4, 4), date(2024, 4, 3)]
    run(spark, directory, load(table))
    run(spark, directory, load(table, watermark_lag=28))
    assert table.loads == [[0, 1, 2], [0, 1]]


@pytest.mark.long
def test_rows_that_come_later_with_the_value_of_the_mark(spark, directory):
    """They are passed over, as the documentation says; with a lag they come, and those before them again."""
    table = Table(spark, "date")
    table.rows = [date(2024, 5, 1)]
    run(spark, directory, load(table))
    table.rows.append(date(2024, 5, 1))
    run(spark, directory, load(table))
    run(spark, directory, load(table, watermark_lag="1d"))
    assert table.loads == [[0], [], [0, 1]]


@pytest.mark.parametrize(
    "options", [{"mode": "odd"}, {"mode": "stateful", "lookback": "1h"}, {"mode": "rolling_window"},
                {"mode": "rolling_window", "lookback": 1, "watermark_lag": 1},
                {"watermark_lag": -5}, {"watermark_lag": float("nan")}],
)  # fmt: skip
def test_loads_that_make_no_sense(options):
    """Refused when they are described."""
    with pytest.raises(ConfigurationError, match="'orders'"):
        incremental(lambda spark: None, column="value", key="orders", **options)


def command_line(directory: Path, *arguments: str) -> subprocess.CompletedProcess:
    """`recovery run` in a directory."""
    command = [sys.executable, "-m", "recovery", "run", *arguments, "--master", "local[1]"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def refused_line(*words: str) -> subprocess.CompletedProcess:
    """`recovery run` in the current directory, refused before it starts Spark."""
    return invoked("run", words[0], "-r", "db", *words[1:], "--master", "local[1]")


@pytest.mark.long
def test_what_fails_says_where(tmp_path):
    """The node's own line, also of what Spark finds wrong, and nothing of the plan."""
    init_partitions(tmp_path / "db", 1)
    (tmp_path / "jobs.py").write_text("""
from recovery import Node, Pipeline
def missing(spark):
    return spark.range(3).select("missing")
def write(frame):
    return frame.collect()[10]
pipeline = Pipeline("nightly", [
    Node("one", read=lambda spark: spark.range(3), write=write), Node("two", read=missing, write=write),
])
""")
    done = command_line(tmp_path, "jobs.py", "-r", "db")
    assert done.returncode == FlowFailedError.exit_code
    one, two = (line for line in done.stderr.splitlines() if ": failed in " in line)
    assert one.endswith(": IndexError: list index out of range (jobs.py, line 6)")
    assert two.endswith("Did you mean one of the following? [`id`]. (jobs.py, line 4)")
    error = done.stderr.splitlines()[-3]
    assert error.startswith("Error: node 'one': IndexError: ")
    assert error.endswith("(jobs.py, line 4)")
    assert len(done.stderr.splitlines()) == 8


def test_on_the_command_line(spark, tmp_path, monkeypatch):
    """`recovery run` runs a pipeline, and says of every node why it ran."""
    monkeypatch.chdir(tmp_path)
    init_partitions(tmp_path / "db", 1)
    (tmp_path / "jobs.py").write_text("""
from pathlib import Path
from recovery import Node, Pipeline, incremental
orders = incremental(lambda spark: spark.range(5), column="id", key="orders")
# The JVM of the tests is in another directory.
output = str(Path("out").resolve())
pipeline = Pipeline("nightly", [
    Node("load", read=orders, write=lambda frame: frame.write.mode("overwrite").parquet(output)),
    Node("report", read=lambda spark: spark.read.parquet(output), write=lambda frame: frame.collect(), needs=["load"]),
])
""")
    done = run_here(spark, "jobs.py", "-r", "db", "--resume", "--json")
    assert done.returncode == 0, done.stderr
    nodes = json.loads(done.stdout)["nodes"]
    assert {name: (node["status"], node["rows"], node["why"]) for name, node in nodes.items()} == {
        "load": ("succeeded", 5, "there was no run before"),
        "report": ("succeeded", 5, "there was no run before"),
    }
    assert StateManager(tmp_path / "db").get_hwm("orders") == 4
    for options in (["--resume", "--full-refresh"], ["--no-state-update", "--resume-after", "0"]):
        done = refused_line("jobs.py", *options)
        assert (done.returncode, "Run the pipeline with one of them" in done.stderr) == (11, True), done.stderr
    done = refused_line("jobs.py", "--lose-epochs")
    assert (done.returncode, "is for flows" in done.stderr) == (2, True), done.stderr
    (tmp_path / "flow.py").write_text(
        "from recovery import Flow\nflow = Flow('f', lambda spark: spark.readStream.format('rate').load())\n"
    )
    done = refused_line("flow.py", "--full-refresh")
    assert (done.returncode, "is for pipelines" in done.stderr) == (2, True), done.stderr
