"""What a run is made of: parts with the same phases, which end in the reverse of the order in which they were added."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from recovery.base.tracebacks import headline
from recovery.planning.values import Execution
from recovery.spark.jvm.errors import as_recovery_error

_log = logging.getLogger("recovery")


class Part:
    """A part of one run. Each phase calls all parts in the order in which they were added; `end` in the reverse order.
    A phase that a part does not define does nothing for that part."""

    name: str
    """How docs/commit-protocol.md and messages call the part."""

    def ready(self) -> None:
        """Before anything is written: raise if the run must not begin."""

    def begun(self, execution: Execution) -> None:
        """The execution is in every partition, and its tasks can reach them. The sink has not gone back yet."""

    def started(self) -> None:
        """Spark's query runs: the end that comes is not that of a failed start."""

    def batch_done(self) -> None:
        """A micro-batch is finished. Called on its thread."""

    def look(self) -> None:
        """Beside the micro-batches, from time to time: raise what has to end the run."""

    def may_close(self) -> None:
        """Before an epoch is written, on the thread that writes: raise if the epoch must not be written."""

    def may_publish(self) -> None:
        """An epoch is in every partition, and the sink has not shown its output: raise if the sink must not."""

    def closed(self) -> None:
        """Last for each closed epoch, also if its output could not be shown."""

    def end(self, error: BaseException | None) -> None:
        """End the part, however far it has come. error: what ended the run, or kept it from starting; None: nothing."""


P = TypeVar("P", bound=Part)


class RunParts:
    """The parts of one run, in the order in which they were added."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        # A run that stops while its start fails: the second thread waits for what the first one ends.
        self._ending = threading.RLock()

    def __iter__(self) -> Iterator[Part]:
        # A thread that closes the last epoch may be in a phase while the first parts end.
        return iter(tuple(self._parts))

    def add(self, part: P) -> P:
        """Add a part, and return it. Add it before it holds anything that has to be ended, or directly after."""
        self._parts.append(part)
        return part

    def add_end(self, name: str, end: Callable[[], object]) -> None:
        """Add a part that only has to be ended."""
        self.add(_End(name, end))

    @contextlib.contextmanager
    def ended_on_error(self) -> Iterator[None]:
        """Within this context, an error ends all parts, also those that were added before."""
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise

    def end(
        self, error: BaseException | None = None, noted: Callable[[], BaseException | None] = lambda: None
    ) -> BaseException | None:
        """End each part once, the one that was added last first. An error of one end does not keep the others from
        ending. Return the error that counts: `error`, else the one that was `noted` by now, else the first one of an
        end, as a RecoveryError. Other errors of ends are logged.

        error: what kept the run from starting. noted: returns what the run has noted; its parts may note an error while
        they end.
        """
        with self._ending:
            while self._parts:
                part = self._parts.pop()
                error = error or noted()
                try:
                    part.end(error)
                except BaseException as failure:
                    error = error or noted()
                    if error is None:
                        error = as_recovery_error(failure)
                        if error is not failure:
                            error.__cause__ = failure
                    else:
                        _log.warning("at the end of the run, the %s failed as well: %s", part.name, headline(failure))
            return error or noted()


class _End(Part):
    def __init__(self, name: str, end: Callable[[], object]) -> None:
        self.name = name
        self._end = end

    def end(self, error: BaseException | None) -> None:
        self._end()
