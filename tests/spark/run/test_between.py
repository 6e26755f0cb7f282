"""A run of several executions in one session: what it does between them, what it forgets, and how it is stopped."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from dataclasses import replace

import pytest

from recovery import BatchDone, FileSink, Flow, RecoveryConfig, RecoveryError, init_partitions, run, stateful
from recovery.errors import OwnerUnreachableError
from recovery.spark.run import blocking
from recovery.spark.run.between import OwnerLost, added_up, after_loss, settings_of_next
from recovery.spark.run.parts.part import Part
from recovery.spark.run.reporting.events import RunSummary
from tests.cluster.support import assert_exact
from tests.flows.cluster import count, key_of, rows
from tests.shares import first
from tests.stores import query

pytestmark = pytest.mark.any_spark

ROWS = 200


class Between:
    """What is done between two executions here."""

    def __init__(self, does=lambda config, stopping: config) -> None:
        self.does = does
        self.given: list[RecoveryConfig] = []
        self.dropped: list[BaseException | None] = []

    def __str__(self) -> str:
        return "changing the place of nothing"

    def __call__(self, config, stopping):
        self.given.append(config)
        return self.does(config, stopping)

    def drop(self, error):
        self.dropped.append(error)


@pytest.fixture
def running(spark, tmp_path, monkeypatch):
    """Runs a flow; `at` has what happens after a micro-batch: it gets the query. Returns the summary and the events."""
    db = tmp_path / "db"
    init_partitions(db, 3)
    queries = []

    def kept(*arguments, **named):
        queries.append(start_prepared(*arguments, **named))
        return queries[-1]

    start_prepared = blocking.start_prepared
    monkeypatch.setattr(blocking, "start_prepared", kept)

    def go(at, sink=None, **settings):
        def write(batch, batch_id):
            batch.count()
            act(batch_id)

        def act(batch_id):
            if batch_id in at:
                at.pop(batch_id)(queries[-1])

        def observe(event):
            events.append(event)
            if sink is not None and isinstance(event, BatchDone):
                act(event.batch)

        def build(spark):
            return rows(spark, ROWS).transform(stateful("counts", key="key", update=count, output="key string, n long"))

        events = []
        config = RecoveryConfig(db, **{"snapshot_interval": "1h", "backup_interval": "1h", **settings})
        flow = Flow("counts", build, sink=write if sink is None else sink)
        summary = run(flow, config, spark=spark, trigger=0, observer=observe)
        return summary, [type(each).__name__ for each in events], queries

    go.db = db
    return go


@pytest.mark.long
def test_a_run_goes_on_in_its_session(running):
    """Each execution closes its epoch and holds nothing when the next one begins; the summary has the sum."""
    between = Between()
    summary, events, queries = running(
        {
            2: lambda query: query._go_on_after(between),
            4: lambda query: query._go_on_after(between),
            7: lambda query: query.stop(),
        }
    )
    assert assert_exact(running.db, ROWS) == summary.batches == 8
    assert len(queries) == len(between.given) + 1 == 3
    assert events.count("GoingOn") == 2
    assert events.count("Resumed") == summary.execution == 3
    assert (summary.epochs, summary.resume_epoch, summary.last_epoch) == (3, 1, 3)
    assert query(running.db / "part-0.sqlite3", "SELECT count(*) FROM exs") == [(3,)]


def test_output_is_there_once(running, spark, tmp_path):
    """One sink serves all executions: each row that a plain loop puts out is there, once."""
    between = Between()
    at = {
        1: lambda query: query._go_on_after(between),
        3: lambda query: query._go_on_after(between),
        5: lambda query: threading.Thread(target=query.stop).start(),
    }
    summary, _, _ = running(at, FileSink(tmp_path / "out"), snapshot_interval=0)
    batches = assert_exact(running.db, ROWS)
    assert batches == summary.batches
    wanted, counts = Counter(), Counter()
    for batch in range(batches):
        keys = Counter(map(key_of, range(batch * ROWS, (batch + 1) * ROWS)))
        counts += keys
        wanted.update((key, counts[key]) for key in keys)
    assert Counter(tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect()) == wanted


def test_a_rewind_is_not_repeated(running):
    """The next execution goes on where the first one ended, not at the epoch that the user went back to."""
    running({1: lambda query: query.stop()})
    running({3: lambda query: query.stop()})
    between = Between()
    summary, _, _ = running(
        {3: lambda query: query._go_on_after(between), 5: lambda query: query.stop()}, resume_after=1
    )
    assert assert_exact(running.db, ROWS) == 6
    assert (summary.batches, summary.resume_after, summary.last_epoch) == (4, 1, 3)
    assert between.given[0].rewind_to is None


@pytest.mark.long
def test_an_error_between_two_executions_ends_the_run(running):
    """And everything that was closed before stays."""

    def fails(config, stopping):
        raise RecoveryError("there is no way on")

    with pytest.raises(RecoveryError, match="no way on"):
        running({2: lambda query: query._go_on_after(Between(fails))})
    assert assert_exact(running.db, ROWS) == 3
    running({4: lambda query: query.stop()})
    assert assert_exact(running.db, ROWS) == 5


def test_an_error_before_it_is_done(running):
    """The execution ends by the error, and what was to be done is let go of."""
    between = Between()

    def fails(query):
        query._go_on_after(between)
        raise ValueError("the sink is full")

    with pytest.raises(RecoveryError, match="the sink is full"):
        running({2: fails})
    assert between.given == []
    [error] = between.dropped
    assert "the sink is full" in str(error)


def test_an_execution_that_ends_refuses_it(running):
    """Whoever asks does not wait for the end, which may wait for whoever asks."""
    answers = []

    class Late(Part):
        name = "late"

        def __init__(self, query) -> None:
            self.query = query

        def end(self, error):
            asks = threading.Thread(target=lambda: answers.append(self.query._go_on_after(Between())), daemon=True)
            asks.start()
            asks.join(20)
            answers.append("ended")

    def end(query):
        query._run.parts.add(Late(query))
        query.stop()

    running({2: end})
    assert answers == [False, "ended"]


@first("when", ["before", "meanwhile"])
def test_a_signal_keeps_the_next_execution_from_starting(running, when):
    """Whether it comes while the execution ends or between two."""

    def waits(config, stopping):
        signal.raise_signal(signal.SIGTERM)
        assert stopping.wait(30)
        return config

    between = Between(waits)

    def end(query):
        query._go_on_after(between)
        if when == "before":
            signal.raise_signal(signal.SIGTERM)
            # The sink returns when the signal has reached the thread that acts on it.
            assert stopped.wait(30)

    stopped = threading.Event()
    told, blocking._Stopping.tell = blocking._Stopping.tell, None
    try:

        def tell(self, number):
            told(self, number)
            stopped.set()

        blocking._Stopping.tell = tell
        summary, _, queries = running({2: end})
    finally:
        blocking._Stopping.tell = told
    assert assert_exact(running.db, ROWS) == summary.batches == 3
    assert len(queries) == 1
    assert between.dropped == ([None] if when == "before" else [])
    assert len(between.given) == (when == "meanwhile")


def test_a_query_of_start_does_not_go_on(running):
    """Its caller has the query, and waits for it."""
    _, _, queries = running({0: lambda query: query.stop()})
    queries[0]._run.goes_on = False
    with pytest.raises(AssertionError, match="has the query"):
        queries[0]._go_on_after(Between())


def test_what_was_asked_for_one_execution():
    """Permissions and rewinds count once; the loss of input until an epoch says from where on input counts."""
    once = {
        "discard_history": True, "resume_after": 3, "drop_steps": ("a",), "rename_steps": {"b": "c"}, "takeover": True,
        "lose_epochs": True, "lose_input": ("0",),
    }  # fmt: skip
    always = RecoveryConfig("db", backup_interval="1h", keep_steps=("d",), thresholds={})
    given = replace(always, **once)
    closed, nothing = RunSummary("f", "db", epochs=1), RunSummary("f", "db")
    assert settings_of_next(given, closed) == always
    assert settings_of_next(given, nothing) == replace(always, lose_input=("0",))


def test_summaries_add_up():
    """Counts are sums; the beginning is that of the first execution, the end that of the last."""
    first = RunSummary(
        "f", "db", execution=4, resume_epoch=7, resume_after=6, last_epoch=9, epochs=3, batches=5, rows=50, states=20,
        snapshot_s=1.0, elapsed_s=10.0, exceeded=[{"target": "x", "value": 1}], discarded={"epochs": 1},
    )  # fmt: skip
    last = RunSummary("f", "db", execution=5, resume_epoch=10, resume_after=9, elapsed_s=2.0, replica={"epoch": 9})
    assert added_up(None, first) is first
    both = added_up(first, last)
    assert both == replace(
        first, execution=5, elapsed_s=12.0, replica={"epoch": 9}, last_epoch=9,
    )  # fmt: skip


LOST = OwnerUnreachableError("the owner at h2:7337 was lost: no answer")


@pytest.mark.parametrize(
    ("settings", "before", "epochs", "goes_on"),
    [
        ({}, None, 3, False),
        ({"replace_from": "copies"}, None, 0, True),
        ({"replace_from": "copies"}, Between(), 0, True),
        ({"replace_from": "copies"}, OwnerLost(LOST, 60), 1, True),
        # It makes no progress: the error is not that of an owner that can be replaced.
        ({"replace_from": "copies"}, OwnerLost(LOST, 60), 0, False),
    ],
)
def test_how_a_run_goes_on_that_has_lost_an_owner(settings, before, epochs, goes_on):
    """If it has a place to replace owners from, unless it did so just before and has closed nothing since."""
    config, summary = RecoveryConfig("db", **settings), RunSummary("flow", "db", epochs=epochs)
    if not goes_on:
        with pytest.raises(OwnerUnreachableError, match="h2:7337") as raised:
            after_loss(LOST, config, summary, before)
        assert ("no epoch was closed in between" in raised.value.cause) is bool(settings)
        assert "Run the same command again" in raised.value.remedy or not settings
        return
    between = after_loss(LOST, config, summary, before)
    assert between(config, threading.Event()) is config
    assert str(between) == (
        "the owner at h2:7337 was lost: no answer; its partitions come back at other owners if it is away for 1 min"
    )
