"""The status line of a run, in a terminal and below a notebook's cell."""

from __future__ import annotations

from dataclasses import replace

from recovery.epochs.closer import EpochClosed
from recovery.errors import SinkFailedError
from recovery.planning.sink_work import SinkWork
from recovery.spark.run.reporting.events import BatchDone, InputCounted, RunSummary, WaitingForSpark
from recovery.spark.run.reporting.shown import NotebookLine, end_line, status_line


def test_the_line():
    """With an age only where it is redrawn as time passes."""
    batch, closed = BatchDone(7, 3, 10, 1, 0.5), EpochClosed(2, 6, 1, 0.25)
    line = "batch 7 · epoch 3 · 1,200 rows · 20 rows/s · 1 key touched"
    assert status_line(batch, 1200, 20.4, None, None) == line
    assert status_line(batch, 1200, 20.4, closed, None) == f"{line} · snapshot 2 took 0.25 s"
    assert status_line(batch, 1200, 20.4, closed, 5.2) == f"{line} · snapshot 2 5 s old, took 0.25 s"
    counting = replace(batch, sink=SinkWork(produced=900, waiting=300))
    assert status_line(counting, 1200, 20.4, None, None) == f"{line} · 900 records produced, 300 records wait"


class Display:
    """IPython's `display`, and the handle that it returns."""

    def __init__(self, *, fails=False) -> None:
        self.shown, self.fails = [], fails

    def __call__(self, bundle, **_):
        return self.update(bundle) or self

    def update(self, bundle, **_) -> None:
        if self.fails:
            raise RuntimeError("the kernel is gone")
        self.shown.append(bundle["text/plain"])


def test_the_line_below_a_cell(monkeypatch):
    """It changes with the run, not with each event of a fast one, and ends with how the run ended."""
    display, summary = Display(), RunSummary("flow", "db", batches=2, rows=30, epochs=1, last_epoch=1, elapsed_s=1.0)
    line = NotebookLine("flow", display)
    for number in range(100):
        line.observe(BatchDone(number, 1, 10, 5, 0.5))
        line.observe(InputCounted(number, 15))
    line.observe(EpochClosed(1, 99, 5, 0.25))
    assert display.shown[:2] == ["flow: starting …", "flow: batch 0 · epoch 1 · 0 rows · 0 rows/s · 5 keys touched"]
    assert len(display.shown) < 10
    line.observe(WaitingForSpark("no task of micro-batch 9 runs", 30.0))
    assert display.shown[-1] == "flow: waiting for 30 s: no task of micro-batch 9 runs"
    line.ended(summary, None)
    assert display.shown[-1] == (
        "flow: ended: 2 micro-batches, 30 rows, 1 epoch closed in 1.0 s; the next run resumes at epoch 2"
    )
    line.ended(summary, SinkFailedError("full"))
    assert display.shown[-1].startswith("flow: failed: SinkFailedError: full")


def test_a_notebook_that_is_closed():
    """The run goes on without its line."""
    line = NotebookLine("flow", Display(fails=True))
    line.observe(BatchDone(0, 1, 10, 5, 0.5))
    line.ended(RunSummary("flow", None), None)


def test_the_end():
    """In one line, whatever the error says."""
    assert end_line(RunSummary("flow", None), ValueError("a\nb")).count("\n") == 0
