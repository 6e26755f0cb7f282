"""Progress of the export and import of checkpoints, and of the import of other tools' state."""

from __future__ import annotations

from recovery.checkpoint.directories import CheckpointTransfer
from recovery.cli.common import format_size
from recovery.cli.status_line import StatusLine


class CheckpointProgress(StatusLine):
    """Observes a checkpoint being read or written."""

    def observe(self, event: CheckpointTransfer) -> None:
        """Handle one event; it may come from several threads."""
        share = event.bytes_done / event.bytes_total if event.bytes_total else 1.0
        self.show(f"{event.what} {share:.0%} of {format_size(event.bytes_total)}")
