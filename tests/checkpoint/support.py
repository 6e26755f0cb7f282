"""A checkpoint as Spark leaves it, written by hand: enough of it for what decides by names and sizes."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path


def write(checkpoint: Path, path: str, content: bytes | str = b"") -> None:
    """One file."""
    file = checkpoint / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)


def log(checkpoint: Path, batch: int) -> None:
    """A micro-batch of the rate source, logged as done; the source has logged the next one already."""
    if not (checkpoint / "metadata").exists():
        write(checkpoint, "metadata", '{"id":"x"}')
    write(checkpoint, f"offsets/{batch}", f"v1\n{{}}\n{batch}")
    write(checkpoint, f"commits/{batch}", "v1\n{}")
    write(checkpoint, f"sources/0/{batch}", "0")
    write(checkpoint, f"sources/0/{batch + 1}", "0")


def snapshot_zip(sst: tuple[str, ...] = (), logs: tuple[str, ...] = ()) -> bytes:
    """A RocksDB snapshot that names shared files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        described = {
            "sstFiles": [{"localFileName": "1.sst", "dfsSstFileName": name, "sizeBytes": 1} for name in sst],
            "logFiles": [{"localFileName": "1.log", "dfsLogFileName": name, "sizeBytes": 1} for name in logs],
            "numKeys": 1,
        }
        archive.writestr("CURRENT", "MANIFEST-1")
        archive.writestr("metadata", f"v1\n{json.dumps(described)}")
    return buffer.getvalue()


def files(directory: Path) -> dict[str, bytes]:
    """Every file below, by path."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }
