"""Objects at a place: writing a file as an object, and bringing a stored copy back as a file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from recovery.backup.progress import FileProgress, Observer
from recovery.backup.stored import StoredCopy
from recovery.base.wording import counted
from recovery.errors import BackupDamagedError, CorruptPartitionError, UnsupportedVersionError
from recovery.host.durable import create
from recovery.host.storage_errors import storage_errors
from recovery.places.frames import FRAME_BYTES, digest_of, encode_index, pack
from recovery.places.protocol import CHUNK_BYTES, Place, UnreadableError
from recovery.planning.chains import ChainLink
from recovery.storage.copies import read_links, replay


class SpoiledObject(Exception):  # noqa: N818 - not an error yet: there may be other copies
    """An object is missing, or is not what was stored. found: a sentence that begins with its name.

    name: the object's name; None if the object is what was stored, but does not continue the objects before it.
    """

    def __init__(self, name: str | None, found: str) -> None:
        super().__init__(found)
        self.name = name
        self.found = found


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that was stored. sha256, size_bytes: of the file; stored_bytes: of the object. index_bytes, index_sha256:
    of the index at the object's end; 0 if it has none."""

    sha256: str
    size_bytes: int
    stored_bytes: int
    index_bytes: int
    index_sha256: str


def store_file(
    target: Place, name: str, path: Path, observe: Callable[[int], None], *, indexed: bool = False
) -> StoredFile:
    """Compress a file and write it as an object. observe: called with the bytes of the file that were read so far.
    indexed: so that parts of the file can be read (see `recovery.places.frames`).

    Raises BackupTargetError, BackupDamagedError or StorageError.
    """
    content = _Compressed(path, observe, FRAME_BYTES if indexed else CHUNK_BYTES)
    stored_bytes = target.write(name, content)
    if stored_bytes != content.stored_bytes:
        raise BackupDamagedError(
            f"{name}: {stored_bytes:,} of {counted(content.stored_bytes, 'byte')} written", path=target.shown
        )
    index = content.index
    return StoredFile(content.sha256, content.size_bytes, stored_bytes, len(index), hashlib.sha256(index).hexdigest())


def bring(target: Place, stored: StoredCopy, path: Path, observe: Observer, *, collects: bool = True) -> None:
    """Write the partition as of a stored copy to the new file `path`: fetch the whole copy, and replay its changes.
    collects: without the epochs that the partition had collected by then.

    Every object is compared with the manifest as it arrives. Files beside `path` whose names begin with its name are
    removed again. Raises SpoiledObject, BackupTargetError or StorageError.
    """
    done = stored.size_bytes
    tell = _told(stored, path, observe)
    fetch_object(target, stored.object_name, stored.sha256, done, path, tell)
    replay_changes(target, stored, path, observe, collects=collects)


def replay_changes(target: Place, stored: StoredCopy, path: Path, observe: Observer, *, collects: bool) -> None:
    """Replay the changes of a stored copy on its whole copy at `path`. See `bring`."""
    files = {path.with_name(f"{path.name}.changes-{n}"): each for n, each in enumerate(stored.changes)}
    done, tell = stored.size_bytes, _told(stored, path, observe)
    try:
        for file, each in files.items():
            fetch_object(
                target, each.object_name, each.sha256, each.size_bytes, file, lambda n, done=done: tell(done + n)  # type: ignore[misc]
            )  # fmt: skip
            done += each.size_bytes
        if files:
            replay(path, list(files), stored.links, collects=collects)
    except (CorruptPartitionError, UnsupportedVersionError) as error:
        wrong = next((each for file, each in files.items() if error.path == str(file)), None)
        name = wrong.object_name if wrong is not None else stored.object_name
        raise SpoiledObject(None, f"{name} cannot be used: {error.found}") from error
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _told(stored: StoredCopy, path: Path, observe: Observer) -> Callable[[int], None]:
    total = stored.size_bytes + sum(each.size_bytes for each in stored.changes)
    return lambda done: observe(FileProgress("fetch", path.name, done, total))


def links_of(target: Place, stored: StoredCopy, scratch: Path) -> list[ChainLink]:
    """Return what the links of a chain say of themselves, the oldest first. Reads all its changes files.

    Raises SpoiledObject, BackupTargetError or StorageError.
    """
    found: list[ChainLink] = []
    for each in stored.changes:
        path = scratch / "changes"
        fetch_object(target, each.object_name, each.sha256, each.size_bytes, path, lambda _: None)
        try:
            found += read_links(path)
        except (CorruptPartitionError, UnsupportedVersionError) as error:
            raise SpoiledObject(None, f"{each.object_name} cannot be used: {error.found}") from error
        path.unlink()
    if [link.number for link in found] != list(range(1, stored.links + 1)):
        raise SpoiledObject(None, f"{stored.origin} is not the end of a chain of {stored.links} links")
    return found


def fetch_object(
    target: Place, name: str, sha256: str, size_bytes: int, path: Path, observe: Callable[[int], None]
) -> None:
    """Write the file in an object to the new file `path`. Nothing is synced.

    Raises SpoiledObject if the content is not what was stored, BackupTargetError or StorageError.
    """
    digest, size = hashlib.sha256(), 0
    with storage_errors(path), os.fdopen(create(path), "wb") as file:
        for chunk in _read(target, name):
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            observe(size)
            if size > size_bytes:
                break
    if (size, digest.hexdigest()) != (size_bytes, sha256):
        what = f"{size:,} of {counted(size_bytes, 'byte')}" if size != size_bytes else "its bytes were changed"
        raise SpoiledObject(name, f"{name} differs from what was stored: {what}")


def _read(target: Place, name: str) -> Iterator[bytes]:
    try:
        yield from target.read(name)
    except FileNotFoundError:
        raise SpoiledObject(name, f"{name} is missing") from None
    except UnreadableError as error:
        raise SpoiledObject(name, f"{name} cannot be read: {error}") from None
    except BackupDamagedError as error:
        raise SpoiledObject(name, error.found) from error


class _Compressed:
    """Yields a file's content as zstd frames of this many bytes of it; `zstd -d` reads the result. If they are smaller
    than a chunk, the index of the frames follows."""

    def __init__(self, path: Path, observe: Callable[[int], None], frame_bytes: int) -> None:
        self._path = path
        self._observe = observe
        self._frame_bytes = frame_bytes
        self._digest = hashlib.sha256()
        self.size_bytes = 0
        self.stored_bytes = 0
        self.index = b""

    @property
    def sha256(self) -> str:
        """The digest of the uncompressed file."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        frames: list[tuple[int, bytes]] = []
        indexed = self._frame_bytes < CHUNK_BYTES
        with storage_errors(self._path), self._path.open("rb") as file:
            while block := file.read(CHUNK_BYTES):
                self._digest.update(block)
                view = memoryview(block)
                packed = [pack(view[at : at + self._frame_bytes]) for at in range(0, len(block), self._frame_bytes)]
                if indexed:
                    frames += [(len(frame), digest_of(frame)) for frame in packed]
                chunk = b"".join(packed)
                self.size_bytes += len(block)
                self.stored_bytes += len(chunk)
                yield chunk
                self._observe(self.size_bytes)
        if indexed:
            self.index = encode_index(frames, self.size_bytes)
            self.stored_bytes += len(self.index)
            yield self.index
