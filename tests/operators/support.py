"""A checkpoint of a job with one stateful operator, as Spark leaves it, written by hand."""

from __future__ import annotations

import json
from pathlib import Path

from recovery.checkpoint.directories import LocalCheckpoint
from tests.checkpoint.support import files, write

OPERATOR = {
    "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
    "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}],
}
IMPORT_POINTS = [
    "start.3.partition", "close.2.checked", "close.2.snaps", "close.2.driver", "close.2.epochs", "close.2.collected",
    "close.2.committed", "close.3", "close.4",
]  # fmt: skip
"""The crash points that an import passes once it writes."""


def write_job(checkpoint: Path, batch: int, begun: bool = True) -> None:
    """A job whose micro-batches up to `batch` are done; `begun`: it died within the next one."""
    write(checkpoint, "metadata", '{"id":"x"}')
    write(checkpoint, "state/0/_metadata/metadata", f"v1\n{json.dumps(OPERATOR)}")
    for number in range(batch + 1 + begun):
        write(checkpoint, f"offsets/{number}", f'v1\n{{}}\n{{"logOffset":{number}}}')
        write(checkpoint, f"sources/0/{number}", f"v1\nfile {number}")
        write(checkpoint, f"state/0/0/{number + 1}.delta", b"\0" * (number + 1))
        write(checkpoint, f"state/0/1/{number + 1}.delta", b"\1" * (number + 1))
        if number <= batch:
            write(checkpoint, f"commits/{number}", f'v1\n{{"nextBatchWatermarkMs":{number}}}')
    # What Spark and Hadoop keep for themselves.
    write(checkpoint, "offsets/.0.crc", b"crc")
    write(checkpoint, "state/0/0/.9.delta.7f.tmp", b"half")


def job(batch: int) -> dict[str, bytes]:
    """The files that an export of such a job as of `batch` has, with their content."""
    found = {
        "metadata": b'{"id":"x"}',
        "state/0/_metadata/metadata": f"v1\n{json.dumps(OPERATOR)}".encode(),
        f"offsets/{batch}": f'v1\n{{}}\n{{"logOffset":{batch}}}'.encode(),
        # Spark asks for it, but not what is in it.
        f"offsets/{batch - 1}": f'v1\n{{}}\n{{"logOffset":{batch}}}'.encode(),
        f"commits/{batch}": f'v1\n{{"nextBatchWatermarkMs":{batch}}}'.encode(),
    }
    for number in range(batch + 1):
        found[f"sources/0/{number}"] = f"v1\nfile {number}".encode()
        found[f"state/0/0/{number + 1}.delta"] = b"\0" * (number + 1)
        found[f"state/0/1/{number + 1}.delta"] = b"\1" * (number + 1)
    return found


def held(directory: Path) -> dict[str, bytes]:
    """Every file of a checkpoint, without the hidden ones."""
    return {path: content for path, content in files(directory).items() if "/." not in f"/{path}"}


def place(path: Path) -> LocalCheckpoint:
    """A directory of this machine."""
    return LocalCheckpoint(path, lambda: "test")
