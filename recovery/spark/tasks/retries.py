"""Retries of tasks: a retry runs the task again, but repeats an error of the step's function without running it.

Spark retries a task whatever the cause of its failure. With the default master, retries are meant for killed workers.
An error of a step's function would occur again, and running the function three times would take three times as long.
The first attempt therefore writes the error to a file, and later attempts raise it from there.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from pyspark import SparkContext, TaskContext

from recovery.base.tracebacks import sendable
from recovery.config import DEFAULT_MASTER
from recovery.errors import LeaseLostError, RecoveryError, StorageError
from recovery.host import private

NOTES_PROPERTY = "recovery.failed"
"""Local property with the prefix of the files for the errors. Unset if the user chose the master, whose retries then
all run: whoever asks for retries may rely on them."""


class FailedBeforeError(Exception):
    """The error of an earlier attempt; its text is that error's traceback."""


def retry_properties(context: SparkContext) -> dict[str, str | None]:
    """Return the local properties for the tasks of this context."""
    final = context.master == DEFAULT_MASTER
    return {NOTES_PROPERTY: str(private.home() / f"failed-{context.applicationId}") if final else None}


@contextlib.contextmanager
def raised_once(context: TaskContext) -> Iterator[None]:
    """Context manager for the work of a task. Raises FailedBeforeError if the work itself failed an earlier attempt,
    and UnsendableError in place of an error that could not be reported."""
    prefix = context.getLocalProperty(NOTES_PROPERTY)
    note = None if prefix is None else Path(f"{prefix}-{context.stageId()}-{context.partitionId()}")
    if note is not None and context.attemptNumber() and note.exists():
        raise FailedBeforeError(note.read_text())
    try:
        yield
    except BaseException as raised:
        error = sendable(raised)
        if note is not None and _comes_again(raised):
            with contextlib.suppress(OSError):
                note.write_text("".join(traceback.format_exception(error)))
        if error is not raised:
            raise error from None
        raise


def _comes_again(error: BaseException) -> bool:
    """Return whether an error would occur again: it comes from the step's function or its result, and has a note that
    says where.

    Other errors may come from the disk, or from the input, which ends early if a worker below is killed."""
    if isinstance(error, RecoveryError):
        return not isinstance(error, StorageError | LeaseLostError)
    return any(note.startswith("in step ") for note in getattr(error, "__notes__", ()))
