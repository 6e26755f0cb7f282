"""Which of Spark's own stateful operators have state in a checkpoint, by the names and sizes of its files.

An operator's name is in a file of its own, `state/<operator>/_metadata/metadata`, or in `…/_metadata/v2/<batch>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from recovery.checkpoint.state_stores.needed import is_version

_FILE = re.compile(r"state/(\d+)/(?:(\d+)/)?(.+)")
TIMERS = "TimerState"
"""Spark lists an operator's timers as an additional variable of this type."""

MOST_PARTITIONS = 1_000_000
_METADATA = re.compile(r"state/(\d+)/_metadata/(?:metadata|v2/(\d+))")


@dataclass(frozen=True, slots=True)
class StatefulOperator:
    """One of Spark's own stateful operators.

    number: Spark's number for it in the plan. name: Spark's name for its kind; "" when the checkpoint has none.
    stores: the names of its state stores, "default" if it has only one. partitions: the number of its partitions.
    variables, timers: of transformWithState, the names of its state variables, and whether it may register timers.
    oldest_version, newest_version: of the versioned files; micro-batch b leaves version b+1.
    """

    number: int
    name: str
    stores: tuple[str, ...]
    variables: tuple[str, ...]
    timers: bool
    partitions: int
    files: int
    size_bytes: int
    oldest_version: int | None
    newest_version: int | None

    def as_json(self) -> dict[str, Any]:
        """Return the operator as JSON values."""
        return {
            "operator": self.number,
            "name": self.name,
            "stores": list(self.stores),
            "variables": list(self.variables),
            "timers": self.timers,
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


def operators_of(sizes: Mapping[str, int], read: Callable[[str], str | bytes]) -> tuple[StatefulOperator, ...]:
    """Return the operators in a checkpoint whose files have these sizes, by their number. `read` returns a file's
    content; `read` is called for one small file of each operator."""
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


def missing_store(sizes: Mapping[str, int], operators: Sequence[StatefulOperator]) -> str | None:
    """Return the directory of a store that is missing from the files; None when all are present.

    Spark writes every store of every partition in every micro-batch, even an empty one.
    """
    found: dict[int, set[tuple[int, str]]] = {}
    for path in sizes:
        match = _FILE.fullmatch(path)
        if match is not None and match[2] is not None:
            store, _, name = match[3].rpartition("/")
            if is_version(name):
                found.setdefault(int(match[1]), set()).add((int(match[2]), store))
    for operator in operators:
        present = found.get(operator.number, set())
        stores = sorted({store for _, store in present}) or [""]
        for partition in range(operator.partitions):
            for store in stores:
                if (partition, store) not in present:
                    return f"state/{operator.number}/{partition}/{store}".rstrip("/")
    return None


def _operator(number: int, counted: _Counted, read: Callable[[str], str | bytes]) -> StatefulOperator:
    described = _Described("", (), len(counted.partitions), (), False)
    if counted.metadata is not None:
        described = _described(read(counted.metadata[1])) or described
    return StatefulOperator(
        number=number,
        name=described.name,
        # Several stores may share the files of one.
        stores=described.stores or tuple(sorted(counted.stores)),
        variables=described.variables,
        timers=described.timers,
        partitions=described.partitions,
        files=counted.files,
        size_bytes=counted.size_bytes,
        oldest_version=min(counted.versions, default=None),
        newest_version=max(counted.versions, default=None),
    )


class _Described(NamedTuple):
    name: str
    stores: tuple[str, ...]
    partitions: int
    variables: tuple[str, ...]
    timers: bool


def _partitions(stores: Sequence[Mapping[str, Any]]) -> int:
    """Return an operator's number of partitions. Raises ValueError for more than Spark could start tasks for."""
    found = max(int(store["numPartitions"]) for store in stores)
    if not 0 <= found <= MOST_PARTITIONS:
        raise ValueError(f"{found} partitions")
    return found


def _described(content: str | bytes) -> _Described | None:
    """Parse an operator's own file: its first line is a version, its second JSON. None: the file has another form."""
    lines = (content.decode(errors="replace") if isinstance(content, bytes) else content).splitlines()
    try:
        described = msgspec.json.decode(lines[1])
        stores = described["stateStoreInfo"]
        properties = msgspec.json.decode(described.get("operatorPropertiesJson") or "{}")
        kinds = {str(each["stateName"]): each.get("stateVariableType") for each in properties.get("stateVariables", ())}
        return _Described(
            str(described["operatorInfo"]["operatorName"]),
            tuple(str(store["storeName"]) for store in stores),
            _partitions(stores),
            tuple(name for name, kind in kinds.items() if kind != TIMERS),
            TIMERS in kinds.values(),
        )
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError):
        return None
