"""How a run is shown: its status line, and its line in a notebook."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from recovery.base.intervals import format_interval
from recovery.base.notebooks import display_function
from recovery.base.printable import one_line
from recovery.base.tracebacks import headline
from recovery.base.wording import counted

if TYPE_CHECKING:
    from recovery.epochs.closer import EpochClosed
    from recovery.spark.run.reporting.events import BatchDone, Event, RunSummary

UPDATE_S = 0.25
"""The least time between two updates of a notebook's line: each is a message that the notebook keeps."""


def status_line(
    batch: BatchDone, rows: int, rate: float, closed: EpochClosed | None, age_s: float | None, grown: str = ""
) -> str:
    """Return the status line of a run. rows: those that the sources read so far. age_s: of the newest snapshot; None
    leaves it out, for a line that is not redrawn as time passes. grown: the sources whose lag grows; see `growth`."""
    text = (
        f"batch {batch.batch} · epoch {batch.epoch} · {counted(rows, 'row')} · {counted(round(rate), 'row')}/s · "
        f"{counted(batch.keys, 'key')} touched"
    )
    if batch.sink is not None:
        text += f" · {batch.sink.as_text()}"
    if batch.waiting:
        text += f" · {counted(batch.waiting, 'row')} in quarantine"
    if closed is not None:
        age = "" if age_s is None else f" {format_interval(round(age_s))} old,"
        text += f" · snapshot {closed.epoch}{age} took {closed.duration_s:.2f} s"
    if grown:
        text += f" · falling behind: {grown}"
    return text


def end_line(summary: RunSummary, error: BaseException | None) -> str:
    """Return the line that stays when a run has ended."""
    if error is not None:
        return f"failed: {one_line(headline(error))}"
    return (
        f"ended: {counted(summary.batches, 'micro-batch', 'micro-batches')}, {counted(summary.rows, 'row')}, "
        f"{counted(summary.epochs, 'epoch')} closed in {summary.elapsed_s:.1f} s; the next run resumes at epoch "
        f"{summary.last_epoch + 1}"
    )


class NotebookLine:
    """The status line of a run below the notebook cell that started it. Problems with showing the line do no harm."""

    def __init__(self, flow: str, display: Callable[..., Any]) -> None:
        """display: IPython's function."""
        self._flow = flow
        self._rows = 0
        self._rate = 0.0
        self._batch: BatchDone | None = None
        self._closed: EpochClosed | None = None
        self._shown_s = 0.0
        self._handle: Any = None
        with contextlib.suppress(Exception):
            self._handle = display(self._bundle("starting …"), raw=True, display_id=True)

    def observe(self, event: Event) -> None:
        """Take one event of the run."""
        kind = type(event).__name__
        if kind == "WaitingForSpark":
            self._show(f"waiting for {format_interval(round(event.seconds))}: {event.what}")  # type: ignore[union-attr]
            return
        if kind == "BatchDone":
            self._batch = event  # type: ignore[assignment]
        elif kind == "EpochClosed":
            self._closed = event  # type: ignore[assignment]
        elif kind == "InputCounted":
            self._rows += event.rows  # type: ignore[union-attr]
            if self._batch is not None and self._batch.duration_s:
                self._rate = event.rows / self._batch.duration_s  # type: ignore[union-attr]
        if self._batch is not None and time.monotonic() - self._shown_s >= UPDATE_S:
            self._show(status_line(self._batch, self._rows, self._rate, self._closed, None))

    def ended(self, summary: RunSummary, error: BaseException | None) -> None:
        """Show how the run ended."""
        self._show(end_line(summary, error))

    def _show(self, text: str) -> None:
        self._shown_s = time.monotonic()
        with contextlib.suppress(Exception):
            self._handle.update(self._bundle(text), raw=True)

    def _bundle(self, text: str) -> Mapping[str, str]:
        return {"text/plain": f"{one_line(self._flow)}: {text}"}


def notebook_line(flow: str) -> NotebookLine | None:
    """Return a line below the running cell; None outside of a notebook."""
    display = display_function()
    return None if display is None else NotebookLine(flow, display)
