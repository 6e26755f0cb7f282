"""How far each file was read, and what it takes to recognise it: the value that is saved and handed back.

A file is recognised by content: a digest of its first bytes and of the bytes just before the place read to.
Its name and inode number are hints about where to look first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from recovery.appended.files import directory_of, name_of
from recovery.base.untrusted_json import Count
from recovery.errors import CorruptPartitionError, UnsupportedVersionError

Read = Callable[[int, int], bytes]
"""`read(offset, length)`: the bytes there, fewer only where the file ends."""

OFFSET_VERSION = 1
"""Stands for the JSON form and for the two sizes below: saved digests are only as good as these stay."""
HEAD_BYTES = 4096
TAIL_BYTES = 1024


@dataclass(frozen=True, slots=True)
class FilePosition:
    """How far one file was read.

    `path` and `inode` say where it was, `origin` under which name it was first input. `offset` is how many
    bytes were read, `seen` how many it had then, `mtime_ns` when it had last been written to. `digest` is the
    fingerprint at `offset`, or of what was seen where nothing was read. `unfinished` tells that the last line
    was taken without its line end.
    """

    path: str
    origin: str
    offset: Count
    seen: Count
    mtime_ns: int
    inode: int
    digest: str
    unfinished: bool = False

    @property
    def name(self) -> str:
        return name_of(self.path)

    @property
    def directory(self) -> str:
        return directory_of(self.path)

    @property
    def drained(self) -> bool:
        """Whether all that was seen was read."""
        return self.offset == self.seen

    @property
    def needed_bytes(self) -> int:
        """A file shorter than this cannot be the one."""
        return self.offset or min(self.seen, HEAD_BYTES)

    def holds_in(self, read: Read, size: int) -> bool:
        """Whether a file of this size begins with what was read."""
        return size >= self.needed_bytes and fingerprint(read, self.offset, self.seen) == self.digest


@dataclass(frozen=True, slots=True)
class InputOffset:
    """How far the input was read: a position for each file, by a number that is given only once."""

    files: Mapping[int, FilePosition] = field(default_factory=dict)
    next_id: int = 1
    turn: int = 0
    """The file whose turn it is, where the limit of a batch left some files out."""

    def to_json(self) -> dict[str, Any]:
        """The JSON form: equal offsets have equal text."""
        files = {str(number): _position_json(position) for number, position in sorted(self.files.items())}
        return {"version": OFFSET_VERSION, "next": self.next_id, "turn": self.turn, "files": files}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InputOffset:
        """The value of a JSON form. Raises UnsupportedVersionError for one that a later version wrote,
        CorruptPartitionError for one that none wrote."""
        if value.get("version") != OFFSET_VERSION:
            raise UnsupportedVersionError(
                f"The saved input position has version {value.get('version')!r}, not {OFFSET_VERSION}.",
                cause="A newer version of recovery, or another source, wrote it.",
            )
        try:
            saved = msgspec.convert(value, _Saved)
            return cls({int(number): position for number, position in saved.files.items()}, saved.next, saved.turn)
        except (ValueError, RecursionError) as error:
            raise CorruptPartitionError(f"the saved position in appended files cannot be read: {error}") from error


class _Saved(msgspec.Struct):
    """The JSON form."""

    files: dict[str, FilePosition]
    next: Count
    turn: Count


def fingerprint(read: Read, offset: int, seen: int) -> str:
    """Digest of the first and the last bytes of what was read, or of the first seen where nothing was."""
    digest = blake2b(read(0, min(offset or seen, HEAD_BYTES)), digest_size=16)
    if offset > HEAD_BYTES:
        digest.update(read(offset - TAIL_BYTES, TAIL_BYTES))
    return digest.hexdigest()


def _position_json(position: FilePosition) -> dict[str, Any]:
    fields = asdict(position)
    if not position.unfinished:
        del fields["unfinished"]
    return fields
