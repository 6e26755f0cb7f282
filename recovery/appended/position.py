"""How far each file was read, and how to recognise it: the value that is saved and read back.

Content identifies a file: a digest of its first bytes and of the last bytes that were read. The file's name and inode
number are hints about where to look first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from recovery.appended.files import directory_of, name_of
from recovery.base.untrusted_json import Count
from recovery.errors import CorruptPartitionError, UnsupportedVersionError

Read = Callable[[int, int], bytes]
"""`read(offset, length)` returns the bytes there, fewer only at the end of the file."""

OFFSET_VERSION = 1
"""The version of the JSON form and of the two sizes below: saved digests depend on these sizes."""
HEAD_BYTES = 4096
TAIL_BYTES = 1024


@dataclass(frozen=True, slots=True)
class FilePosition:
    """How far one file was read.

    path, inode: where it was. origin: the name under which it was first input. offset: how many bytes were read.
    seen: how many bytes it had then. mtime_ns: when it was last written to. digest: the fingerprint at `offset`, or,
    if nothing was read, of the content seen. unfinished: the last line was taken without its line end.
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
        """Whether everything seen was read."""
        return self.offset == self.seen

    @property
    def blank(self) -> bool:
        """Whether the file was empty whenever it was seen: its content cannot identify it."""
        return not (self.offset or self.seen)

    @property
    def needed_bytes(self) -> int:
        """The minimum size of this file: a shorter one is another file."""
        return self.offset or min(self.seen, HEAD_BYTES)

    def holds_in(self, read: Read, size: int) -> bool:
        """Return whether a file of this size begins with the content that was read."""
        return size >= self.needed_bytes and fingerprint(read, self.offset, self.seen) == self.digest


@dataclass(frozen=True, slots=True)
class InputOffset:
    """How far the input was read: a position for each file, by a number that is never reused.

    since_ns: the last scan saw no generation of a log that was written to after this time; 0: there was no scan.
    """

    files: Mapping[int, FilePosition] = field(default_factory=dict)
    next_id: int = 1
    turn: int = 0
    """The number of the file whose turn is next, if the limit of a batch left some files out."""
    since_ns: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; equal offsets have equal text."""
        files = {str(number): _position_json(position) for number, position in sorted(self.files.items())}
        since = {"since": self.since_ns} if self.since_ns else {}
        return {"version": OFFSET_VERSION, "next": self.next_id, "turn": self.turn, **since, "files": files}

    def bytes_since(self, before: InputOffset) -> int:
        """Return how many bytes were read since an earlier offset in this input."""
        began = {number: position.offset for number, position in before.files.items()}
        return sum(max(0, position.offset - began.get(number, 0)) for number, position in self.files.items())

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InputOffset:
        """Parse a JSON form. Raises UnsupportedVersionError for a position of another version, CorruptPartitionError
        for an invalid position."""
        if value.get("version") != OFFSET_VERSION:
            raise UnsupportedVersionError(
                f"The saved input position has version {value.get('version')!r}, not {OFFSET_VERSION}.",
                cause="A newer version of recovery, or another source, wrote it.",
            )
        try:
            saved = msgspec.convert(value, _Saved)
            files = {int(number): position for number, position in saved.files.items()}
            return cls(files, saved.next, saved.turn, saved.since)
        except (ValueError, RecursionError) as error:
            raise CorruptPartitionError(f"the saved position in appended files cannot be read: {error}") from error


class _Saved(msgspec.Struct):
    """The JSON form."""

    files: dict[str, FilePosition]
    next: Count
    turn: Count
    since: int = 0


def fingerprint(read: Read, offset: int, seen: int) -> str:
    """Return a digest of the first and last bytes that were read, or of the first seen if nothing was read."""
    digest = blake2b(read(0, min(offset or seen, HEAD_BYTES)), digest_size=16)
    if offset > HEAD_BYTES:
        digest.update(read(offset - TAIL_BYTES, TAIL_BYTES))
    return digest.hexdigest()


def _position_json(position: FilePosition) -> dict[str, Any]:
    # Many times faster than dataclasses.asdict, which copies each value.
    fields: dict[str, Any] = msgspec.to_builtins(position)
    if not position.unfinished:
        del fields["unfinished"]
    return fields
