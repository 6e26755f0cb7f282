"""A running flow, as users have it in hand."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from pyspark.errors import StreamingQueryException

from recovery.base.intervals import Interval
from recovery.base.notebooks import html_table
from recovery.base.wording import counted
from recovery.errors import FlowFailedError
from recovery.spark.jvm.errors import JVM_GONE, may_still_close
from recovery.spark.run.between import Between
from recovery.spark.run.execution import FlowRun
from recovery.spark.run.parts.moving import RunMoves
from recovery.spark.run.reporting.events import rows_of
from recovery.spark.run.reporting.shown import end_line
from recovery.spark.run.stream import Stream


class RecoveryQuery:
    """A running flow with recovery partitions, made by `start`.

    The query ends when the input ends (trigger available-now), by `stop`, or by an error, which `await_termination`
    raises.
    """

    def __init__(self, run: FlowRun, trigger: str | Interval | None) -> None:
        """Launch Spark's query. run: its execution has begun."""
        self._run = run
        self._status = run.status
        self._between: Between | None = None
        """What is to be done before another execution starts; None: the run ends with this one."""
        self._finish_lock = threading.Lock()
        self.lease = run.lease
        self.summary = run.reports.summary
        self.meter = run.reports.meter
        if run.prepared.places.is_spread:
            run.parts.add(RunMoves(run, self._go_on_after))
        self._stream = Stream(run, self.stop)
        run.parts.add(self._stream)
        self._stream.launch(trigger)

    @property
    def is_active(self) -> bool:
        """Whether the flow still runs."""
        return not self._status.finished and bool(self._status.query.isActive)

    @property
    def metrics_url(self) -> str | None:
        """The address where Prometheus finds the metrics of this run; None if they are not served."""
        return self._run.reports.measures.url

    @property
    def streaming_query(self) -> Any:
        """Spark's own handle, for its progress and listeners. Stop the flow with `stop`, not through this handle."""
        return self._status.query

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the flow ends, at most `timeout` seconds, then close the last epoch; return whether it ended.

        Raises the error that ended the flow: FlowFailedError for errors of the flow's own code, else another
        RecoveryError.
        """
        clock = self._run.clock
        deadline = None if timeout is None else clock.elapsed_s() + timeout
        while not self._status.over.is_set():
            left = 0.2 if deadline is None else min(0.2, max(0.0, deadline - clock.elapsed_s()))
            try:
                if self._status.query.awaitTermination(max(left, 0.001)):
                    self._status.ran_out = not self._status.parked.is_set()
                    break
            except (StreamingQueryException, *JVM_GONE) as error:
                self._status.note_fatal()
                self._status.note(error)
                break
            if deadline is not None and clock.elapsed_s() >= deadline:
                return False
        self._finish()
        if self._status.error is not None:
            between, self._between = self._between, None
            if between is not None:
                between.drop(self._status.error)
            raise self._status.error
        return True

    def stop(self) -> None:
        """Finish the running micro-batch, close the epoch, and end the flow. Raises what went wrong while stopping.

        Called by the flow's own sink or observer, `stop` returns immediately. The run ends when the calls have
        returned, and `await_termination` raises what goes wrong then.
        """
        if self._status.is_own_thread():
            threading.Thread(target=self._finish, name="stop", daemon=True).start()
            return
        self._finish()
        if self._status.error is not None:
            raise self._status.error

    def _go_on_after(self, between: Between) -> bool:
        """End this execution as `stop` does, and let `recovery.run` do `between` and start another execution in the
        same session. Returns immediately: False if the execution ends already. Only for a run that goes on
        (`FlowRun.goes_on`)."""
        assert self._run.goes_on, "the caller of `start` has the query"
        # Who has the lock ends the execution, and may wait for the thread that asks here.
        if not self._finish_lock.acquire(blocking=False):
            return False
        try:
            if self._status.finished or self._status.parked.is_set() or self._between is not None:
                return False
            self._between = between
        finally:
            self._finish_lock.release()
        threading.Thread(target=self._finish, name="go-on", daemon=True).start()
        return True

    def _tell_stopping(self, number: int) -> None:
        """Tell the observer that a signal ends the run, and which micro-batch it waits for."""
        self._run.reports.stopping(number, self._stream.under_way.batch)

    def __repr__(self) -> str:
        where = self.summary.directory or "no recovery directory"
        return f"<RecoveryQuery {self.summary.flow!r} on {where}: {self._status_text()}>"

    def _repr_html_(self) -> str:
        rows = [("", self._status_text()), *rows_of(self.summary)]
        return html_table(f"flow {self.summary.flow}", rows)

    def _status_text(self) -> str:
        if self._status.finished:
            return end_line(self.summary, self._status.error)
        return f"running, {counted(self.summary.batches, 'micro-batch', 'micro-batches')} so far"

    def _finish(self) -> None:
        """End the run, once: park new micro-batches, wait for the running one, close the epoch as of the last finished
        one, and end all parts."""
        run, status = self._run, self._status
        with self._finish_lock:
            if status.finished:
                return
            status.parked.set()
            status.note_failure()
            try:
                with self._stream.after_batch():
                    if not run.prepared.temporary and may_still_close(status.error):
                        with contextlib.suppress(Exception):
                            run.reports.count_input()
                        run.closer.close(status.is_alive)
                        self._check_all_closed()
                        run.store.check(run.lease)
            except BaseException as error:
                status.note(error)
            status.finished = True
            status.over.set()
            with contextlib.suppress(Exception):
                run.reports.count_input()
            status.error = run.parts.end(noted=lambda: status.error)
            run.reports.ended()

    def _check_all_closed(self) -> None:
        """Check that a run without errors has closed an epoch over every micro-batch it finished. Raises
        FlowFailedError."""
        left = self._run.closer.finished
        if self._status.error is None and left > self._run.closer.closed_batch:
            raise FlowFailedError(
                f"Spark ended without logging micro-batch {left} as done, so its epoch could not be closed",
                cause="The query was stopped from outside, or its scratch checkpoint was removed.",
                remedy="Run the same command again: it continues from the last closed epoch.",
            )
