"""Errors of a command's own output, as opposed to errors of the command's work."""

from __future__ import annotations

import traceback
from pathlib import Path

from recovery.errors import StorageError


def of_output(error: OSError) -> bool:
    """Whether the error was raised while a command printed, for another reason than a reader that went away."""
    if isinstance(error, BrokenPipeError):
        return False
    return any("click" in Path(frame.filename).parts for frame in traceback.extract_tb(error.__traceback__)[-3:])


def output_failed(error: OSError) -> StorageError:
    """Return the error for output that could not be written."""
    return StorageError(
        f"its output cannot be written: {error}",
        cause="The disk to which it is redirected is full or failing. The command itself did its work up to here.",
        remedy="Make room there, or redirect the output elsewhere; recovery status DIR shows what the partitions hold.",
    )
