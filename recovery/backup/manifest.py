"""The manifest of a backup: the one file that makes the backup count.

A place for backups, a directory or a bucket, has this layout:

manifests/<id>.json.gz                  one per finished backup, written last
objects/part-<i>/<id>.sqlite3.zst       copies of partitions; never changed, shared by the backups that list them
objects/part-<i>/<id>.changes.zst       what changed since earlier backups; the same
running/<id>.json.gz                    one per backup that is being made; see `recovery.backup.repository`

The id of a backup begins with its time, so ids sort by age. gzip's checksum and length show a half-written manifest.
In a shared bucket other programs' files may lie in between: files without a name that backups give are not touched.

A copy is an object of its own, or a chain: a whole copy, and the changes files that lead from it to this backup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from recovery.backup.heads import LARGEST, Head, Heads, MissingHeadError, NamedHead, with_head, without_head
from recovery.backup.stored import StoredChanges, StoredCopy
from recovery.base.clock import LATEST_MS
from recovery.base.ids import BatchId, Epoch, ExecutionNumber, Lease, PartitionIndex
from recovery.errors import shown
from recovery.places.frames import LARGEST_INDEX
from recovery.places.packed import packed, unpacked
from recovery.places.protocol import DRAFT
from recovery.planning.chains import LONGEST
from recovery.planning.held import is_without_gap
from recovery.planning.values import ClosedEpoch, Execution, PartitionDescription
from recovery.storage.copies import Marks
from recovery.storage.sqlite.digests import record_digest

FORMAT = 3
OF_WHOLE_COPIES = 1
"""The format of a manifest of whole copies, which list all epochs: older programs restore them."""
MANIFESTS = "manifests/"
OBJECTS = "objects/"
RUNNING = "running/"
SUFFIX = ".json.gz"
_ID = r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]+"
# The number counts further attempts; see `make_backup`.
_OBJECT = re.compile(rf"objects/part-\d+/{_ID}(\.\d+)?\.(sqlite3|changes)\.zst", re.ASCII)
_OURS = re.compile(rf"{_OBJECT.pattern}|objects/heads/{_ID}\.json\.gz|(manifests|running)/{_ID}\.json\.gz", re.ASCII)

# The types to read a manifest as. It comes from outside, so every field has a type and bounds.
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Signed = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Millis = Annotated[int, msgspec.Meta(ge=0, le=LATEST_MS)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Name = Annotated[str, msgspec.Meta(max_length=65_536)]


class _Epoch(msgspec.Struct, array_like=True, frozen=True):
    epoch: _Count
    number: _Count
    id: _Name
    batch_id: _Signed
    closed_ms: _Millis
    clock_ms: _Signed
    live_rows: _Count


class _Execution(msgspec.Struct, array_like=True, frozen=True):
    number: _Count
    id: _Name
    flow_id: _Name
    resume_epoch: _Count
    started_ms: _Millis
    snapshot_interval_s: _Seconds
    backup_interval_s: _Seconds
    host: _Name
    pid: _Signed
    version: _Name


class _Changes(msgspec.Struct, frozen=True):
    object: _Name
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    size_bytes: _Count
    stored_bytes: _Count
    links: Annotated[int, msgspec.Meta(ge=1, le=LONGEST)]


class StoredPartition(msgspec.Struct, frozen=True):
    index: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
    object: _Name
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    size_bytes: _Count
    stored_bytes: _Count
    taken_ms: _Millis
    fingerprint: _Signed
    flow_id: _Name | None
    collected: _Count
    executions: list[_Execution]
    epochs: list[_Epoch]
    changes: list[_Changes] = []
    partition_bytes: _Count | None = None
    states: _Count = 0
    states_digest: _Count = 0
    measure: _Count = 0
    index_bytes: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_INDEX)] = 0
    index_sha256: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")] = ""
    unlisted: _Count = 0


class _Format(msgspec.Struct, frozen=True):
    id: _Name
    format: _Count


class _ManifestHead(_Format, frozen=True):
    head: NamedHead | None = None


class _Manifest(_Format, frozen=True):
    store_id: _Name
    started_ms: _Millis
    finished_ms: _Millis
    host: _Name
    version: _Name
    partitions: Annotated[list[StoredPartition], msgspec.Meta(min_length=1)]
    term: _Count = 0


class Maker(msgspec.Struct, frozen=True):
    """The process that makes a backup by itself, without owners on other hosts: see `recovery.host.processes`."""

    pid: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
    host: _Name
    process: _Name
    purpose: _Name


class Announced(msgspec.Struct, frozen=True):
    """A note under `running/`: the names of the objects that the backup may list again, and who makes it; None: an
    older version does, or several processes."""

    needs: list[_Name]
    maker: Maker | None = None


_FORMAT = msgspec.json.Decoder(_ManifestHead)
_MANIFEST = msgspec.json.Decoder(_Manifest)
_RUNNING = msgspec.json.Decoder(Announced)

# Thousands of manifests list much the same: one object for each value keeps a listing of them small.
_changes = lru_cache(maxsize=1 << 14)(StoredChanges)
_execution = lru_cache(maxsize=1 << 14)(Execution)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One finished backup: a copy of each partition. term: of the writer that made it, or of the place then; 0: no
    writer had claimed one, or an older version made it. head: what the manifest leaves to another object (see
    `recovery.backup.heads`); None: nothing."""

    id: str
    store_id: str
    started_ms: int
    finished_ms: int
    host: str
    version: str
    copies: tuple[StoredCopy, ...]
    term: int = 0
    head: Head | None = None

    @property
    def objects(self) -> tuple[str, ...]:
        """The names of all objects that a restore reads."""
        head = () if self.head is None else (self.head.object,)
        return (*head, *(name for copy in self.copies for name, _ in copy.objects))

    @property
    def epoch(self) -> Epoch:
        """The newest epoch that all copies hold; they are of one moment, and so of one timeline."""
        return min(copy.description.newest_epoch for copy in self.copies)

    @property
    def execution(self) -> int:
        """The number of the execution that closed `epoch`; 0: no epoch is closed."""
        closed = min(self.copies, key=lambda copy: copy.description.newest_epoch).description.newest
        return 0 if closed is None else closed.execution.number

    @property
    def flow_id(self) -> str | None:
        """The flow that the store is bound to."""
        return next((c.description.flow_id for c in self.copies if c.description.flow_id is not None), None)


class OtherFormatError(ValueError):
    """A whole manifest that another version wrote."""


def backup_id(now_ms: int, random: str) -> str:
    """Return an id that sorts by time."""
    moment = datetime.fromtimestamp(now_ms / 1000, tz=UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{now_ms % 1000:03d}Z-{random}"


def manifest_name(identity: str) -> str:
    """Return the name of a backup's manifest."""
    return f"{MANIFESTS}{identity}{SUFFIX}"


def object_name(identity: str, index: int, kind: Literal["sqlite3", "changes"] = "sqlite3") -> str:
    """Return the name of a backup's copy of a partition, or of its changes; no other backup writes that name."""
    return f"{OBJECTS}part-{index}/{identity}.{kind}.zst"


def is_ours(name: str) -> bool:
    """Whether backups give this name, below the place, to an object or to its draft."""
    folder, slash, last = name.rpartition("/")
    if last.startswith(".") and last.endswith(DRAFT):
        last = last.removeprefix(".").removesuffix(DRAFT)
    return _OURS.fullmatch(folder + slash + last) is not None


def fingerprint_until_2(description: PartitionDescription, operational: tuple[int, int]) -> int:
    """Return the digest of a partition's content that manifests up to format 2 have as its fingerprint.

    operational: rows and digest sum of operational state, which changes without an epoch.
    """
    d = description
    return record_digest(
        d.store_id, d.index, d.count, d.flow_id, d.collected,
        *operational,
        [[e.number, e.id] for e in d.executions],
        [[*e.cut, e.clock_ms, e.live_rows, e.live_digest, e.superseded_rows, e.superseded_digest] for e in d.epochs],
    )  # fmt: skip


def encode(manifest: Manifest) -> bytes:
    """Return the manifest in its stored form: compressed JSON."""
    value = {
        "format": FORMAT if any(copy.changes for copy in manifest.copies) else OF_WHOLE_COPIES,
        "id": manifest.id,
        "store_id": manifest.store_id,
        "flow_id": manifest.flow_id,
        "started_ms": manifest.started_ms,
        "finished_ms": manifest.finished_ms,
        "host": manifest.host,
        "version": manifest.version,
        "term": manifest.term,
        **without_head([encode_copy(copy) for copy in manifest.copies], manifest.head),
    }
    return packed(json.dumps(value, ensure_ascii=False).encode())


def decode(chunks: Iterable[bytes], identity: str, heads: Heads) -> Manifest:
    """Return the manifest of this id. heads: those at its place. Raises ValueError if the manifest is half-written, its
    head is not what it was, or this version cannot read it; BackupTargetError."""
    try:
        text = unpacked(chunks, LARGEST)
        stored = _FORMAT.decode(text)
        if stored.id != identity:
            raise ValueError(f"that of {shown(stored.id)}")
        if stored.format > FORMAT:
            raise OtherFormatError(f"format {stored.format}")
        head = None if stored.head is None else heads.read(stored.head)
        found = _MANIFEST.decode(text) if head is None else msgspec.convert(with_head(text, head), _Manifest)
        if sorted(part.index for part in found.partitions) != list(range(len(found.partitions))):
            raise ValueError("it does not list every partition exactly once")
        return Manifest(
            id=found.id,
            store_id=found.store_id,
            started_ms=found.started_ms,
            finished_ms=found.finished_ms,
            host=found.host,
            version=found.version,
            copies=tuple(decode_copy(part, found.store_id, len(found.partitions)) for part in found.partitions),
            term=found.term,
            head=head,
        )
    except (OtherFormatError, MissingHeadError):
        raise
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ValueError(f"not a manifest: {error or type(error).__name__}") from error


def decode_announced(chunks: Iterable[bytes]) -> Announced:
    """Return what a note under `running/` says. Raises ValueError if the object is half-written or not a note."""
    try:
        return _RUNNING.decode(unpacked(chunks, LARGEST))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"no note of a running backup: {error}") from error


def encode_copy(copy: StoredCopy) -> dict[str, Any]:
    """Return a copy as a manifest lists it."""
    d = copy.description
    return {
        "index": d.index,
        "object": copy.object_name,
        "sha256": copy.sha256,
        "size_bytes": copy.size_bytes,
        "stored_bytes": copy.stored_bytes,
        "taken_ms": copy.taken_ms,
        "fingerprint": copy.fingerprint,
        "changes": [
            {"object": c.object_name, "sha256": c.sha256, "size_bytes": c.size_bytes, "stored_bytes": c.stored_bytes,
             "links": c.links}
            for c in copy.changes
        ],
        "partition_bytes": d.size_bytes,
        "states": copy.marks.operational[0],
        "states_digest": copy.marks.operational[1],
        "measure": copy.marks.measure,
        "index_bytes": copy.index_bytes,
        "index_sha256": copy.index_sha256,
        "flow_id": d.flow_id,
        "collected": d.collected,
        "executions": [
            (e.number, e.id, e.flow_id, e.resume_epoch, e.started_ms, e.snapshot_interval_s, e.backup_interval_s,
             e.host, e.pid, e.version)
            for e in d.executions
        ],
        "unlisted": d.unlisted,
        # The sums that show an epoch whole stay in the copy: as random numbers they would be most of the manifest.
        "epochs": [
            [e.epoch, e.execution.number, e.execution.id, e.batch_id, e.closed_ms, e.clock_ms, e.live_rows]
            for e in d.epochs
        ],
    }  # fmt: skip


def decode_copy(part: StoredPartition, store_id: str, count: int) -> StoredCopy:
    """Return what a manifest lists. Raises ValueError."""
    _check_object(part.object, part.index, "sqlite3")
    for each in part.changes:
        _check_object(each.object, part.index, "changes")
    numbers = [each.epoch for each in part.epochs]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        raise ValueError(f"the epochs of partition {part.index} are not in order")
    description = PartitionDescription(
        path=Path(f"part-{part.index}.sqlite3"),
        index=PartitionIndex(part.index),
        count=count,
        store_id=store_id,
        flow_id=part.flow_id,
        collected=Epoch(part.collected),
        executions=tuple(
            _execution(
                ExecutionNumber(e.number),
                e.id,
                e.flow_id,
                Epoch(e.resume_epoch),
                e.started_ms,
                e.snapshot_interval_s,
                e.backup_interval_s,
                e.host,
                e.pid,
                e.version,
            )
            for e in part.executions
        ),
        epochs=tuple(map(_decode_epoch, part.epochs)),
        size_bytes=part.size_bytes if part.partition_bytes is None else part.partition_bytes,
        unlisted=part.unlisted,
    )
    if part.unlisted and (not part.epochs or not is_without_gap(description)):
        raise ValueError(f"the epochs of partition {part.index} that it does not list cannot be known")
    return StoredCopy(
        description=description,
        object_name=part.object,
        sha256=part.sha256,
        size_bytes=part.size_bytes,
        stored_bytes=part.stored_bytes,
        taken_ms=part.taken_ms,
        fingerprint=part.fingerprint,
        changes=tuple(_changes(c.object, c.sha256, c.size_bytes, c.stored_bytes, c.links) for c in part.changes),
        marks=Marks((part.states, part.states_digest), part.measure),
        index_bytes=part.index_bytes,
        index_sha256=part.index_sha256,
    )  # fmt: skip


def _check_object(name: str, index: int, kind: str) -> None:
    """Raises ValueError if `name` is not the name of an object of this kind and partition."""
    if _OBJECT.fullmatch(name) is None or not name.startswith(f"{OBJECTS}part-{index}/") or f".{kind}." not in name:
        raise ValueError(f"{shown(name)} is not an object of partition {index}")


def _decode_epoch(found: _Epoch) -> ClosedEpoch:
    return ClosedEpoch(
        epoch=Epoch(found.epoch),
        execution=Lease(ExecutionNumber(found.number), found.id),
        batch_id=BatchId(found.batch_id),
        closed_ms=found.closed_ms,
        clock_ms=found.clock_ms,
        written=0,
        live_rows=found.live_rows,
        live_digest=0,
        superseded_rows=0,
        superseded_digest=0,
    )
