"""Lazy restores: a stored copy as a partition that is usable before it is fetched.

Only the index of its frames and its first frame are read. `recovery.storage.lazy` fetches the other pages when they are
read, and `recovery.storage.hydration` the rest. The changes files of a chain are replayed on the partition immediately,
which reads the pages of the keys that they touch.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from recovery.backup.objects import SpoiledObject, replay_changes
from recovery.backup.progress import Observer
from recovery.backup.stored import StoredCopy
from recovery.errors import BackupDamagedError, ConfigurationError, StorageError
from recovery.places.protocol import Place, UnreadableError
from recovery.storage.hydration import FrameIndex, PageSource, create_lazy, page_bytes_of


def bring_lazily(
    target: Place, place: str, stored: StoredCopy, path: Path, observe: Observer, *, collects: bool
) -> None:
    """Make the new file `path` the partition as of a stored copy, whose pages are fetched from `place` when they are
    read. The copy has an index. See `recovery.backup.objects.bring`.

    Raises SpoiledObject, BackupTargetError or StorageError.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            "its path is not text in UTF-8, as a lazy restore needs it",
            path=path,
            cause="SQLite reads such partitions through Python.",
            remedy="Choose another directory, or restore without --lazy.",
        ) from None
    name, end = stored.object_name, stored.stored_bytes
    encoded = _read(target, name, end - stored.index_bytes, stored.index_bytes)
    if hashlib.sha256(encoded).hexdigest() != stored.index_sha256:
        raise SpoiledObject(name, f"{name} differs from what was stored: the index of its frames was changed")
    try:
        index = FrameIndex(encoded)
        first = index.unpacked(0, _read(target, name, *index.place(0, 1)))
        source = PageSource(place, name, end, stored.index_bytes, page_bytes_of(first))
        create_lazy(path, source, encoded, first)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise SpoiledObject(name, f"{name} differs from what was stored: {error}") from error
    except OSError as error:
        raise StorageError(str(error), path=path) from error
    try:
        replay_changes(target, stored, path, observe, collects=collects)
    except BackupDamagedError as error:
        raise SpoiledObject(name, error.found) from error


def _read(target: Place, name: str, offset: int, size: int) -> bytes:
    try:
        return target.read_range(name, offset, size)
    except FileNotFoundError:
        raise SpoiledObject(name, f"{name} is missing") from None
    except UnreadableError as error:
        raise SpoiledObject(name, f"{name} cannot be read: {error}") from None
