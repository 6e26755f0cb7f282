"""A directory as the place of backups whose disk may stop answering, such as a share that is mounted.

A call to such a directory blocks until the disk answers again, and nothing interrupts it. A process that serves others
makes such calls in threads of its own, and gives up on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from recovery.base.threads import bounded
from recovery.errors import BackupTargetError
from recovery.places.directory import DirectoryPlace
from recovery.places.protocol import Place, PlaceEntry

SILENT_S = 600.0
"""How long a call may take; of a write, what follows a chunk. Syncing a large object to a slow disk takes a while."""

T = TypeVar("T")


def limited(target: Place) -> Place:
    """Return the place so that every call to it ends: with an answer, or with BackupTargetError."""
    return MountedPlace(target) if isinstance(target, DirectoryPlace) else target


def answered(call: Callable[[], T], shown: str, moved: Callable[[], int] = lambda: 0) -> T:
    """Return or raise what a call to a directory does; BackupTargetError if the value of `moved` does not change for
    `SILENT_S`."""
    try:
        return bounded(call, SILENT_S, moved)
    except TimeoutError:
        raise BackupTargetError(
            f"no answer for {SILENT_S:.0f} s",
            path=shown,
            cause="The disk, or the host that shares it, does not answer.",
            remedy="See whether `ls` answers in the directory; if it does not, mount the directory again.",
        ) from None


class MountedPlace(DirectoryPlace):
    """The `Place` of a directory that is asked in other threads. A call that was given up goes on in its thread."""

    def __init__(self, of: DirectoryPlace) -> None:
        super().__init__(of.root, of.modes)

    def write(self, name: str, chunks: Iterable[bytes]) -> int:
        taken = 0

        def counted() -> Iterator[bytes]:
            nonlocal taken
            for chunk in chunks:
                taken += 1
                yield chunk
            taken += 1

        return answered(lambda: super(MountedPlace, self).write(name, counted()), self.shown, lambda: taken)

    def read(self, name: str) -> Iterator[bytes]:
        found = super().read(name)
        while chunk := answered(lambda: next(found, b""), self.shown):
            yield chunk

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        return answered(lambda: super(MountedPlace, self).read_range(name, offset, size), self.shown)

    def entries(self, prefix: str) -> list[PlaceEntry]:
        return answered(lambda: super(MountedPlace, self).entries(prefix), self.shown)

    def delete(self, name: str) -> None:
        answered(lambda: super(MountedPlace, self).delete(name), self.shown)
