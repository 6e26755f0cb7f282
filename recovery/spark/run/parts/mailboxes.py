"""The mailboxes of one run: the files through which the driver tells tick sources when the next timeout is due."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recovery.base.ids import Lease
from recovery.errors import ConfigurationError
from recovery.spark.run.parts.part import Part
from recovery.spark.steps.definition import RegisteredStep
from recovery.spark.steps.ticks import write_mailbox
from recovery.storage.seam import PartitionStore

_in_use: set[Path] = set()
"""Mailboxes of the queries that run in this process."""


class Mailboxes(Part):
    """The mailboxes of the steps that have timeouts, or rows to replay."""

    name = "mailboxes"

    def __init__(self, steps: Sequence[RegisteredStep], store: PartitionStore, lease: Lease) -> None:
        """Reserve the mailboxes. Raises ConfigurationError if another query has one of them."""
        waiting = [s.definition for s in steps if s.definition.ticks]
        self._steps = [definition.step_id for definition in waiting if definition.timeouts]
        # Rows to replay are due immediately, rows that only wait never.
        self._steps += [definition.quarantine for definition in waiting if definition.replays]
        self._files = [definition.mailbox for definition in waiting]
        self._store = store
        self._lease = lease
        self.due_ms: int | None = None
        """When the next timeout is due, milliseconds since 1970, as of the last finished micro-batch; None: none is."""
        if _in_use.intersection(self._files):
            raise ConfigurationError(
                "the frame runs already",
                cause="A frame with timeouts was started twice, and has one source of ticks.",
                remedy="Build the frame again for each query.",
            )
        _in_use.update(self._files)

    def batch_done(self) -> None:
        """Write when the next timeout is due. Called before the first micro-batch, too."""
        if self._files:
            # A step that no longer declares timeouts may still hold some, which nothing handles.
            self.due_ms = self._store.next_due_ms(self._lease, self._steps)
            for mailbox in self._files:
                write_mailbox(mailbox, self.due_ms, self._store.partition_count)

    def end(self, error: BaseException | None) -> None:
        """Remove the mailboxes; harmless if they are not there."""
        for mailbox in self._files:
            mailbox.unlink(missing_ok=True)
            _in_use.discard(mailbox)
