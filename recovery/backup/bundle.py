"""The manifests of a place in one object: a listing of thousands asks a bucket a few times, not thousands of times.

`manifests.bundle` is a hint, and nothing depends on it. It has the bytes of manifests and heads as they are stored.

- What counts is what the place lists. The bytes of a manifest in the bundle are used only if the place lists the
  manifest with the same size and time; a manifest never changes. Any other manifest is read itself. A head is compared
  with the digest that its manifest names, wherever its bytes come from.
- Who makes or removes backups writes the bundle, when that process had to read many manifests themselves: from the
  bundle before, and what it has read and understood. Of two that write at the same time the last one counts, and what
  its bundle lacks is read. A kill leaves the bundle before, or a part of one, which does not match its digest.
- A manifest that was damaged at the place later, with the same size and time, is found by who reads manifests
  themselves: `recovery drill`.

Whoever can write the bundle can write manifests, so the bundle is as trusted as they are. A directory has none: there a
manifest costs no request.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Protocol

import msgspec

from recovery.errors import BackupTargetError, RecoveryError
from recovery.places.directory import DirectoryPlace
from recovery.places.protocol import Place, PlaceEntry

NAME = "manifests.bundle"
OBJECTS = "objects/"
FEW = 32
"""So many manifests are read one by one; for more, the bundle is read first. So many that it lacks, and it is written
again."""
MOST_HEADS = 4096
"""Heads in a bundle, of some kilobytes each; the names of newer ones sort later."""
LARGEST = 256 << 20
DIGEST_BYTES = 32

_Name = Annotated[str, msgspec.Meta(max_length=4096)]


class _BundledManifest(msgspec.Struct, frozen=True, array_like=True):
    """A manifest: its name, the time at which it was written, and its bytes."""

    name: _Name
    written_ms: int
    content: bytes


class _Bundle(msgspec.Struct, frozen=True):
    manifests: list[_BundledManifest] = []
    heads: dict[_Name, bytes] = {}


_DECODER = msgspec.msgpack.Decoder(_Bundle)


class ObjectReader(Protocol):
    """What manifests and heads are read from."""

    def read(self, name: str) -> Iterator[bytes]:
        """Yield an object in chunks; see `Place`."""
        ...


class Manifests:
    """Reads the manifests and heads of a place, from its bundle where that has them. `read` is safe from several
    threads."""

    def __init__(self, target: Place, *, bundled: bool = True) -> None:
        """bundled: False: read each object itself."""
        self.target = target
        self._is_used = bundled and not isinstance(target, DirectoryPlace)
        self._bundled: dict[str, bytes] = {}
        self._fresh: dict[str, bytes] = {}
        self._heads_read: dict[str, bytes] = {}

    @contextlib.contextmanager
    def expecting(self, entries: Sequence[PlaceEntry]) -> Iterator[None]:
        """Read the bundle for a block that reads these manifests, which the place lists."""
        if self._is_used and len(entries) > FEW:
            found = _read(self.target)
            kept = {PlaceEntry(each.name, len(each.content), each.written_ms): each.content for each in found.manifests}
            heads = {name: content for name, content in found.heads.items() if name.startswith(OBJECTS)}
            self._bundled = {**heads, **{entry.name: kept[entry] for entry in entries if entry in kept}}
        try:
            yield
        finally:
            self._bundled = {}

    def read(self, name: str) -> Iterator[bytes]:
        """Yield an object in chunks, as `Place.read`."""
        kept = self._bundled.get(name)
        content = bytearray(kept or b"")
        if kept is not None:
            yield kept
        else:
            for chunk in self.target.read(name):
                if self._is_used and len(content) <= LARGEST:
                    content += chunk
                yield chunk
        if self._is_used and name.startswith(OBJECTS):
            self._heads_read[name] = bytes(content)
        elif self._is_used and kept is None:
            self._fresh[name] = bytes(content)

    def forget_but(self, entries: Iterable[PlaceEntry]) -> None:
        """Forget what was read of manifests that the place does not list any more, and of all but the newest heads."""
        names = {entry.name for entry in entries}
        self._fresh = {name: content for name, content in self._fresh.items() if name in names}
        self._heads_read = dict(sorted(self._heads_read.items())[-MOST_HEADS:])

    def keep(self, sound: Iterable[PlaceEntry]) -> None:
        """Write the bundle if more than `FEW` manifests had to be read themselves. sound: the manifests that the place
        lists now, and that were understood. The bundle is a hint, so a failure raises nothing."""
        if len(self._fresh) <= FEW:
            return
        with contextlib.suppress(RecoveryError):
            before = _read(self.target)
            known = {PlaceEntry(e.name, len(e.content), e.written_ms): e.content for e in before.manifests}
            found = [(each, known.get(each) or self._fresh.get(each.name)) for each in sound]
            kept = [
                _BundledManifest(each.name, each.written_ms, content)
                for each, content in found
                if content is not None and len(content) == each.size_bytes
            ]
            written = msgspec.msgpack.encode(_Bundle(kept, self._heads_read))
            if len(written) <= LARGEST:
                self.target.write(NAME, [hashlib.sha256(written).digest(), written])
        self._fresh = {}


def _read(target: Place) -> _Bundle:
    """Return the bundle of a place; an empty one if it is missing, not what was written, or refused to this user, who
    may have a right to manifests and objects only."""
    content = bytearray()
    try:
        for chunk in target.read(NAME):
            content += chunk
            if len(content) > LARGEST + DIGEST_BYTES:
                return _Bundle()
        digest, rest = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        return _DECODER.decode(rest) if hashlib.sha256(rest).digest() == digest else _Bundle()
    except (BackupTargetError, FileNotFoundError, ValueError, RecursionError):
        return _Bundle()
