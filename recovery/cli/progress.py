"""The output of a run: a status line updated in place on a terminal, plain lines elsewhere, and a summary."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from recovery.base.intervals import format_interval
from recovery.base.printable import fitted, one_line
from recovery.base.wording import counted
from recovery.cli.common import format_size, format_time, tell
from recovery.cli.terminal import is_live, width
from recovery.host.signals import again
from recovery.planning.going_back import after_text
from recovery.planning.health import DEFAULTS, Finding, Level
from recovery.planning.lag import growth

if TYPE_CHECKING:
    from recovery.epochs.closer import EpochClosed
    from recovery.planning.lag import InputLag
    from recovery.planning.replica import ReplicaState
    from recovery.planning.values import ClosedEpoch
    from recovery.spark.run.reporting.events import BatchDone, Event, InputCounted, Resumed, RunSummary, Stopping

CLEAR = "\r\x1b[K"
"""Moves a terminal's cursor to the start of the line and clears the line."""


class RunProgress:
    """Observes a run. On a terminal the status line is redrawn twice a second, to keep the snapshot's age current; the
    flow's own output appears above it."""

    def __init__(self, flow: str, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._flow = flow
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._live = not quiet and is_live(self._stream)
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="progress", daemon=True)
        self._rows = 0
        self._rate = 0.0
        self._batch: BatchDone | None = None
        self._waiting: list[BatchDone | str] = []
        self._closed: EpochClosed | None = None
        self._closed_at = 0.0
        self._lag: InputLag | None = None
        self._grown = ""
        self._warned: dict[str, int] = {}
        self._doing, self._doing_since = "Spark starts, and builds the flow's plan", time.monotonic()
        self._above = contextlib.ExitStack()

    def __enter__(self) -> RunProgress:
        if not self._quiet:
            self._say(f"{self._flow}: starting Spark …")
        if self._live:
            if sys.stdout.isatty():
                self._above.enter_context(contextlib.redirect_stdout(_Above(sys.stdout, self._stream, self._lock)))
            self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._over.set()
        self._say_waiting()
        if self._live:
            self._thread.join()
            tell("", self._stream, end=CLEAR if _at_start() else "\n")
            self._above.close()

    def observe(self, event: Event) -> None:
        """Handle one event of the run."""
        kind = type(event).__name__
        # A user who pressed Ctrl-C waits for an answer, even in quiet mode.
        if self._quiet and not (kind == "Stopping" and self._stream.isatty()):
            return
        with self._lock:
            if kind == "Resumed":
                self._say(_resumed_text(event))  # type: ignore[arg-type]
                self._doing, self._doing_since = "the first micro-batch", time.monotonic()
                if event.metrics_url is not None:  # type: ignore[union-attr]
                    self._say(f"metrics at {event.metrics_url}")  # type: ignore[union-attr]
            elif kind == "Stopping":
                self._say(stopping_text(event))  # type: ignore[arg-type]
            elif kind == "BatchDone":
                # Spark reports a micro-batch's rows before the next one is done, or never.
                self._say_waiting()
                self._waiting.append(event)  # type: ignore[arg-type]
                self._batch = event  # type: ignore[assignment]
            elif kind == "ReplicaChanged":
                self._say(replica_text(event.replica))  # type: ignore[union-attr]
            elif kind == "WaitingForSpark":
                self._say(f"waiting for {format_interval(round(event.seconds))}: {event.what}")  # type: ignore[union-attr]
            elif kind == "OwnerReplaced":
                self._say(one_line(event.replacement.text()))  # type: ignore[union-attr]
            elif kind == "GoingOn":
                self._say_waiting()
                self._say(event.what)  # type: ignore[union-attr]
                self._batch, self._doing, self._doing_since = None, event.what, time.monotonic()  # type: ignore[union-attr]
            elif kind == "LagSeen":
                before, self._lag = self._lag, event.lag  # type: ignore[union-attr]
                self._grown = growth(before, event.lag)  # type: ignore[union-attr]
            elif kind == "InputCounted":
                self._count(event)  # type: ignore[arg-type]
            else:
                self._close(event)  # type: ignore[arg-type]

    def _count(self, event: InputCounted) -> None:
        batch = self._batch
        self._rows += event.rows
        if batch is not None and batch.batch == event.batch:
            self._rate = event.rows / batch.duration_s if batch.duration_s else 0.0
            self._say_waiting()

    def _close(self, event: EpochClosed) -> None:
        self._warn(event)
        text = (
            f"epoch {event.epoch} closed after batch {event.batch}: {counted(event.states, 'state')} in "
            f"{event.duration_s:.2f} s"
        )
        if self._waiting:
            self._waiting.append(text)
        elif not self._live:
            self._say(text)
        self._closed, self._closed_at = event, time.monotonic()

    def _say_waiting(self) -> None:
        """Print, in order, what waits for the rows of a micro-batch."""
        for each in self._waiting:
            if not self._live:
                self._say(each if isinstance(each, str) else self._line(each))
        self._waiting.clear()

    def _warn(self, closed: EpochClosed) -> None:
        """Report each missed target once per level."""
        for finding in closed.health:
            if self._warned.get(finding.target.name, 0) < finding.level.severity:
                self._warned[finding.target.name] = finding.level.severity
                self._say(f"{finding.level} since epoch {closed.epoch}: {finding}")

    def _redraw(self) -> None:
        while not self._over.wait(0.5):
            with self._lock:
                if _at_start():
                    text = self._line_before() if self._batch is None else self._line(self._batch)
                    # A line that wraps could not be cleared.
                    tell(fitted(text, width(self._stream) - 1), self._stream, start=CLEAR, end="")

    def _line_before(self) -> str:
        """Return the status line before the first micro-batch is done."""
        return one_line(f"{self._flow}: {self._doing} … {time.monotonic() - self._doing_since:.0f} s")

    def _line(self, batch: BatchDone) -> str:
        """Return the status line. The rows in the line are what the sources read since the run began, as in the
        summary."""
        age_s = time.monotonic() - self._closed_at
        # Commands that need no Spark import this module, too.
        from recovery.spark.run.reporting.shown import status_line

        return status_line(batch, self._rows, self._rate, self._closed, age_s, self._grown)

    def _say(self, text: str) -> None:
        start = "" if not self._live else CLEAR if _at_start() else "\n"
        tell(one_line(text), self._stream, start=start)
        if isinstance(sys.stdout, _Above):
            sys.stdout.at_start = True


def _at_start() -> bool:
    """Whether the flow's output is at the start of a line."""
    return not isinstance(sys.stdout, _Above) or sys.stdout.at_start


class _Above:
    """Standard output on the terminal with the status line: clears the line before each write."""

    def __init__(self, out: TextIO, line: TextIO, lock: threading.RLock) -> None:
        self._out, self._line, self._lock = out, line, lock
        self.at_start = True

    def write(self, text: str) -> int:
        """Write after clearing the status line."""
        with self._lock:
            if self.at_start:
                tell("", self._line, end=CLEAR)
            written = self._out.write(text)
            self._out.flush()
            self.at_start = text.endswith("\n") if text else self.at_start
            return written

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line after clearing the status line."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)

    def __reduce__(self) -> Any:
        # A function that holds standard output and is sent to a worker gets the worker's standard output.
        return getattr, (sys, "stdout")


def stopping_text(event: Stopping) -> str:
    """Return what a run waits for before it ends, and how to end it without waiting."""
    if event.batch is None:
        return f"stopping: closing the epoch …; {again(event.signal)} ends immediately"
    return (
        f"stopping: waiting for micro-batch {event.batch} …; {again(event.signal)} ends immediately, "
        "and the next run repeats it"
    )


def _replica_line(replica: Mapping[str, Any]) -> str:
    if not replica["lag_epochs"] and replica["problem"] is None:
        return (
            f"replicated up to epoch {replica['epoch']}, {format_size(replica['shipped_bytes'])}, "
            f"to {replica['destination']}"
        )
    why = f": {replica['problem']}" if replica["problem"] else ""
    return (
        f"warning: {replica['destination']} has epoch {replica['epoch']} and lacks "
        f"{counted(replica['lag_epochs'], 'epoch')}{why}"
    )


def replica_text(replica: ReplicaState) -> str:
    """Return what a replica has, and what it lacks."""
    lag, epoch = replica.lag, replica.shipped.epoch
    at = f"replica at {replica.destination}: epoch {epoch}" if epoch else f"replica at {replica.destination}: empty"
    if lag.epochs:
        at += f", {counted(lag.epochs, 'epoch')} ({format_interval(round(lag.seconds))}) behind"
    return at if replica.problem is None else f"{at}; it will be retried: {replica.problem}"


def _resumed_text(event: Resumed) -> str:
    plan, execution = event.plan, f"execution {event.execution}"
    if event.discarded is not None:
        if plan.snapshot is None:
            place = f"it begins at epoch {event.resume_epoch} again, at the start of the input"
        else:
            place = f"it resumes at epoch {event.resume_epoch}, {_snapshot_text(plan.snapshot)}"
        return f"{execution} rewinds: {place}, and has discarded {event.discarded.text(format_time)}"
    if plan.snapshot is None:
        return f"{execution} begins at epoch {event.resume_epoch}: nothing was closed before"
    limiting = [v.path.name for v in plan.verdicts if v.limits]
    held = ""
    if limiting:
        last = max(d.newest_epoch for d in plan.partitions)
        epochs = f"epoch {last} of all other partitions is" if last == event.resume_epoch else (
            f"epochs {event.resume_epoch} to {last} of all other partitions are"
        )  # fmt: skip
        held = f"; held back by {', '.join(limiting)}, so {epochs} discarded"
    return f"{execution} resumes at epoch {event.resume_epoch}, {_snapshot_text(plan.snapshot)}{held}"


def _snapshot_text(snapshot: ClosedEpoch) -> str:
    return f"after epoch {snapshot.epoch} (micro-batch {snapshot.batch_id})"


def summary_text(summary: RunSummary) -> str:
    """Return a summary of a run, in a few lines."""
    rate = (
        f" ({counted(round(summary.rows / summary.elapsed_s), 'row')}/s)" if summary.elapsed_s and summary.rows else ""
    )
    lines = [
        f"{one_line(summary.flow)}: {counted(summary.batches, 'micro-batch', 'micro-batches')}, "
        f"{counted(summary.rows, 'row')}{rate}, {counted(summary.states, 'state')} touched in "
        f"{summary.elapsed_s:.1f} s"
    ]
    if summary.directory is not None:
        if summary.epochs:
            closed = f"closed {counted(summary.epochs, 'epoch')} in {summary.snapshot_s:.2f} s"
        else:
            closed = "nothing new, so no epoch was closed"
        lines.append(
            f"execution {summary.execution}: {closed}; the next run resumes at epoch {summary.last_epoch + 1}, "
            f"{after_text(summary.last_epoch)}"
        )
    if summary.replica is not None:
        lines.append(one_line(_replica_line(summary.replica)))
    for each in summary.exceeded:
        target = next(target for target in DEFAULTS if target.name == each["target"])
        title = Finding(target, each["value"], Level.UNKNOWN, where=each["where"]).title
        levels = f"warning {target.reached} {target.shown(each['warning'])}, critical {target.reached} "
        levels += target.shown(each["critical"])
        reached = each["note"] or f"reached {target.shown(each['value'])} ({levels})"
        lines.append(f"{each['level']}: {title} {reached}")
    return "\n".join(lines)
