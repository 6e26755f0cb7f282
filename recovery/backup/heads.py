"""The head of manifests: what backups after each other have in common, in an object of its own.

A manifest of a long chain lists the digests of all objects in it, and all executions. Most of that is what the backup
before lists, so it is stored once, in `objects/heads/<id>.json.gz`, and the manifests of the next backups name this
object and its digest. Each says how much of each list in the head is part of its own, and adds the rest. When the rest
has grown to more than `MOST_OWN` changes files in a partition, or something else in the head is no longer so, the next
backup writes a new head. Manifests of whole copies alone have no head: older versions of this package read them. A
head is an object like others: never changed, kept while a manifest names it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec

from recovery.backup.bundle import ObjectReader
from recovery.errors import shown
from recovery.places.packed import packed, unpacked
from recovery.places.protocol import UnreadableError

LARGEST = 256 << 20
"""The largest manifest as JSON, in bytes. An epoch takes some 80 bytes in each partition, so of a store that was stored
whole three million fit."""
MOST_OWN = 5
"""The most changes files of a partition, and the most executions, that a manifest lists besides its head. A head of
four partitions with long chains has 3 kB, so manifests are short and new heads rare."""
REMEMBERED = 256
"""Heads that a reader keeps; a manifest names one of the newest."""
SAME = ("index", "object", "sha256", "size_bytes", "stored_bytes", "index_bytes", "index_sha256")
"""What a copy has in common with its head."""
LISTS = ("changes", "executions")
"""Of these lists a copy has the beginning in common with its head."""

_Text = Annotated[str, msgspec.Meta(max_length=65_536)]


class NamedHead(msgspec.Struct, frozen=True):
    """The name of a head, and the digest of its bytes as stored."""

    object: _Text
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Head(NamedTuple):
    """A head: its name and digest, and for each partition `SAME` and `LISTS` as a manifest has them."""

    object: str
    sha256: str
    parts: tuple[dict[str, Any], ...]


class _Stored(msgspec.Struct, frozen=True):
    parts: list[dict[str, Any]]


_STORED = msgspec.json.Decoder(_Stored)
# Heads list much the same executions, thousands of a directory in which runs begin every few minutes: one object for
# each keeps them small.
_execution = lru_cache(maxsize=1 << 14, typed=True)(lambda *values: values)


def head_name(identity: str) -> str:
    """Return the name of the head that the backup of this id writes."""
    return f"objects/heads/{identity}.json.gz"


def new_head(identity: str, copies: Sequence[dict[str, Any]]) -> tuple[Head, bytes]:
    """Return the head of these copies, and its bytes."""
    parts = tuple({name: copy[name] for name in (*SAME, *LISTS)} for copy in copies)
    content = packed(json.dumps({"parts": parts}, ensure_ascii=False).encode())
    return Head(head_name(identity), hashlib.sha256(content).hexdigest(), parts), content


def fits(head: Head | None, copies: Sequence[dict[str, Any]]) -> bool:
    """Return whether a manifest of these copies is short with this head; also if it needs none."""
    if head is None:
        return all(len(copy["changes"]) <= MOST_OWN and len(copy["executions"]) <= MOST_OWN for copy in copies)
    if [copy["index"] for copy in copies] != [part["index"] for part in head.parts]:
        return False
    return all(_is_like(copy, part) for copy, part in zip(copies, head.parts, strict=True))


def _is_like(copy: dict[str, Any], part: dict[str, Any]) -> bool:
    return is_same(copy, part) and all(len(copy[name]) - _shared(copy[name], part[name]) <= MOST_OWN for name in LISTS)


def without_head(copies: list[dict[str, Any]], head: Head | None) -> dict[str, Any]:
    """Return the fields of a manifest that say what its copies are, besides what `head`, which fits, says."""
    if head is None:
        return {"partitions": copies}
    short = [shortened(copy, part) for copy, part in zip(copies, head.parts, strict=True)]
    return {"head": {"object": head.object, "sha256": head.sha256}, "partitions": short}


def shortened(copy: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return a copy without what `part`, with an equal `SAME`, says as well. "shared": how much of each list that
    is."""
    shared = {name: _shared(copy[name], part[name]) for name in LISTS}
    own = {name: value for name, value in copy.items() if name not in SAME}
    own |= {name: copy[name][shared[name] :] for name in LISTS}
    return {**own, "shared": list(shared.values())}


def completed(copy: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return the copy of which `shortened` has made this one. Raises ValueError if they do not fit."""
    try:
        if any(not 0 <= shared <= len(part[name]) for name, shared in zip(LISTS, copy["shared"], strict=True)):
            raise ValueError("it shares more than there is")
        lists = {name: part[name][:shared] + copy[name] for name, shared in zip(LISTS, copy["shared"], strict=True)}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("it is not a shortened copy") from error
    return {**copy, **{name: part[name] for name in SAME}, **lists}


def is_same(copy: dict[str, Any], part: dict[str, Any]) -> bool:
    """Return whether two copies have an equal `SAME`: then one of them can be shortened by the other."""
    return all(copy[name] == part[name] for name in SAME)


def with_head(text: bytes | bytearray, head: Head) -> dict[str, Any]:
    """Return a manifest as if it had no head. Raises ValueError if the head does not fit it."""
    found: dict[str, Any] = msgspec.json.decode(text)
    try:
        copies = found["partitions"]
        found["partitions"] = [completed(copy, part) for copy, part in zip(copies, head.parts, strict=True)]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{head.object} does not fit it") from error
    return found


def _shared(mine: list[Any], others: list[Any]) -> int:
    """Return how many values at the beginning of two lists are equal."""
    return next((n for n, (one, other) in enumerate(zip(mine, others, strict=False)) if one != other),
                min(len(mine), len(others)))  # fmt: skip


class Heads:
    """The heads at a place. Reads each one once, as long as not many others are read. Safe from several threads."""

    def __init__(self, target: ObjectReader) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._known: dict[NamedHead, Head] = {}

    def read(self, named: NamedHead) -> Head:
        """Return a head. Raises ValueError if it is missing, or not what the manifest says; BackupTargetError."""
        with self._lock:
            head = self._known.pop(named, None)
        if head is None:
            head = self._read(named)
        with self._lock:
            # The one that was used last is forgotten last.
            self._known[named] = head
            while len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
        return head

    def _read(self, named: NamedHead) -> Head:
        name = named.object
        if name != head_name(name.rpartition("/")[2].removesuffix(".json.gz")):
            raise ValueError(f"{shown(name)} is not the name of a head")
        content, most_bytes = bytearray(), LARGEST
        try:
            for chunk in self._target.read(name):
                content += chunk
                if len(content) > most_bytes:
                    raise ValueError(f"{name} is larger than {most_bytes:,} bytes")
        except FileNotFoundError:
            raise MissingHeadError(f"{name} is missing") from None
        except UnreadableError as error:
            raise ValueError(f"{name} cannot be read: {error}") from None
        if hashlib.sha256(content).hexdigest() != named.sha256:
            raise ValueError(f"{name} differs from what was stored")
        parts = _STORED.decode(unpacked([bytes(content)], LARGEST)).parts
        try:
            for part in parts:
                part["executions"] = [_execution(*values) for values in part["executions"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{name} is not a head") from error
        return Head(name, named.sha256, tuple(parts))


class MissingHeadError(ValueError):
    """A head is missing: it was lost, or was pruned with its manifests."""
