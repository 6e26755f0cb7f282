"""What a backup says of itself: its manifest, the one file that makes it count.

A place for backups looks like this, whether it is a directory or a bucket:

manifests/<id>.json.gz                  one per finished backup, written last
objects/part-<i>/<id>.sqlite3.zst       copies of partitions; never changed, shared by the backups that list them
running/<id>.json.gz                    one per backup that is being made; see `recovery.backup.repository`

The id of a backup begins with its time, so ids sort by age. gzip's checksum and length show a half-written manifest.
Files of others may lie between them, in a bucket that is shared: what has no name of ours is not touched.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recovery.backup.target import DRAFT
from recovery.ids import BatchId, Epoch, ExecutionNumber, Lease, PartitionIndex
from recovery.planning.values import ClosedEpoch, Execution, PartitionDescription
from recovery.storage.digests import record_digest

FORMAT = 1
MANIFESTS = "manifests/"
OBJECTS = "objects/"
RUNNING = "running/"
SUFFIX = ".json.gz"
_ID = r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]+"
# The number is that of a further attempt; see `make_backup`.
_OURS = re.compile(rf"objects/part-\d+/{_ID}(\.\d+)?\.sqlite3\.zst|(manifests|running)/{_ID}\.json\.gz", re.ASCII)


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """One partition's copy in a backup.

    object_name: where its bytes lie. sha256, size_bytes: of the SQLite file; stored_bytes: of the object.
    fingerprint: equal for two copies of one partition that hold the same.
    """

    description: PartitionDescription
    object_name: str
    sha256: str
    size_bytes: int
    stored_bytes: int
    taken_ms: int
    fingerprint: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One finished backup: a copy of each partition."""

    id: str
    store_id: str
    started_ms: int
    finished_ms: int
    host: str
    version: str
    copies: tuple[StoredCopy, ...]

    @property
    def flow_id(self) -> str | None:
        """The flow that the store is bound to."""
        return next((c.description.flow_id for c in self.copies if c.description.flow_id is not None), None)


class OtherFormatError(ValueError):
    """A manifest that is whole, and that another version wrote."""


def backup_id(now_ms: int, random: str) -> str:
    """An id that sorts by time."""
    moment = datetime.fromtimestamp(now_ms / 1000, tz=UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{now_ms % 1000:03d}Z-{random}"


def manifest_name(identity: str) -> str:
    """Where a backup's manifest lies."""
    return f"{MANIFESTS}{identity}{SUFFIX}"


def object_name(identity: str, index: int) -> str:
    """Where a backup puts its copy of a partition; no other backup ever writes there."""
    return f"{OBJECTS}part-{index}/{identity}.sqlite3.zst"


def is_ours(name: str) -> bool:
    """Whether a name below the place is one that backups give, to an object or to its draft."""
    folder, slash, last = name.rpartition("/")
    if last.startswith(".") and last.endswith(DRAFT):
        last = last.removeprefix(".").removesuffix(DRAFT)
    return _OURS.fullmatch(folder + slash + last) is not None


def fingerprint(description: PartitionDescription, operational: tuple[int, int]) -> int:
    """A digest of everything that a change of the partition's content changes too.

    operational: rows and digest sum of operational state, which changes without any epoch.
    """
    d = description
    return record_digest(
        d.store_id, d.index, d.count, d.flow_id, d.collected,
        *operational,
        [[e.number, e.id] for e in d.executions],
        [[*e.cut, e.clock_ms, e.live_rows, e.live_digest, e.superseded_rows, e.superseded_digest] for e in d.epochs],
    )  # fmt: skip


def encode(manifest: Manifest) -> bytes:
    """The manifest as it is stored: JSON, compressed."""
    value = {
        "format": FORMAT,
        "id": manifest.id,
        "store_id": manifest.store_id,
        "flow_id": manifest.flow_id,
        "started_ms": manifest.started_ms,
        "finished_ms": manifest.finished_ms,
        "host": manifest.host,
        "version": manifest.version,
        "partitions": [_encode_copy(copy) for copy in manifest.copies],
    }
    return gzip.compress(json.dumps(value, ensure_ascii=False).encode(), mtime=0)


def decode(data: bytes, identity: str) -> Manifest:
    """The manifest of this id. Raises ValueError when it is half-written or not one that this version reads."""
    try:
        value = json.loads(gzip.decompress(data))
        if value["id"] != identity:
            raise ValueError(f"that of {value['id']!r}")
        if value["format"] != FORMAT:
            raise OtherFormatError(f"format {value['format']}")
        return Manifest(
            id=value["id"],
            store_id=value["store_id"],
            started_ms=value["started_ms"],
            finished_ms=value["finished_ms"],
            host=value["host"],
            version=value["version"],
            copies=tuple(
                _decode_copy(part, value["store_id"], len(value["partitions"])) for part in value["partitions"]
            ),
        )
    except OtherFormatError:
        raise
    except (EOFError, OSError, zlib.error, KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(f"not a manifest: {error or type(error).__name__}") from error


def _encode_copy(copy: StoredCopy) -> dict[str, Any]:
    d = copy.description
    return {
        "index": d.index,
        "object": copy.object_name,
        "sha256": copy.sha256,
        "size_bytes": copy.size_bytes,
        "stored_bytes": copy.stored_bytes,
        "taken_ms": copy.taken_ms,
        "fingerprint": copy.fingerprint,
        "flow_id": d.flow_id,
        "collected": d.collected,
        "executions": [
            [e.number, e.id, e.flow_id, e.resume_epoch, e.started_ms, e.snapshot_interval_s, e.backup_interval_s,
             e.host, e.pid, e.version]
            for e in d.executions
        ],
        # The sums that show an epoch whole stay in the copy: a list of random numbers would be most of the manifest.
        "epochs": [
            [e.epoch, e.execution.number, e.execution.id, e.batch_id, e.closed_ms, e.clock_ms, e.live_rows]
            for e in d.epochs
        ],
    }  # fmt: skip


def _decode_copy(part: dict[str, Any], store_id: str, count: int) -> StoredCopy:
    return StoredCopy(
        description=PartitionDescription(
            path=Path(f"part-{part['index']}.sqlite3"),
            index=PartitionIndex(int(part["index"])),
            count=count,
            store_id=store_id,
            flow_id=part["flow_id"],
            collected=Epoch(int(part["collected"])),
            executions=tuple(Execution(*fields) for fields in part["executions"]),
            epochs=tuple(_decode_epoch(*fields) for fields in part["epochs"]),
            size_bytes=int(part["size_bytes"]),
        ),
        object_name=part["object"],
        sha256=part["sha256"],
        size_bytes=int(part["size_bytes"]),
        stored_bytes=int(part["stored_bytes"]),
        taken_ms=int(part["taken_ms"]),
        fingerprint=int(part["fingerprint"]),
    )


def _decode_epoch(
    epoch: int, number: int, ex_id: str, batch: int, closed_ms: int, clock_ms: int, live_rows: int
) -> ClosedEpoch:
    return ClosedEpoch(
        epoch=Epoch(epoch),
        execution=Lease(ExecutionNumber(number), ex_id),
        batch_id=BatchId(batch),
        closed_ms=closed_ms,
        clock_ms=clock_ms,
        written=0,
        live_rows=live_rows,
        live_digest=0,
        superseded_rows=0,
        superseded_digest=0,
    )
