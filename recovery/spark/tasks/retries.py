"""Tasks that are tried again: after the end of their Python worker they run again, after an error they raise it again.

Spark tries a task again whatever it failed of. With the default master that is for workers that were killed: an error
of a step's function, which would come again, is not to cost three times the time and to run the function three times.
So the first attempt writes it down, and the others read it.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from pyspark import SparkContext, TaskContext

from recovery.config import DEFAULT_MASTER
from recovery.errors import LeaseLostError, RecoveryError, StorageError
from recovery.host import private

NOTES_PROPERTY = "recovery.failed"
"""Where a job's tasks write it down; none where each attempt is to run: who asks for retries by a master of their own
may count on them."""


class FailedBeforeError(Exception):
    """Its text is the traceback of the error of an attempt before."""


def retry_properties(context: SparkContext) -> dict[str, str | None]:
    """What tasks of this context are given."""
    final = context.master == DEFAULT_MASTER
    return {NOTES_PROPERTY: str(private.home() / f"failed-{context.applicationId}") if final else None}


@contextlib.contextmanager
def raised_once(context: TaskContext) -> Iterator[None]:
    """For what a task does in its worker. Raises FailedBeforeError where another attempt has failed by itself."""
    prefix = context.getLocalProperty(NOTES_PROPERTY)
    if prefix is None:
        yield
        return
    note = Path(f"{prefix}-{context.stageId()}-{context.partitionId()}")
    if context.attemptNumber() and note.exists():
        raise FailedBeforeError(note.read_text())
    try:
        yield
    except Exception as error:
        if _comes_again(error):
            with contextlib.suppress(OSError):
                note.write_text("".join(traceback.format_exception(error)))
        raise


def _comes_again(error: Exception) -> bool:
    """Whether it is of the step's function or of what it gave: those have a note that says where. Others may come from
    the input, which ends early when a worker below is killed, or from the disk."""
    if isinstance(error, RecoveryError):
        return not isinstance(error, StorageError | LeaseLostError)
    return any(note.startswith("in step ") for note in getattr(error, "__notes__", ()))
