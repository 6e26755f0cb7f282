"""What all threads of one run share: Spark's handle of the query, how far the run has ended, and its first error."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from py4j.protocol import Py4JError

from recovery.base.ids import Lease
from recovery.base.tracebacks import essence_of
from recovery.epochs.execution import what_ended
from recovery.errors import FlowFailedError
from recovery.spark.jvm.errors import JVM_GONE, as_recovery_error, jvm_failed
from recovery.spark.jvm.lost_input import lookup_line
from recovery.spark.jvm.lost_topics import topics_lacking
from recovery.spark.jvm.stream_thread import fatal_error, has_died
from recovery.spark.planner.bind import BoundPlan
from recovery.spark.run.launch import is_alive, is_stopped
from recovery.storage.seam import PartitionStore


class RunStatus:
    """The status of one run. Any thread of the run may read and change the status."""

    def __init__(self, store: PartitionStore, lease: Lease, bound: BoundPlan) -> None:
        self.query: Any = None
        """Spark's handle; None until Spark has started the query."""
        self.parked = threading.Event()
        """Set when the run begins to end: a micro-batch that begins later waits for `released` instead of running."""
        self.released = threading.Event()
        self.over = threading.Event()
        """Set when the run has ended, or has to: the idle timer ends, and whoever waits for the run ends it."""
        self.ran_out = False
        """Whether Spark itself has ended the query: no source had more to read."""
        self.finished = False
        """Whether the last epoch was closed, or could not be."""
        self.error: BaseException | None = None
        """The first error, in the form in which it is raised to the user."""
        self.tables: Callable[[], str] = str
        """Returns the tables that the flow reads whose names Spark does not say."""
        self._store = store
        self._lease = lease
        self._bound = bound
        self._own_threads: set[int] = set()

    def is_alive(self) -> bool:
        """Whether Spark still runs the query."""
        return is_alive(self.query) and not has_died(self.query)

    @contextlib.contextmanager
    def own_thread(self) -> Iterator[None]:
        """Within this context, mark this thread as one that the end of the run waits for."""
        thread = threading.get_ident()
        if thread in self._own_threads:
            yield
            return
        self._own_threads.add(thread)
        try:
            yield
        finally:
            self._own_threads.discard(thread)

    def is_own_thread(self) -> bool:
        """Whether the end of the run waits for this thread."""
        return threading.get_ident() in self._own_threads

    def note(self, error: BaseException, reading: Callable[[], str] = str) -> None:
        """Keep the error if it is the first one. reading: returns what Spark says about the sources of the micro-batch
        that failed."""
        if self.error is None:
            is_main = threading.current_thread() is threading.main_thread()
            if isinstance(error, Exception):

                def with_tables() -> str:
                    return "\n".join([reading(), self.tables(), *map(lookup_line, self._bound.lookups)])

                lacking = partial(topics_lacking, self._bound.frame.sparkSession, self._bound.inputs)
                self.error = what_ended(
                    self._store, self._lease, lambda: as_recovery_error(error, with_tables, lacking)
                )
            elif is_main and not isinstance(error, SystemExit):
                self.error = as_recovery_error(error)
            else:
                # The flow's own code called sys.exit(), in a sink, an observer, or whatever closes an epoch.
                self.error = FlowFailedError(essence_of(error))
            if self.error is not error:
                self.error.__cause__ = error

    def note_failure(self) -> None:
        """Keep the error that ended Spark's query, in case nobody waited for it."""
        self.note_fatal()
        with contextlib.suppress(Py4JError, *JVM_GONE):
            failure = self.query.exception()
            # After Spark was stopped, a healthy query fails at whatever it does next.
            if failure is not None and not is_stopped(self._bound.frame.sparkSession):
                self.note(failure)

    def note_fatal(self) -> None:
        """Keep the error of the JVM itself that ended Spark's query, if one did."""
        if self.error is None and (reason := fatal_error(self.query)):
            self.note(jvm_failed(reason))
