"""Which files under `state/` a query with native stateful operators needs to go on after a micro-batch.

    state/<operator>/<partition>/<version>.<kind>            one store; a join of two streams has several:
    state/<operator>/<partition>/<store>/<version>.<kind>
    state/<operator>/<partition>/SSTs/…, logs/…              what the .zip files of a RocksDB store share
    state/<operator>/_metadata/…, _stateSchema/…             how the state is laid out, without versions

Names with a leading dot are Spark's unfinished files and Hadoop's checksums; neither is needed.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from recovery.checkpoint.needed import is_version, needed_chain, store_files
from recovery.checkpoint.rows import HeldFile
from recovery.errors import SparkCheckpointError
from recovery.ids import BatchId

SHARED = ("SSTs", "logs")
"""Directories of a RocksDB store whose files are named in its .zip files."""

_SHARED_NAME = re.compile(rb'"dfs(Sst|Log)FileName"\s*:\s*"([^"/]+)"')
_BY_BATCH = re.compile(r"(\d+)(_.*)?")


@dataclass(slots=True)
class StateFiles:
    """What is needed of `state/`, and how much of it is read from the checkpoint to find out."""

    checkpoint: Path
    held: Mapping[str, HeldFile]
    _shared: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def needed(self, batch: BatchId) -> set[str]:
        """The paths of the files that are needed to go on after `batch`.

        Raises FileNotFoundError when files vanish meanwhile, SparkCheckpointError when one is missing, and
        UnsupportedPlanError for a layout that cannot be taken.
        """
        held = _by_directory(self.held)
        wanted: set[str] = set()
        for directory, names in _stores(self.checkpoint):
            if names is None:
                wanted.update(_unversioned(self.checkpoint, directory, batch))
            else:
                wanted.update(self._store(directory, names, held.get(directory, []), batch))
        self._shared = {path: shared for path, shared in self._shared.items() if path in wanted}
        return wanted

    def _store(self, directory: str, names: list[str], held: list[str], batch: BatchId) -> Iterator[str]:
        version = batch + 1
        present = store_files(names, directory)
        if not present.bases and not present.changes and not held:
            return
        chain = needed_chain(
            directory,
            present,
            store_files(held, directory),
            version,
            cost=lambda name: self._cost(f"{directory}/{name}"),
            gain=lambda name: self._size(f"{directory}/{name}"),
        )
        for name in chain.names:
            yield f"{directory}/{name}"
        if chain.base is not None and chain.base.endswith(".zip"):
            yield from self._shared_files(f"{directory}/{chain.base}")

    def _cost(self, base: str) -> int:
        """The bytes that the partitions do not hold yet of a base and what it names."""
        files = [base, *(self._shared_files(base) if base.endswith(".zip") else ())]
        return sum(self._size(path) for path in files if path not in self.held)

    def _size(self, path: str) -> int:
        held = self.held.get(path)
        return held.size_bytes if held is not None else (self.checkpoint / path).stat().st_size

    def _shared_files(self, zip_path: str) -> tuple[str, ...]:
        """The further files of a RocksDB snapshot, from the description of its own that lies in it."""
        if zip_path not in self._shared:
            self._shared[zip_path] = tuple(_named_in(self.checkpoint / zip_path, zip_path.rpartition("/")[0]))
        return self._shared[zip_path]


def _stores(checkpoint: Path) -> Iterator[tuple[str, list[str] | None]]:
    """Every directory of a store with the names in it; those without versions with None."""
    for operator, directories, _ in _listing(checkpoint, "state"):
        for name in directories if operator == "state" else ():
            yield from _operator(checkpoint, f"state/{name}")


def _operator(checkpoint: Path, operator: str) -> Iterator[tuple[str, list[str] | None]]:
    for _, directories, _ in _listing(checkpoint, operator):
        for name in directories:
            if name.isdecimal():
                yield from _partition(checkpoint, f"{operator}/{name}")
            else:
                yield f"{operator}/{name}", None


def _partition(checkpoint: Path, directory: str) -> Iterator[tuple[str, list[str] | None]]:
    for _, directories, files in _listing(checkpoint, directory):
        yield directory, files
        for name in directories:
            if name.startswith("_"):
                yield f"{directory}/{name}", None
            elif name not in SHARED:
                yield from _partition(checkpoint, f"{directory}/{name}")


def _listing(checkpoint: Path, directory: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """The directories and the files of one directory, without hidden ones; nothing when there is no such directory."""
    try:
        with os.scandir(checkpoint / directory) as found:
            directories: list[str] = []
            files: list[str] = []
            for entry in found:
                if not entry.name.startswith("."):
                    (directories if entry.is_dir() else files).append(entry.name)
    except FileNotFoundError:
        return
    yield directory, directories, files


def _unversioned(checkpoint: Path, directory: str, batch: BatchId) -> Iterator[str]:
    """Everything below; what is numbered by micro-batch up to this one."""
    for _, directories, files in _listing(checkpoint, directory):
        for name in files:
            numbered = _BY_BATCH.fullmatch(name)
            if numbered is None or int(numbered[1]) <= batch:
                yield f"{directory}/{name}"
        for name in directories:
            yield from _unversioned(checkpoint, f"{directory}/{name}", batch)


def _by_directory(held: Mapping[str, HeldFile]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in held:
        directory, _, name = path.rpartition("/")
        if is_version(name) and path.startswith("state/"):
            found.setdefault(directory, []).append(name)
    return found


def _named_in(path: Path, directory: str) -> Iterator[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            described = archive.read("metadata")
    except (zipfile.BadZipFile, KeyError) as error:
        raise SparkCheckpointError(f"it is not a snapshot as Spark writes them: {error}", path=path) from error
    for kind, name in _SHARED_NAME.findall(described):
        yield f"{directory}/{SHARED[0] if kind == b'Sst' else SHARED[1]}/{name.decode()}"
