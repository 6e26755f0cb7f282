"""Typed errors for failures in Spark, found in the long texts of the JVM."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, ParseException, PySparkException, StreamingQueryException

from recovery.base.tracebacks import (
    RAISED_FROM,
    RAISED_WITHIN,
    essence,
    essence_of,
    has_own_frames,
    headline,
    is_from_gateway,
    without_note,
)
from recovery.errors import (
    FlowFailedError,
    FlowMismatchError,
    RecoveryError,
    SparkFailedError,
    StepChangedError,
    StorageError,
    error_named,
)
from recovery.spark.jvm.failure_table import JVM_ENDED, JVM_LIMIT, JVM_SILENT, JVM_STACK, RUNNING, STREAM_ENDED
from recovery.spark.jvm.failures import failure_of, has_traceback
from recovery.spark.jvm.lost_input import lost_input
from recovery.spark.jvm.output_modes import advice

JVM_GONE = (Py4JNetworkError, ConnectionError)
_OPERATORS_CHANGED = re.compile(
    r"\[((?:STREAMING_STATEFUL_OPERATOR_(?:NOT_MATCH_IN_STATE_METADATA|MISSING_STATE_DIRECTORY)"
    r"|STATE_STORE_(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|STATE_STORE_(?:KEY|VALUE)_ROW_FORMAT_VALIDATION_FAILURE"
    r"|STATE_STORE_INVALID_(?:CONFIG_AFTER_RESTART|VARIABLE_TYPE_CHANGE|VALUE_SCHEMA_EVOLUTION)"
    r"|STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE)[^\]]*)\] *([^\n]*)"
)
_OTHER_BASE_PATH = re.compile(r"Wrong basePath (\S+) for the root path: (\S+)")
_OF_FLOW = re.compile(r"SQLSTATE: (?:0A|2[0-9A-Z]|38|39|42|P0)")
"""Codes that the SQL standard has for a statement, for its data, and for functions that it calls."""
_OF_SPARK = re.compile(r"SQLSTATE: (?:53|XX000)")
"""Codes that Spark has for a lack of memory or executors, and for its own defects, whoever called it."""
_UNKNOWN = "An error in Spark, or in a connector that the flow uses; the message above describes it."
_MEMORY_ERROR = re.compile(r"(?:step [^\n]*?: )?(?:[\w.]+\.)?(?:Arrow)?MemoryError\b")
_NO_MEMORY = {
    "cause": "Python had no memory left for the flow's code: its host has none, or a limit is reached "
    "(spark.executor.pyspark.memory, ulimit -v).",
    "remedy": "Let the code need less, or allow more. Then run the same command again: it continues from the last "
    "closed epoch.",
}
_UNANSWERED = re.compile(r"An error occurred while calling \S+")
"""All that Py4J says of a call whose connection broke; of other failures Py4J says more."""
_TASK_FAILURE = re.compile(
    r"most recent failure: [^\n]*?: ((?:[a-z]\w*\.)+\w+(?:Exception|Error): .*?)(?=\n\tat |\n\n|\Z)", re.DOTALL
)
_WORKER_ERROR = re.compile(
    r"^recovery\.errors\.(\w+Error): (.*?)(?:\n\s*\n|\n\tat |\s+SQLSTATE: \w{5}|\n=== |\Z)", re.DOTALL | re.MULTILINE
)
"""An error of this package at the end of a traceback. The flow's code and its messages may contain such a name too."""


def may_still_close(error: BaseException | None) -> bool:
    """Whether an epoch may still be closed after this error. Errors of the flow's code leave the finished micro-batches
    good; errors of storage or of the lease do not."""
    return error is None or getattr(error, "closes_epoch", True)


def is_cancelled(error: BaseException) -> bool:
    """Whether this is what Spark says to the caller of a job that was cancelled."""
    return "cancelled job group" in str(error) or "SPARK_JOB_CANCELLED" in str(error)


def as_recovery_error(
    error: BaseException,
    reading: Callable[[], str] = str,
    lacking: Callable[[Collection[str]], Collection[str]] = lambda topics: (),
) -> BaseException:
    """Return the typed error behind an exception that came through Spark as text. An error that nothing knows is
    FlowFailedError if it came out of the user's code, and else SparkFailedError. reading, lacking: as for
    `lost_input`."""
    known = recognised(error, reading, lacking)
    if known is not None or not isinstance(error, Exception):
        return error if known is None else known
    if isinstance(error, StreamingQueryException):
        # Raised to whoever waited for the query.
        found = essence(str(error)) or str(error).strip().split("\n")[0][:2000]
    elif isinstance(error, PySparkException):
        found = essence(str(error)) or headline(error)[:2000]
    elif isinstance(error, Py4JJavaError):
        found = _without_frames(str(error.java_exception.toString()))
    else:
        found = essence_of(error)
    if not _is_of_flow(error):
        return SparkFailedError(found, cause=_UNKNOWN)
    return FlowFailedError(found, **(_NO_MEMORY if _MEMORY_ERROR.match(found) else {}))


def recognised(
    error: BaseException,
    reading: Callable[[], str] = str,
    lacking: Callable[[Collection[str]], Collection[str]] = lambda topics: (),
) -> RecoveryError | None:
    """Return the typed error behind an exception; None if nothing knows its cause. reading, lacking: as for
    `lost_input`."""
    if isinstance(error, RecoveryError):
        return error
    if isinstance(error, JVM_GONE):
        return JVM_ENDED.error({"reason": str(error)})
    if type(error) is Py4JError and _UNANSWERED.fullmatch(str(error)):
        return JVM_SILENT.error({"reason": essence_of(error)})
    if isinstance(error, OSError):
        return StorageError(str(error))
    if not isinstance(error, Exception):
        return None
    text = str(error)
    typed = _recognised(text, reading, lacking)
    if typed is None and isinstance(error, PySparkException | Py4JError):
        typed = failure_of(with_java(error), RUNNING, reading)
    mode = advice(text) if typed is None and isinstance(error, PySparkException) else None
    return typed if mode is None else FlowFailedError(headline(error), cause=mode.cause, remedy=mode.remedy)


def failure_behind(error: BaseException) -> RecoveryError | None:
    """Return the typed error behind an exception that the user's code has let through: of Spark, of a source, of a
    worker; None if that code itself has failed."""
    if isinstance(error, OSError) and not is_from_gateway(error):
        return None
    known = recognised(error)
    return None if type(known) is FlowFailedError and known is not error else known


def with_java(error: BaseException) -> str:
    """Return an exception's text with the stack of Java behind it, which names the causes of causes."""
    stack = getattr(error, "_stackTrace", None)
    return f"{error}\n\nDriver stacktrace:\n{stack}" if isinstance(stack, str) else str(error)


def _is_of_flow(error: Exception) -> bool:
    """Whether an error that nothing knows came out of the user's code: from a Python function, or from what Spark says
    of the flow's plan and data."""
    if not isinstance(error, PySparkException | Py4JError):
        return True
    text = with_java(error)
    of_plan = isinstance(error, AnalysisException | ParseException)
    called = has_own_frames(error) and not _OF_SPARK.search(text)
    return of_plan or called or has_traceback(text) or bool(_OF_FLOW.search(text))


def jvm_failed(reason: str) -> RecoveryError:
    """The error of a stream that an error of the JVM itself has ended. reason: that error's text; empty if Spark does
    not know it."""
    if not reason:
        return STREAM_ENDED.error({})
    return (JVM_STACK if "StackOverflow" in reason else JVM_LIMIT).error({"reason": reason[:500]})


def _recognised(
    text: str, reading: Callable[[], str], lacking: Callable[[Collection[str]], Collection[str]]
) -> RecoveryError | None:
    """Return the typed error for a text of Spark's that names a known failure."""
    moved = _OTHER_BASE_PATH.search(text)
    if moved is not None:
        return FlowMismatchError(
            f"the flow reads {moved[1]} where it read {moved[2]} before",
            cause="The path of a source of files was changed. Spark knows the files that were read by their paths, and "
            "would read all again where they are now.",
            remedy="Give the source its old path; where the files were moved, a symbolic link in their old place will "
            "do. To read a second directory from its beginning, add a source for it.",
        )
    of_worker = _of_worker(text)
    if of_worker is not None:
        return of_worker
    lost = lost_input(text, reading, lacking)
    if lost is not None:
        return lost
    changed = _OPERATORS_CHANGED.search(text)
    if changed is not None:
        return StepChangedError(
            f"Spark's own operators do not fit the state that the partitions hold: {changed[2][:500]} ({changed[1]})",
            cause="One of them was added, removed, moved or given another key or type in the flow.",
            remedy="Change it back, or start again in another recovery directory: their state cannot be converted.",
        )
    return None


def _of_worker(text: str) -> RecoveryError | None:
    """Return the error of this package that ended a task. Of several errors this is the first, with the notes of the
    errors that were raised from it, which name the step and the key. An error that was raised while another error was
    handled, as by cleaning up, is not the culprit."""
    found, end = None, 0
    for match in _WORKER_ERROR.finditer(text):
        kind = error_named(match[1])
        if kind is None:
            continue
        between = text[end : match.start()]
        if found is not None and (RAISED_FROM not in between or RAISED_WITHIN in between or "\n\tat " in between):
            break
        found, end = _from_text(kind, match[2]), match.end()
    return found


def in_short(error: BaseException) -> str:
    """What went wrong, and where in the user's code."""
    if isinstance(error, RecoveryError):
        return f"{type(error).__name__}: {error.found}"
    # The error of a function that failed in a worker names its place in the code.
    own = essence(str(error)) if isinstance(error, PySparkException) else None
    return own.split("\n")[0] if own else headline(error)


def _without_frames(text: str) -> str:
    """The message of a Java exception, or of the task that failed a job, without the places in Spark's code."""
    failure = _TASK_FAILURE.search(text)
    return (failure[1] if failure else text.split("\n\tat ")[0]).strip()


def _from_text(kind: type[RecoveryError], text: str) -> RecoveryError:
    """Parse a RecoveryError from its own text, which has the finding, the probable cause and the remedy on separate
    lines."""
    text, note = without_note(text.strip())
    found, _, rest = text.partition("\nProbable cause: ")
    cause, _, remedy = rest.partition("\nWhat to do: ")
    if not rest:
        found, _, remedy = found.partition("\nWhat to do: ")
    return kind(f"{note}{found.strip()}", cause=cause.strip(), remedy=remedy.strip())
