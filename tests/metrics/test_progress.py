"""What a run says of targets that it misses."""

from __future__ import annotations

import io
import re
import signal
import sys
import time
from types import SimpleNamespace

from recovery.cli import progress
from recovery.cli.progress import RunProgress, summary_text
from recovery.epochs.closer import EpochClosed
from recovery.planning.health import DEFAULTS, Finding, Level, of_epoch
from recovery.planning.lag import InputLag, SourceLag
from recovery.planning.measures import Measure
from recovery.planning.replica import NO_LAG, NOTHING, ReplicaLag, ReplicaState, Shipped
from recovery.spark.run.reporting.events import (
    BatchDone,
    InputCounted,
    LagSeen,
    ReplicaChanged,
    RunSummary,
    Stopping,
    WaitingForSpark,
)


def closed(epoch, snapshot_s):
    """An epoch whose snapshot took so long."""
    measure = Measure(execution=1, epoch=epoch, measured_ms=0, resume_s=0.0, snapshot_s=snapshot_s)
    missed = tuple(each for each in of_epoch(measure, DEFAULTS) if each.level.severity)
    return EpochClosed(epoch, epoch, 1, snapshot_s, health=missed)


def test_a_missed_target_is_said_once_at_each_level():
    """Not with every epoch."""
    stream = io.StringIO()
    progress = RunProgress("flow", stream=stream)
    for epoch, snapshot_s in enumerate((1.0, 12.0, 13.0, 40.0, 12.0), start=1):
        progress.observe(closed(epoch, snapshot_s))
    said = [line for line in stream.getvalue().splitlines() if "since epoch" in line]
    assert said == [
        "warning since epoch 2: snapshot duration 12 s (warning from 10 s)",
        "critical since epoch 4: snapshot duration 40 s (critical from 30 s)",
    ]


def test_the_summary_shows_missed_targets():
    """Each target at its worst, with its levels."""
    [missed] = closed(1, 40.0).health
    summary = RunSummary("flow", "db", exceeded=[missed.as_json()])
    assert summary_text(summary).splitlines()[-1] == (
        "critical: snapshot duration reached 40 s (warning from 10 s, critical from 30 s)"
    )


def test_the_summary_names_the_owner_that_missed_a_target():
    """A value that is too low goes down to its levels."""
    target = next(each for each in DEFAULTS if each.name == "owner-disk")
    missed = Finding(target, 1e9, Level.WARNING, where="h2:7337")
    summary = RunSummary("flow", "db", exceeded=[missed.as_json()])
    assert summary_text(summary).splitlines()[-1] == (
        "warning: free disk of owner h2:7337 reached 1.0 GB (warning up to 2.0 GB, critical up to 500.0 MB)"
    )


def test_the_line_on_a_terminal(monkeypatch):
    """It is never longer than the terminal is wide, and what the flow prints does not stick to it."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    with RunProgress("flow", stream=terminal) as progress:
        progress.observe(BatchDone(0, 1, 1_000_000, 1_000_000, 0.5))
        while "batch 0" not in terminal.getvalue():
            time.sleep(0.01)
        print("{'a': 1}")
        print("half ", end="")
        time.sleep(0.6)
        print("a line")
        print("cut off", end="")
        progress.observe(closed(1, 40.0))
        print("at the end", end="")
    assert sys.stdout is terminal
    drawn = terminal.getvalue().replace("\r\x1b[K", "\n").split("\n")
    assert max(len(line) for line in drawn if line.startswith("batch")) == 39
    assert {"{'a': 1}", "half a line", "cut off", "at the end"} <= set(drawn)


def test_the_line_before_the_first_micro_batch():
    """It says what is under way, and for how long."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with RunProgress("words", stream=stream):
        while " s\r" not in stream.getvalue():
            time.sleep(0.01)
    assert re.search(r"\r\x1b\[Kwords: Spark starts, and builds the flow's plan … \d+ s\r", stream.getvalue())


def test_a_signal_is_answered():
    """Also where the run is quiet, by somebody at a terminal; a program gets nothing that it does not expect."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    text = "stopping: waiting for micro-batch 12 …; Ctrl-C again ends immediately, and the next run repeats it\n"
    for stream, quiet, said in (
        (io.StringIO(), False, text), (Terminal(), True, text), (io.StringIO(), True, ""),
    ):  # fmt: skip
        RunProgress("flow", quiet=quiet, stream=stream).observe(Stopping(signal.SIGINT, 12))
        assert stream.getvalue() == said
    stream = io.StringIO()
    RunProgress("flow", stream=stream).observe(Stopping(signal.SIGTERM, None))
    assert stream.getvalue() == "stopping: closing the epoch …; a second SIGTERM ends immediately\n"


def test_rows_are_those_of_the_sources_in_order():
    """A line of a micro-batch waits for what Spark reports of it; what comes meanwhile is said after it. What is never
    reported holds nothing up."""
    stream = io.StringIO()
    with RunProgress("flow", stream=stream) as progress:
        progress.observe(BatchDone(0, 1, 7, 1, 0.5))
        progress.observe(closed(1, 0.0))
        assert "batch 0" not in stream.getvalue()
        progress.observe(InputCounted(0, 1))
        progress.observe(BatchDone(1, 2, 7, 2, 0.5))
        progress.observe(BatchDone(2, 2, 0, 0, 0.5))
        progress.observe(InputCounted(2, 4))
        progress.observe(BatchDone(3, 2, 0, 0, 0.5))
    lines = [line.split(" · snapshot")[0] for line in stream.getvalue().splitlines()[1:]]
    assert [line for line in lines if "closed" in line] == [lines[1]]
    assert [line for line in lines if "closed" not in line] == [
        "batch 0 · epoch 1 · 1 row · 2 rows/s · 1 key touched",
        "batch 1 · epoch 2 · 1 row · 2 rows/s · 2 keys touched",
        "batch 2 · epoch 2 · 5 rows · 8 rows/s · 0 keys touched",
        "batch 3 · epoch 2 · 5 rows · 8 rows/s · 0 keys touched",
    ]


def test_the_summary_names_the_snapshot():
    """And has one row where there is one."""
    summary = RunSummary("flow", "db", execution=3, last_epoch=4, epochs=1, batches=1, rows=1, states=1, elapsed_s=1.0)
    assert summary_text(summary) == (
        "flow: 1 micro-batch, 1 row (1 row/s), 1 state touched in 1.0 s\n"
        "execution 3: closed 1 epoch in 0.00 s; the next run resumes at epoch 5, after epoch 4"
    )


def test_going_back_to_the_beginning_is_reported():
    """There is no snapshot to name then."""
    plan = SimpleNamespace(snapshot=None)
    gone = SimpleNamespace(text=lambda _: "epochs 1 to 3")
    said = progress._resumed_text(SimpleNamespace(plan=plan, execution=2, resume_epoch=1, discarded=gone))
    assert said == (
        "execution 2 rewinds: it begins at epoch 1 again, at the start of the input, and has discarded epochs 1 to 3"
    )


def test_a_replica_that_falls_behind_is_said_and_when_it_is_over():
    """With the lag and the reason; the summary says what it has at the end, or lacks."""
    away = ReplicaState("s3://b", NOTHING, ReplicaLag(3, 75.4), 0, 0, 4, "no answer for 60 s")
    back = ReplicaState("s3://b", Shipped(7, 1), NO_LAG, 1200, 1, 4, None)
    stream = io.StringIO()
    with RunProgress("flow", stream=stream) as shown:
        shown.observe(ReplicaChanged(away))
        shown.observe(ReplicaChanged(back))
    assert stream.getvalue().splitlines()[1:] == [
        "replica at s3://b: empty, 3 epochs (1.25 min) behind; it will be retried: no answer for 60 s",
        "replica at s3://b: epoch 7",
    ]
    lines = [summary_text(RunSummary("flow", "db", replica=each.as_json())).splitlines()[-1] for each in (away, back)]
    assert lines == [
        "warning: s3://b has epoch 0 and lacks 3 epochs: no answer for 60 s",
        "replicated up to epoch 7, 1.2 kB, to s3://b",
    ]


def test_a_lag_that_grows_is_in_the_line():
    """As long as it grows."""
    stream = io.StringIO()
    progress = RunProgress("flow", stream=stream)
    for number, behind in enumerate((90, 100, 80)):
        source = SourceLag(source="b:1", topic="orders", unit="record", behind=behind)
        progress.observe(LagSeen(InputLag(execution=1, epoch=number, seen_ms=0, sources=(source,))))
        progress.observe(BatchDone(number, 1, 10, 5, 0.5))
        progress.observe(InputCounted(number, 10))
    first, second, third = stream.getvalue().splitlines()
    assert second.endswith(" · falling behind: orders 100 records")
    assert "behind" not in first + third


def test_a_wait_is_reported_with_its_length_and_reason():
    """As one line, whatever Spark's text has in it."""
    stream = io.StringIO()
    with RunProgress("flow", stream=stream) as shown:
        shown.observe(WaitingForSpark("no task of micro-batch 3 runs:\nSpark has no executor", 60.4))
    [line] = stream.getvalue().splitlines()[1:]
    assert line.startswith("waiting for 1 min: no task of micro-batch 3 runs:")
