"""Sinks of a fork: their targets must not be those of the store that it was forked from."""

from __future__ import annotations

from recovery.errors import OutputMismatchError
from recovery.sinks.protocol import Resume
from recovery.storage.origin import continued


def check_not_of_origin(resume: Resume, store_id: str, target: str, own: str = "") -> None:
    """Check that a target, which the store `store_id` writes to, is not that of a store that this one was forked from.

    own: how the sink can have a target of its own; empty: it cannot. Raises OutputMismatchError.
    """
    same = len(continued(resume.origins))
    origin = next((each for each in resume.origins[same:] if each.store_id == store_id), None)
    if origin is not None and store_id != resume.store_id:
        raise OutputMismatchError(
            f"it holds the output of store {store_id} in {origin.directory}, which this one was forked from",
            path=target,
            cause="The recovery directory is a fork, and its flow has the sink of the origin.",
            remedy=f"Run the fork without output: --no-output{f', or give it a target of its own: {own}' * bool(own)}.",
        )
