"""What a run shows of itself: one line that changes on a terminal, plain lines elsewhere, and a summary."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from recovery.cli.common import tell
from recovery.config import format_interval
from recovery.planning.health import DEFAULTS
from recovery.printable import fitted, one_line

if TYPE_CHECKING:
    from recovery.spark.closing import EpochClosed
    from recovery.spark.events import BatchDone, Event, Resumed, RunSummary

CLEAR = "\r\x1b[K"
"""Brings a terminal to the start of the line, and empties it."""


class Progress:
    """Observes a run. On a terminal the line is redrawn twice a second, so the snapshot's age goes on; what the flow
    prints there comes on lines of its own above it."""

    def __init__(self, flow: str, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._flow = flow
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._live = not quiet and self._stream.isatty()
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="progress", daemon=True)
        self._rows = 0
        self._batch: BatchDone | None = None
        self._closed: EpochClosed | None = None
        self._closed_at = 0.0
        self._warned: dict[str, int] = {}
        self._above = contextlib.ExitStack()

    def __enter__(self) -> Progress:
        if not self._quiet:
            self._say(f"{self._flow}: starting Spark …")
        if self._live:
            if sys.stdout.isatty():
                self._above.enter_context(contextlib.redirect_stdout(_Above(sys.stdout, self._stream, self._lock)))
            self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._over.set()
        if self._live:
            self._thread.join()
            tell("", self._stream, end=CLEAR if _at_start() else "\n")
            self._above.close()

    def observe(self, event: Event) -> None:
        """Take one event of the run."""
        if self._quiet:
            return
        with self._lock:
            kind = type(event).__name__
            if kind == "Resumed":
                self._say(_resumed_text(event))  # type: ignore[arg-type]
                if event.metrics_url is not None:  # type: ignore[union-attr]
                    self._say(f"metrics at {event.metrics_url}")  # type: ignore[union-attr]
            elif kind == "BatchDone":
                self._batch = event  # type: ignore[assignment]
                assert self._batch is not None
                self._rows += self._batch.rows
                if not self._live:
                    self._say(self._line())
            else:
                self._closed, self._closed_at = event, time.monotonic()  # type: ignore[assignment]
                assert self._closed is not None
                self._warn(self._closed)
                if not self._live:
                    self._say(
                        f"epoch {self._closed.epoch} closed after batch {self._closed.batch}: "
                        f"{self._closed.states:,} states in {self._closed.duration_s:.2f} s"
                    )

    def _warn(self, closed: EpochClosed) -> None:
        """Say of each target once at each level that it is not met."""
        for finding in closed.health:
            if self._warned.get(finding.target.name, 0) < finding.level.severity:
                self._warned[finding.target.name] = finding.level.severity
                self._say(f"{finding.level} since epoch {closed.epoch}: {finding}")

    def _redraw(self) -> None:
        while not self._over.wait(0.5):
            with self._lock:
                if self._batch is not None and _at_start():
                    # A line that wraps could not be taken back.
                    tell(fitted(self._line(), _width(self._stream) - 1), self._stream, start=CLEAR, end="")

    def _line(self) -> str:
        batch = self._batch
        assert batch is not None
        rate = batch.rows / batch.duration_s if batch.duration_s else 0.0
        text = (
            f"batch {batch.batch} · epoch {batch.epoch} · {self._rows:,} rows · {rate:,.0f} rows/s · "
            f"{batch.keys:,} keys touched"
        )
        if self._closed is not None:
            age = format_interval(round(time.monotonic() - self._closed_at))
            text += f" · snapshot {self._closed.epoch} {age} old, took {self._closed.duration_s:.2f} s"
        return text

    def _say(self, text: str) -> None:
        start = "" if not self._live else CLEAR if _at_start() else "\n"
        tell(one_line(text), self._stream, start=start)
        if isinstance(sys.stdout, _Above):
            sys.stdout.at_start = True


def _width(stream: TextIO) -> int:
    """The columns of the terminal that is drawn on."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def _at_start() -> bool:
    """Whether what the flow prints has come to the end of a line."""
    return not isinstance(sys.stdout, _Above) or sys.stdout.at_start


class _Above:
    """Standard output on the terminal where the line is drawn: the line makes room for what is written."""

    def __init__(self, out: TextIO, line: TextIO, lock: threading.RLock) -> None:
        self._out, self._line, self._lock = out, line, lock
        self.at_start = True

    def write(self, text: str) -> int:
        """Write, after taking the line away."""
        with self._lock:
            if self.at_start:
                tell("", self._line, end=CLEAR)
            written = self._out.write(text)
            self._out.flush()
            self.at_start = text.endswith("\n") if text else self.at_start
            return written

    def writelines(self, lines: Iterable[str]) -> None:
        """See `write`."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)

    def __reduce__(self) -> Any:
        # A function that is sent to a worker, and holds the standard output, gets the worker's.
        return getattr, (sys, "stdout")


def _resumed_text(event: Resumed) -> str:
    snapshot = event.plan.snapshot
    if snapshot is None and event.plan.window[-1]:
        return f"execution {event.execution} begins at epoch {event.resume_epoch} again, at the start of the input"
    if snapshot is None:
        return f"execution {event.execution} begins at epoch {event.resume_epoch}: nothing was closed before"
    limiting = [v.path.name for v in event.plan.verdicts if v.limits]
    held = f"; held back by {', '.join(limiting)}" if limiting else ""
    return (
        f"execution {event.execution} resumes at epoch {event.resume_epoch}, "
        f"after micro-batch {snapshot.batch_id}{held}"
    )


def summary_text(summary: RunSummary) -> str:
    """What a run did, in a few lines."""
    rate = f" ({summary.rows / summary.elapsed_s:,.0f} rows/s)" if summary.elapsed_s and summary.rows else ""
    lines = [
        f"{one_line(summary.flow)}: {summary.batches:,} micro-batch{'es' * (summary.batches != 1)}, "
        f"{summary.rows:,} rows{rate}, {summary.states:,} states touched in {summary.elapsed_s:.1f} s"
    ]
    if summary.directory is not None:
        if summary.epochs:
            closed = f"closed {summary.epochs} epoch{'s' * (summary.epochs > 1)} in {summary.snapshot_s:.2f} s"
        else:
            closed = "nothing new, so no epoch was closed"
        lines.append(f"execution {summary.execution}: {closed}; the next run resumes at epoch {summary.last_epoch + 1}")
    for each in summary.exceeded:
        target = next(target for target in DEFAULTS if target.name == each["target"])
        lines.append(
            f"{each['level']}: {target.title} reached {target.shown(each['value'])} "
            f"(warning from {target.shown(each['warning'])}, critical from {target.shown(each['critical'])})"
        )
    return "\n".join(lines)
