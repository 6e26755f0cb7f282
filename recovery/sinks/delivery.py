"""Pass micro-batches and epochs to a flow's sink of any kind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from recovery.base import faults
from recovery.base.ids import BatchId, Epoch, StepId
from recovery.base.reserved import SINK_STEP
from recovery.base.tracebacks import essence_of, headline, is_from_gateway
from recovery.errors import ConfigurationError, FlowFailedError, RecoveryError, SinkFailedError
from recovery.planning.sink_work import SinkWork
from recovery.sinks.protocol import BATCH_BEING_WRITTEN, BatchContext, EpochOutput, Resume
from recovery.sinks.targets import target_error
from recovery.values.functions import check_runs, not_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NOTE_KEY = "note"
_PHASES = ("rollback", "prepare", "publish")


class Delivery:
    """The sink of one execution. If the sink takes no part in closing epochs, only `write` does anything."""

    def __init__(self, sink: Any, resume: Resume, *, recoverable: bool) -> None:
        """`recoverable`: whether epochs are ever closed. Raises ConfigurationError, and the errors of the sink's
        check."""
        self._resume = resume
        self._write: Callable[[DataFrame, int], Any] = getattr(sink, "write", sink)
        self.discards = _declared(sink, "discards")
        self._sink = sink if _takes_part(sink) else None
        self._failed: BaseException | None = None
        if self._sink is not None and not recoverable:
            raise ConfigurationError(
                f"{type(sink).__name__} shows output when an epoch is closed, and without recovery no epoch is closed",
                cause="The flow is run without a recovery directory.",
                remedy="Give one (-r DIR), or use a sink that writes immediately.",
            )
        check = getattr(self._sink, "check", None)
        if check is not None:
            try:
                with _translated(sink, "check", "before the run"):
                    _check_done(sink, "check", check(resume))
            except BaseException:
                self.release()
                raise
        self.single_action = bool(getattr(sink, "single_action", False))
        self.keeps_plan = _declared(sink, "keeps_plan")
        """What the sink declares; see `Sink`. Some sinks know this only after their check."""

    @property
    def work(self) -> SinkWork | None:
        """What the sink has done since the run began; None: the sink does not count it."""
        work = getattr(self._sink, "work", None)
        return work if isinstance(work, SinkWork) else None

    def rollback(self) -> None:
        """Let the sink abandon the output beyond the snapshot, as the partitions have done."""
        if self._sink is not None:
            try:
                with _translated(self._sink, "rollback", f"going back to epoch {self._resume.epoch}"):
                    _check_done(self._sink, "rollback", self._sink.rollback(self._resume))
            except BaseException:
                self.release()
                raise
        faults.reach("start.3.output")

    def write(self, batch: DataFrame, batch_id: BatchId, epoch: Epoch) -> None:
        """Let the sink write a micro-batch, and make the micro-batch available to `current_batch`."""
        lease = self._resume.execution
        token = BATCH_BEING_WRITTEN.set(
            BatchContext(batch_id, epoch, lease.number, lease.id, self._resume.store_id, self._resume.flow_id)
        )
        try:
            left = not_run(self._write(batch, batch_id))
            if left is not None:
                raise FlowFailedError(
                    f"the sink returned {left}, for micro-batch {batch_id}: it has written nothing",
                    cause="A call of such a function only makes that object. Nobody runs it.",
                    remedy="Let the sink do the work before it returns, then run the same command again: it continues "
                    "from the last closed epoch.",
                )
        except OSError as error:
            # From a sink, an OSError means that its target is unreachable, not that the partitions' disk is. It says
            # nothing about the JVM either, unless it came through the JVM's gateway.
            if is_from_gateway(error):
                raise
            if self._sink is not None:
                with _translated(self._sink, "write", f"writing micro-batch {batch_id}"):
                    raise
            raise FlowFailedError(essence_of(_in_sink(error, batch_id))) from error
        except BaseException as error:
            _in_sink(error, batch_id)
            raise
        finally:
            BATCH_BEING_WRITTEN.reset(token)

    def prepare(self, epoch: Epoch, batch: BatchId, floor: Epoch) -> dict[StepId, dict[str, str]]:
        """Make the epoch's output durable; returns the rows to store in the partitions with it."""
        if self._sink is None:
            return {}
        if self._failed is not None:
            # An earlier epoch's output waits for the next run, and this epoch's output must follow it.
            raise self._failed
        with _translated(self._sink, "prepare", f"preparing the output of epoch {epoch}"):
            note = self._sink.prepare(self._output(epoch, batch, floor))
            _check_done(self._sink, "prepare", note)
            if not isinstance(note, str):
                raise ConfigurationError(
                    f"{type(self._sink).__name__}.prepare returned {type(note).__name__}, not the text of a note",
                    remedy="Return a str: resume.note is this text in later runs.",
                )
        faults.reach("close.1.prepared")
        return {SINK_STEP: {NOTE_KEY: note}}

    def closed(self, batch: BatchId) -> None:
        """Do nothing: the sink learns of a closed epoch by `publish`."""

    def publish(self, epoch: Epoch, batch: BatchId, floor: Epoch) -> None:
        """Show the output of a closed epoch. If publishing fails, no later epoch can be prepared in this execution."""
        if self._sink is None:
            return
        try:
            with _translated(self._sink, "publish", f"publishing the output of closed epoch {epoch}"):
                _check_done(self._sink, "publish", self._sink.publish(self._output(epoch, batch, floor)))
        except BaseException as error:
            self._failed = error
            raise
        faults.reach("close.4.published")

    def release(self) -> None:
        """Release the sink's resources when the run ends."""
        release = getattr(self._sink, "release", None)
        if release is not None:
            with contextlib.suppress(Exception):
                release()

    def _output(self, epoch: Epoch, batch: BatchId, floor: Epoch) -> EpochOutput:
        resume = self._resume
        return EpochOutput(epoch, batch, resume.execution, resume.store_id, resume.flow_id, floor)


def _in_sink(error: BaseException, batch_id: BatchId) -> BaseException:
    """Add a note to the error that says where it was raised."""
    error.add_note(f"in the sink, micro-batch {batch_id}")
    return error


def _check_done(sink: Any, phase: str, result: object) -> None:
    """Raise ConfigurationError if a phase has returned work that nobody does."""
    left = not_run(result)
    if left is not None:
        raise ConfigurationError(
            f"{type(sink).__name__}.{phase} returned {left}: it has done nothing",
            cause="A call of such a function only makes that object. Nobody runs it.",
            remedy="Let the method do the work before it returns.",
        )


def _declared(sink: Any, name: str) -> bool:
    """Whether the sink declares the attribute for its own `write`: a class that has another `write` has to declare the
    attribute again."""
    for each in type(sink).__mro__:
        if name in vars(each):
            return bool(getattr(sink, name))
        if "write" in vars(each):
            return False
    return False


def _takes_part(sink: Any) -> bool:
    """Whether the sink has the phases of an EpochSink. Raises ConfigurationError if the sink has only some phases, or
    if a call does not run a phase."""
    missing = [name for name in _PHASES if not callable(getattr(sink, name, None))]
    if not missing:
        if not hasattr(sink, "single_action"):
            raise ConfigurationError(
                f"{type(sink).__name__} does not declare single_action",
                cause="Without this attribute nobody knows how often its write reads a micro-batch.",
                remedy="Give the class single_action = True if write reads the micro-batch exactly once and "
                "completely, on the calling thread; else single_action = False: write then gets a copy of the rows.",
            )
        for name in (*_PHASES, "check", "release"):
            check_runs(f"{type(sink).__name__}.{name}", getattr(sink, name, None))
        return True
    if len(missing) < len(_PHASES):
        raise ConfigurationError(
            f"{type(sink).__name__} has no method {' and no '.join(missing)}",
            cause="A sink whose output appears with closed epochs needs rollback, prepare and publish.",
            remedy="Write the missing methods, or rename the existing ones if they have another purpose.",
        )
    return False


@contextlib.contextmanager
def _translated(sink: Any, call: str, doing: str) -> Iterator[None]:
    """Translate a sink's exceptions to errors that name the sink's class, the call, and the line of the user's code."""
    try:
        yield
    except RecoveryError:
        raise
    except Exception as error:
        found = f"{type(sink).__name__}.{call} failed, {doing}: {headline(error)}"
        if isinstance(error, OSError):
            raise target_error(error, found) from error
        raise SinkFailedError(
            found,
            cause="An error in the sink's own code, or in a library that it uses; or what it writes to is failing.",
        ) from error
