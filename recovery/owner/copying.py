"""Copies of an owner's partitions, sent in pieces to a command on another host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from recovery.base.wording import counted
from recovery.host.durable import make_directories, modes_beside
from recovery.host.scratch import scratch_directory
from recovery.host.storage_errors import storage_errors
from recovery.planning.health import format_bytes
from recovery.storage.copies import pin
from recovery.wire.calls import Piece

PIECE_BYTES = 1 << 20


def copies(paths: Sequence[Path], scratch: Path, log: Callable[[str], None]) -> Iterator[Piece]:
    """See `OwnerCalls.copies`. scratch: a directory with room for the largest of the copies. log: gets a line when all
    are sent."""
    pinned = pin(paths)
    sent_bytes = 0
    try:
        yield Piece("", b"")
        with storage_errors(scratch):
            make_directories(scratch, modes_beside(paths[0]))
        with scratch_directory("copy", scratch) as room:
            for each in pinned:
                copy = room / each.path.name
                each.copy_to(copy)
                each.release()
                with copy.open("rb") as file:
                    while data := file.read(PIECE_BYTES):
                        yield Piece(copy.name, data)
                        sent_bytes += len(data)
                copy.unlink()
        log(f"copies of {counted(len(paths), 'partition')} sent, {format_bytes(sent_bytes)}")
    finally:
        for each in pinned:
            each.release()
