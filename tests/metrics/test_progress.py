"""What a run says of targets that it misses."""

from __future__ import annotations

import io
import signal
import sys
import time

from recovery.cli.progress import Progress, summary_text
from recovery.planning.health import DEFAULTS, of_epoch
from recovery.planning.measures import Measure
from recovery.spark.closing import EpochClosed
from recovery.spark.events import BatchDone, RunSummary, Stopping


def closed(epoch, snapshot_s):
    """An epoch whose snapshot took so long."""
    measure = Measure(execution=1, epoch=epoch, measured_ms=0, resume_s=0.0, snapshot_s=snapshot_s)
    missed = tuple(each for each in of_epoch(measure, DEFAULTS) if each.level.severity)
    return EpochClosed(epoch, epoch, 1, snapshot_s, health=missed)


def test_a_missed_target_is_said_once_at_each_level():
    """Not with every epoch."""
    stream = io.StringIO()
    progress = Progress("flow", stream=stream)
    for epoch, snapshot_s in enumerate((1.0, 12.0, 13.0, 40.0, 12.0), start=1):
        progress.observe(closed(epoch, snapshot_s))
    said = [line for line in stream.getvalue().splitlines() if "since epoch" in line]
    assert said == [
        "warning since epoch 2: snapshot duration 12 s (warning from 10 s)",
        "critical since epoch 4: snapshot duration 40 s (critical from 30 s)",
    ]


def test_the_summary_says_what_was_missed():
    """Each target at its worst, with its levels."""
    [missed] = closed(1, 40.0).health
    summary = RunSummary("flow", "db", exceeded=[missed.as_json()])
    assert summary_text(summary).splitlines()[-1] == (
        "critical: snapshot duration reached 40 s (warning from 10 s, critical from 30 s)"
    )


def test_the_line_on_a_terminal(monkeypatch):
    """It is never longer than the terminal is wide, and what the flow prints does not stick to it."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    with Progress("flow", stream=terminal) as progress:
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


def test_a_signal_is_answered():
    """Also where the run is quiet, by somebody at a terminal; a program gets nothing that it does not expect."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    text = "stopping: waiting for micro-batch 12 …; Ctrl-C again ends immediately, and the next run repeats it\n"
    for stream, quiet, said in (
        (io.StringIO(), False, text), (Terminal(), True, text), (io.StringIO(), True, ""),
    ):  # fmt: skip
        Progress("flow", quiet=quiet, stream=stream).observe(Stopping(signal.SIGINT, 12))
        assert stream.getvalue() == said
    stream = io.StringIO()
    Progress("flow", stream=stream).observe(Stopping(signal.SIGTERM, None))
    assert stream.getvalue() == "stopping: closing the epoch …; a second SIGTERM ends immediately\n"
