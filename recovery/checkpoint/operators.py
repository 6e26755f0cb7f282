"""Which native stateful operators a checkpoint holds state of: from the names and sizes of its files.

An operator's name stands in a file of its own, `state/<operator>/_metadata/metadata`, or in `…/_metadata/v2/<batch>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from recovery.checkpoint.needed import is_version

_FILE = re.compile(r"state/(\d+)/(?:(\d+)/)?(.+)")
_METADATA = re.compile(r"state/(\d+)/_metadata/(?:metadata|v2/(\d+))")


@dataclass(frozen=True, slots=True)
class NativeOperator:
    """One stateful operator of Spark's own.

    number: as Spark counts them in the plan. name: Spark's name for its kind, "" when the checkpoint does not say.
    stores: the names of its state stores, "default" where it has but one. partitions: how many it was divided into.
    oldest_version, newest_version: of the versioned files; micro-batch b leaves version b+1.
    """

    number: int
    name: str
    stores: tuple[str, ...]
    partitions: int
    files: int
    size_bytes: int
    oldest_version: int | None
    newest_version: int | None

    def as_json(self) -> dict[str, Any]:
        """The same for a program."""
        return {
            "operator": self.number,
            "name": self.name,
            "stores": list(self.stores),
            "partitions": self.partitions,
            "files": self.files,
            "bytes": self.size_bytes,
            "oldest_version": self.oldest_version,
            "newest_version": self.newest_version,
        }


@dataclass(slots=True)
class _Counted:
    partitions: set[int] = field(default_factory=set)
    stores: set[str] = field(default_factory=set)
    versions: set[int] = field(default_factory=set)
    files: int = 0
    size_bytes: int = 0
    metadata: tuple[int, str] | None = None


def operators_of(sizes: Mapping[str, int], read: Callable[[str], str | bytes]) -> tuple[NativeOperator, ...]:
    """The operators in a checkpoint whose files have these sizes, by their number. `read` gives a file's content, and
    is asked for one small file of each operator."""
    counted: dict[int, _Counted] = {}
    for path, size in sizes.items():
        found = _FILE.fullmatch(path)
        if found is None:
            continue
        operator = counted.setdefault(int(found[1]), _Counted())
        operator.files += 1
        operator.size_bytes += size
        metadata = _METADATA.fullmatch(path)
        if metadata is not None:
            operator.metadata = max(operator.metadata or (-1, ""), (int(metadata[2] or -1), path))
        if found[2] is not None:
            operator.partitions.add(int(found[2]))
            store, _, name = found[3].rpartition("/")
            if is_version(name):
                operator.stores.add(store or "default")
                operator.versions.add(int(re.split(r"[._]", name)[0]))
    return tuple(_operator(number, counted[number], read) for number in sorted(counted))


def _operator(number: int, counted: _Counted, read: Callable[[str], str | bytes]) -> NativeOperator:
    name, stores, partitions = "", tuple(sorted(counted.stores)), len(counted.partitions)
    if counted.metadata is not None:
        name, declared, partitions = _described(read(counted.metadata[1]), partitions)
        # Several stores may share the files of one.
        stores = declared or stores
    return NativeOperator(
        number=number,
        name=name,
        stores=stores,
        partitions=partitions,
        files=counted.files,
        size_bytes=counted.size_bytes,
        oldest_version=min(counted.versions, default=None),
        newest_version=max(counted.versions, default=None),
    )


def _described(content: str | bytes, partitions: int) -> tuple[str, tuple[str, ...], int]:
    """The name, the stores and the partitions, from a file whose first line is a version and whose second is JSON."""
    lines = (content.decode(errors="replace") if isinstance(content, bytes) else content).splitlines()
    try:
        described = msgspec.json.decode(lines[1])
        stores = described["stateStoreInfo"]
        names = tuple(str(store["storeName"]) for store in stores)
        count = max((int(store["numPartitions"]) for store in stores), default=partitions)
        return str(described["operatorInfo"]["operatorName"]), names, count
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        return "", (), partitions
