"""The parts of a run: each phase in the order in which they were added, and the ends in the reverse, whatever fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recovery import FlowFailedError, RecoveryConfig, StateManager, StorageError, start
from recovery.errors import BackupTargetError, SinkFailedError
from recovery.sinks import DiscardSink
from recovery.spark.run.execution import FlowRun
from recovery.spark.run.parts.mailboxes import Mailboxes
from recovery.spark.run.parts.part import Part, RunParts
from recovery.spark.run.parts.recording import RunRecord
from recovery.spark.run.parts.replicating import ReplicatedClosing
from recovery.spark.run.parts.serving import TaskAccess
from recovery.spark.run.prepare import Prepared
from recovery.spark.run.stream import Stream
from recovery.storage.initialize import init_partitions
from recovery.storage.lock import lock_holder
from tests.shares import first, some
from tests.spark.support import add_up, run_to_end, states, totals_step

pytestmark = pytest.mark.any_spark

PAGE = Path(__file__).parents[4] / "docs" / "commit-protocol.md"


class Heard(Part):
    """A part that notes its phases, and fails in some."""

    def __init__(self, name: str, heard: list[str], *fails: str) -> None:
        self.name = name
        self.heard = heard
        self.fails = fails

    def ready(self) -> None:
        self.hear("ready")

    def end(self, error: BaseException | None) -> None:
        self.hear("end" if error is None else f"end after {error}")

    def hear(self, phase: str) -> None:
        self.heard.append(f"{self.name}: {phase}")
        if phase.split()[0] in self.fails:
            raise OSError(f"{self.name} is away")


class TestEnds:
    """`RunParts.end`."""

    def test_the_last_one_ends_first_and_each_once(self):
        """Also if the run is ended twice."""
        heard: list[str] = []
        parts = RunParts()
        for name in "abc":
            parts.add(Heard(name, heard))
        parts.add_end("d", lambda: heard.append("d: end"))
        for part in parts:
            part.ready()
        assert parts.end() is None
        assert parts.end() is None
        assert heard == ["a: ready", "b: ready", "c: ready", "d: end", "c: end", "b: end", "a: end"]

    def test_an_error_of_an_end_does_not_keep_the_others_from_ending(self, caplog):
        """The first error counts, typed, and the ends after it know the error; another one is logged."""
        heard: list[str] = []
        parts = RunParts()
        for name, fails in (("a", ()), ("b", ("end",)), ("c", ("end",)), ("d", ())):
            parts.add(Heard(name, heard, *fails))
        error = parts.end()
        assert isinstance(error, StorageError)
        assert "c is away" in str(error)
        assert [each.partition(" after ")[0] for each in heard] == ["d: end", "c: end", "b: end", "a: end"]
        assert [" after " in each for each in heard] == [False, False, True, True]
        assert "the b failed as well: OSError: b is away" in caplog.text

    def test_what_ended_the_run_counts_first(self, caplog):
        """An error of an end does not hide it."""
        parts = RunParts()
        parts.add(Heard("a", [], "end"))
        cause = FlowFailedError("the flow's own")
        assert parts.end(cause) is cause
        assert "the a failed as well" in caplog.text

    def test_an_error_that_an_end_notes(self):
        """A part that ends may note an error, as the observer's; it counts, and later ends know it."""
        noted: list[BaseException] = []
        heard: list[str] = []
        parts = RunParts()
        parts.add(Heard("a", heard))
        parts.add_end("b", lambda: noted.append(ValueError("noted")))
        assert str(parts.end(noted=lambda: noted[0] if noted else None)) == "noted"
        assert heard == ["a: end after noted"]

    def test_an_error_within_the_context_ends_all(self):
        """Those that were added before, too. Without an error nothing ends."""
        heard: list[str] = []
        parts = RunParts()
        parts.add(Heard("a", heard))
        with parts.ended_on_error():
            parts.add(Heard("b", heard))
        assert heard == []
        with pytest.raises(KeyboardInterrupt), parts.ended_on_error():
            raise KeyboardInterrupt("^C")
        assert heard == ["b: end after ^C", "a: end after ^C"]


@pytest.fixture
def order(monkeypatch) -> tuple[list[str], list[str]]:
    """The names of the parts that real runs add and end, in order."""
    added: list[str] = []
    ended: list[str] = []
    add = RunParts.add

    def noting(self, part):
        end = part.end

        def noted(error):
            ended.append(part.name)
            end(error)

        added.append(part.name)
        part.end = noted
        return add(self, part)

    monkeypatch.setattr(RunParts, "add", noting)
    return added, ended


def documented() -> list[str]:
    """The parts in the table of docs/commit-protocol.md that a run without owners has."""
    section = PAGE.read_text().split("### The order of ends\n")[1].split("\n## ")[0]
    return [name for name in re.findall(r"^\| `([a-z ]+)` \|", section, re.MULTILINE) if name != "moves"]


def waiting(key, rows, state):
    """A step with a timeout: its run has a mailbox."""
    yield from add_up(key, rows, state)
    state.setTimeoutDuration(3_600_000)


def begin(spark, feed, directory, sink=None, **config):
    """Start a flow that has every part that one host needs."""
    frame = feed.frame(spark).transform(totals_step(update=waiting))
    settings = RecoveryConfig(directory, snapshot_interval=0, **config)
    return start(frame, settings, sink=sink or DiscardSink(), name="test", trigger="available-now")


def content(directory: Path) -> dict[Path, bytes]:
    """The partitions, byte for byte."""
    return {path: path.read_bytes() for path in directory.glob("part-*.sqlite3")}


def test_the_order_of_ends_is_that_of_the_page(spark, feed, tmp_path, order):
    """With and without recovery: the reverse of the order in which the parts were added."""
    added, ended = order
    feed.add([("a", 1)])
    init_partitions(tmp_path / "db", 2)
    begin(spark, feed, tmp_path / "db", metrics_port=0, ui=":0", replicate=tmp_path / "copy").await_termination()
    assert ended == added[::-1]
    assert ended == documented()[:-1]
    added.clear()
    ended.clear()
    frame = feed.frame(spark).transform(totals_step(update=waiting))
    start(frame, None, sink=DiscardSink(), name="test", trigger="available-now").await_termination()
    assert ended == added[::-1]
    assert ended == [
        name for name in documented() if name not in ("metrics", "pages", "replication", "run history", "lag")
    ]


class Refusing(DiscardSink):
    """A sink that cannot go back."""

    def check(self, resume):
        """Nothing to look at."""

    def rollback(self, resume):
        """The target is gone."""
        raise OSError("no target")

    def prepare(self, output):
        """Never called."""
        return ""

    def publish(self, output):
        """Never called."""


FAILURES = {
    "while it is planned": (Prepared, "_plan", False),
    "when a frame runs already": (Mailboxes, "__init__", False),
    "when the sink is checked": (FlowRun, "_begin_delivery", False),
    "when a part is not ready": (ReplicatedClosing, "ready", False),
    "when tasks cannot be served": (TaskAccess, "__init__", True),
    "when the run cannot be recorded": (RunRecord, "begun", True),
    "when the first snapshot cannot be shipped": (ReplicatedClosing, "begun", True),
    "when the first epoch cannot be closed": (FlowRun, "_closer", True),
    "when the query does not start": (Stream, "launch", True),
    "when the query runs": (Part, "started", True),
}
BY_DEFAULT = ["while it is planned", "when the query runs"]


@pytest.mark.parametrize("when", some(FAILURES, *BY_DEFAULT))
def test_a_start_that_fails_ends_what_has_begun(spark, feed, tmp_path, monkeypatch, order, when):
    """In the reverse order, with the error that made it fail. Before `start.3`, the partitions are untouched; and the
    same command works."""
    where, method, writes = FAILURES[when]
    added, ended = order
    feed.add([("a", 1)])
    init_partitions(tmp_path / "db", 2)
    before = content(tmp_path / "db")

    def fail(*_, **__):
        raise BackupTargetError("no luck")

    with monkeypatch.context() as broken:
        broken.setattr(where, method, fail)
        with pytest.raises(BackupTargetError, match="no luck"):
            begin(spark, feed, tmp_path / "db", replicate=tmp_path / "copy")
    assert ended == added[::-1]
    assert "lock" in ended
    assert [name for name in documented() if name in ended] == ended
    assert lock_holder(tmp_path / "db") is None
    assert not spark.streams.active
    if not writes:
        assert content(tmp_path / "db") == before
    begin(spark, feed, tmp_path / "db", replicate=tmp_path / "copy").await_termination()
    assert states(tmp_path / "db", "totals") == {"a": [1, 1]}


def test_a_sink_that_cannot_go_back(spark, feed, tmp_path, order):
    """The execution has begun; the start fails with the sink's error, and everything ends."""
    added, ended = order
    init_partitions(tmp_path / "db", 2)
    with pytest.raises(SinkFailedError, match="no target"):
        begin(spark, feed, tmp_path / "db", sink=Refusing())
    assert ended == added[::-1]
    assert StateManager(tmp_path / "db").get_last_run_status("test") is False


@first("flow_fails", [False, True])
def test_a_part_that_cannot_be_ended(spark, feed, tmp_path, monkeypatch, caplog, order, flow_fails):
    """The run ends with that error, unless it has one of its own. Nothing stays locked or open, and no epoch is
    lost."""
    added, ended = order
    feed.add([("a", 1)])

    def fail(*_):
        raise OSError("cannot be ended")

    def sink(batch, _):
        batch.collect()
        if flow_fails:
            raise ZeroDivisionError("in the sink")

    init_partitions(tmp_path / "db", 2)
    with monkeypatch.context() as broken:
        broken.setattr(TaskAccess, "end", fail)
        expected = (FlowFailedError, "in the sink") if flow_fails else (StorageError, "cannot be ended")
        with pytest.raises(expected[0], match=expected[1]):
            begin(spark, feed, tmp_path / "db", sink=sink).await_termination()
    assert ended == added[::-1]
    assert ("the task access failed as well" in caplog.text) == flow_fails
    assert expected[1] in StateManager(tmp_path / "db").get_last_run_info("test")["error"]
    assert lock_holder(tmp_path / "db") is None
    feed.add([("a", 2)])
    run_to_end(feed.frame(spark).transform(totals_step(update=waiting)), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == {"a": [2, 3]}
