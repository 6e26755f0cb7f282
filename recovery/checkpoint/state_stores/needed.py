"""Which files of a state store are needed to load one of its versions: pure functions of names and sizes.

Micro-batch b leaves version b+1 of every store. A version is loaded from the newest *base* at or below it (a whole
snapshot of the store) and all *changes* after that base:

    state store                     base             changes
    HDFS-backed                     <v>.snapshot     <v>.delta
    RocksDB                         <v>.zip
    RocksDB with changelog          <v>.zip          <v>.changelog

A `.zip` names further files of the store, which versions share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from recovery.errors import SparkCheckpointError, UnsupportedPlanError

MAX_CHANGES = 64
"""The most changes after a base; beyond that a newer base is taken, whatever it costs."""

_VERSIONED = re.compile(r"(\d+)(_[^.]*)?\.(snapshot|zip|delta|changelog)")
_BASES = ("snapshot", "zip")


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """The names of the bases and changes in one store's directory, by version."""

    bases: Mapping[int, str]
    changes: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Chain:
    """The files that load one version: a base, None for the empty store, and the changes after it in order."""

    base: str | None
    changes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all files in the chain."""
        return self.changes if self.base is None else (self.base, *self.changes)


def store_files(names: Collection[str], directory: str = "") -> StoreFiles:
    """Return the bases and changes among a directory's names, ignoring other names.

    Raises UnsupportedPlanError for names with a unique id: only Spark's commit log has their order.
    """
    bases: dict[int, str] = {}
    changes: dict[int, str] = {}
    for name in names:
        match = _VERSIONED.fullmatch(name)
        if match is None:
            continue
        if match[2]:
            raise UnsupportedPlanError(
                f"{directory}/{name} is a file of checkpoint format 2 of Spark's state stores",
                cause="spark.sql.streaming.stateStore.checkpointFormatVersion is 2.",
                remedy="Leave that setting at 1, its default.",
            )
        (bases if match[3] in _BASES else changes)[int(match[1])] = name
    return StoreFiles(bases, changes)


def is_version(name: str) -> bool:
    """Return whether `name` is the name of a version of a store."""
    return _VERSIONED.fullmatch(name) is not None


def needed_chain(
    directory: str,
    present: StoreFiles,
    held: StoreFiles,
    version: int,
    cost: Callable[[str], int],
    gain: Callable[[str], int],
) -> Chain:
    """Return the chain to hold for `version`: the held chain, continued, or one from a newer base.

    A newer base is taken when it costs no more bytes (`cost`, of a base's name) than the changes that it replaces
    have (`gain`, of one change's name), so the bytes written over time stay proportional to the changes.
    Raises SparkCheckpointError naming the missing file when there is no chain.
    """
    known = StoreFiles({**held.bases, **present.bases}, {**held.changes, **present.changes})
    complete = list(_complete_chains(known, version))
    if not complete:
        raise _gap(directory, known, version)
    newest = complete[0]
    old_base = max((base for base in held.bases if base <= version), default=0)
    if newest.base is None or newest.base in held.bases.values() or not (held.bases or held.changes):
        return newest
    old = next((chain for chain in complete if chain.base == held.bases.get(old_base)), None)
    if old is None or len(old.changes) > MAX_CHANGES:
        return newest
    kept = set(newest.changes)
    return newest if cost(newest.base) <= sum(gain(name) for name in old.changes if name not in kept) else old


def _complete_chains(known: StoreFiles, version: int) -> Iterator[Chain]:
    """Yield the chains without a gap, the one from the newest base first."""
    changes: list[str] = []
    for number in range(version, -1, -1):
        if number == 0:
            yield Chain(None, tuple(reversed(changes)))
        elif number in known.bases:
            yield Chain(known.bases[number], tuple(reversed(changes)))
        if number not in known.changes:
            return
        changes.append(known.changes[number])


def _gap(directory: str, known: StoreFiles, version: int) -> SparkCheckpointError:
    missing = next(number for number in range(version, 0, -1) if number not in known.changes)
    kinds = {name.rpartition(".")[2] for name in known.changes.values()} | {
        name.rpartition(".")[2] for name in known.bases.values()
    }
    kind = "delta" if kinds & {"delta", "snapshot"} else "changelog" if "changelog" in kinds else "zip"
    return SparkCheckpointError(
        f"the state of version {version} cannot be loaded: {missing}.{kind} is missing, and there is no newer snapshot",
        path=f"{directory}/{missing}.{kind}",
    )
