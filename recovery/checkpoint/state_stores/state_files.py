"""Which files under `state/` a query with stateful operators of Spark's own needs to resume after a micro-batch.

    state/<operator>/<partition>/<version>.<kind>            one store; a join of two streams has several:
    state/<operator>/<partition>/<store>/<version>.<kind>
    state/<operator>/<partition>/SSTs/…, logs/…              files that the .zip files of a RocksDB store share
    state/<operator>/_metadata/…, _stateSchema/…             the layout of the state, without versions

Names with a leading dot are Spark's unfinished files and Hadoop's checksums; neither is needed.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import IO

from recovery.base.ids import BatchId
from recovery.base.untrusted_paths import checked_name
from recovery.checkpoint.home import CheckpointHome
from recovery.checkpoint.rows import HeldFile
from recovery.checkpoint.state_stores.needed import Chain, StoreFiles, is_version, needed_chain, store_files
from recovery.checkpoint.state_stores.operators import missing_store, operators_of
from recovery.errors import SparkCheckpointError, UnsupportedPlanError

SHARED = ("SSTs", "logs")
"""The directories of a RocksDB store whose files its .zip files name."""

KINDS = (("snapshot", "delta"), ("zip", "changelog"))
"""The suffixes of bases and changes, by kind of store."""

MOST_METADATA_BYTES = 64 << 20
"""The most bytes of a RocksDB snapshot's description of its files."""

MOST_PROBED = 200
"""The most versions after the held base to probe; for more, a listing is quicker."""

_SHARED_NAME = re.compile(rb'"dfs(Sst|Log)FileName"\s*:\s*"([^"/]+)"')
_BY_BATCH = re.compile(r"(\d+)(_.*)?")


@dataclass(frozen=True, slots=True)
class _Partition:
    """The directories below one partition of an operator: those of stores, and those of files without versions."""

    stores: tuple[str, ...]
    unversioned: tuple[str, ...]


@dataclass(slots=True)
class StateFiles:
    """The needed files of `state/`. What was looked up about a query's layout is kept."""

    home: CheckpointHome
    held: Mapping[str, HeldFile]
    _partitions: dict[str, _Partition] = field(default_factory=dict)
    _shared: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _described: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Spark may remove a held snapshot from the checkpoint at any time: look up the files that it names now.
        for path in self.held:
            if path.startswith("state/") and path.endswith(".zip") and is_version(path.rpartition("/")[2]):
                self._shared_files(path)

    def needed(self, batch: BatchId) -> set[str]:
        """Return the paths of the files that are needed to resume after `batch`.

        Raises FileNotFoundError when files vanish meanwhile, SparkCheckpointError when one is missing, and
        UnsupportedPlanError for an unsupported layout.
        """
        if self.home.shared:
            # A share may show what other hosts have made later than this look.
            self._partitions.clear()
        held = _by_directory(self.held)
        wanted: set[str] = set()
        for operator in self.home.listing("state")[0]:
            for name in self.home.listing(f"state/{operator}")[0]:
                directory = f"state/{operator}/{name}"
                found = self._partition(directory) if name.isdecimal() else _Partition((), (directory,))
                for store in found.stores:
                    wanted.update(self._store(store, held.pop(store, []), batch))
                for unversioned in found.unversioned:
                    wanted.update(_unversioned(self.home, unversioned, batch))
        if held:
            raise SparkCheckpointError("the directory that holds the state is missing", path=min(held))
        self._shared = {path: shared for path, shared in self._shared.items() if path in wanted}
        if self.home.shared:
            self._check_complete(wanted)
        return wanted

    def _check_complete(self, wanted: Collection[str]) -> None:
        """Raise SparkCheckpointError if a store is missing: an executor has written it to a disk of its own."""
        operators = operators_of(dict.fromkeys(wanted, 0), self._content)
        missing = missing_store(dict.fromkeys(wanted, 0), operators)
        if missing is not None:
            raise SparkCheckpointError(
                f"{missing} is missing, although Spark has finished the micro-batch",
                path=self.home.location,
                cause="An executor does not see this place as the driver does: on its host the share is not mounted, "
                "or the path is one of its own disk.",
                remedy="Name a place that all hosts reach under the same address, and run the same command again: it "
                "continues from the last closed epoch.",
            )

    def _content(self, path: str) -> bytes:
        if path not in self._described:
            with self.home.opened(path) as file:
                self._described[path] = file.read()
        return self._described[path]

    def _partition(self, directory: str) -> _Partition:
        if directory not in self._partitions:
            stores, unversioned = [directory], []
            for store in stores:
                for name in self.home.listing(store)[0]:
                    if name.startswith("_"):
                        unversioned.append(f"{store}/{name}")
                    elif name not in SHARED:
                        stores.append(f"{store}/{name}")
            self._partitions[directory] = _Partition(tuple(stores), tuple(unversioned))
        return self._partitions[directory]

    def _store(self, directory: str, held: list[str], batch: BatchId) -> Iterator[str]:
        known, version = store_files(held, directory), batch + 1
        try:
            chain = self._chain(directory, self._probe(directory, known, version), known, version)
        except SparkCheckpointError:
            names = self.home.listing(directory)[1]
            present = store_files(names, directory)
            if not present.bases and not present.changes and not held:
                _check_empty(directory, names)
                return
            chain = self._chain(directory, present, known, version)
        for name in chain.names:
            yield f"{directory}/{name}"
        if chain.base is not None and chain.base.endswith(".zip"):
            yield from self._shared_files(f"{directory}/{chain.base}")

    def _chain(self, directory: str, present: StoreFiles, held: StoreFiles, version: int) -> Chain:
        return needed_chain(
            directory,
            present,
            held,
            version,
            cost=lambda name: self._cost(f"{directory}/{name}"),
            gain=lambda name: self._size(f"{directory}/{name}"),
        )

    def _probe(self, directory: str, held: StoreFiles, version: int) -> StoreFiles:
        """Find newer files by testing their names: Spark keeps many old versions, which a listing would read."""
        names = {*held.bases.values(), *held.changes.values()}
        kinds = next((kinds for kinds in KINDS if any(name.endswith(kinds) for name in names)), None)
        base, newest = max(held.bases, default=0), max([0, *held.bases, *held.changes])
        if kinds is None or version - base > MOST_PROBED:
            return StoreFiles({}, {})
        bases = {number: f"{number}.{kinds[0]}" for number in range(base + 1, version + 1)}
        changes = {number: f"{number}.{kinds[1]}" for number in range(newest + 1, version + 1)}
        exists = self.home.exists
        return StoreFiles(
            {number: name for number, name in bases.items() if exists(f"{directory}/{name}")},
            {number: name for number, name in changes.items() if exists(f"{directory}/{name}")},
        )

    def _cost(self, base: str) -> int:
        """Return the bytes of a base and of the files that it names, except those that the partitions hold."""
        files = [base, *(self._shared_files(base) if base.endswith(".zip") else ())]
        return sum(self._size(path) for path in files if path not in self.held)

    def _size(self, path: str) -> int:
        held = self.held.get(path)
        return held.size_bytes if held is not None else self.home.mark(path)[0]

    def _shared_files(self, zip_path: str) -> tuple[str, ...]:
        """Return the further files of a RocksDB snapshot, from the description inside it."""
        if zip_path not in self._shared:
            with self.home.opened(zip_path) as file:
                self._shared[zip_path] = tuple(_named_in(file, zip_path))
        return self._shared[zip_path]


def _check_empty(directory: str, names: list[str]) -> None:
    """Raise UnsupportedPlanError if there are files: files without versions belong to another kind of state store."""
    if names:
        raise UnsupportedPlanError(
            f"{directory}/{min(names)} is not a file of one of Spark's own state stores",
            cause="spark.sql.streaming.stateStore.providerClass names another provider.",
            remedy="Use HDFSBackedStateStoreProvider, the default, or RocksDBStateStoreProvider.",
        )


def _unversioned(home: CheckpointHome, directory: str, batch: BatchId) -> Iterator[str]:
    """Yield all files below; of those numbered by micro-batch, only up to `batch`."""
    directories, files = home.listing(directory)
    for name in files:
        numbered = _BY_BATCH.fullmatch(name)
        if numbered is None or int(numbered[1]) <= batch:
            yield f"{directory}/{name}"
    for name in directories:
        yield from _unversioned(home, f"{directory}/{name}", batch)


def _by_directory(held: Mapping[str, HeldFile]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in held:
        directory, _, name = path.rpartition("/")
        if is_version(name) and path.startswith("state/"):
            found.setdefault(directory, []).append(name)
    return found


def _named_in(snapshot: IO[bytes], path: str) -> Iterator[str]:
    directory = path.rpartition("/")[0]
    try:
        with zipfile.ZipFile(snapshot) as archive, archive.open("metadata") as file:
            # A few kilobytes may decompress to terabytes.
            described = file.read(MOST_METADATA_BYTES + 1)
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise SparkCheckpointError(f"it is not a snapshot in the form that Spark writes: {error}", path=path) from error
    if len(described) > MOST_METADATA_BYTES:
        raise SparkCheckpointError(f"its description is longer than {MOST_METADATA_BYTES >> 20} MiB", path=path)
    for kind, encoded in _SHARED_NAME.findall(described):
        name = checked_name(encoded.decode(errors="surrogateescape"), partial(SparkCheckpointError, path=path))
        yield f"{directory}/{SHARED[0] if kind == b'Sst' else SHARED[1]}/{name}"
