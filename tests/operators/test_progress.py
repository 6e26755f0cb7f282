"""What export and import show while they work."""

from __future__ import annotations

import io

from recovery.checkpoint.directories import CheckpointTransfer
from recovery.cli import status_line
from recovery.cli.checkpoint_progress import CheckpointProgress


class Terminal(io.StringIO):
    """A stream that redraws."""

    def isatty(self):
        return True


def test_a_line_now_and_then(monkeypatch):
    """Nothing for what is done immediately; else lines, and on a terminal one line that is gone in the end."""
    event = CheckpointTransfer("writing", 450_000_000, 1_000_000_000)
    for stream, quiet, expected in [
        (io.StringIO(), False, "writing 45% of 1.0 GB\n"),
        (Terminal(), False, "\r\x1b[Kwriting 45% of 1.0 GB\r\x1b[K"),
        (io.StringIO(), True, ""),
    ]:
        monkeypatch.setattr(status_line, "LINE_S", 3600)
        monkeypatch.setattr(status_line, "REDRAW_S", 3600)
        with CheckpointProgress(stream=stream, quiet=quiet) as progress:
            progress.observe(event)
            assert stream.getvalue() == ""
            monkeypatch.setattr(status_line, "LINE_S", 0)
            monkeypatch.setattr(status_line, "REDRAW_S", 0)
            progress.observe(event)
        assert stream.getvalue() == expected
