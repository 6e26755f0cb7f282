"""Partitions that come to a directory from another owner: staged in blocks, checked, and put into place.

A hidden directory for each move has the files until they are in place. Whatever a killed move leaves there does not
count, and is removed when the service starts, or when another move comes and nothing has changed there for long.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from recovery.base.faults import reach
from recovery.base.printable import one_line
from recovery.errors import NoPartitionsError, StorageError
from recovery.host.durable import PRIVATE, create, modes_beside, sync
from recovery.planning.health import format_bytes
from recovery.planning.moves import check_arrival
from recovery.storage.moving.blocks import BLOCK_BYTES, blocks, digest_of, digests, plain
from recovery.storage.moving.departed import remove_note
from recovery.storage.scan import scan
from recovery.storage.sqlite.describe import describe
from recovery.storage.sqlite.file.log_files import ENDS
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.sqlite.file.statements import translated
from recovery.storage.standby import refuse_standby

STAGING = ".move-"
PART = re.compile(r"part-[0-9]{1,9}\.sqlite3")
MOVE_ID = re.compile(r"[0-9a-f]{16}")
LEFT_S = 3600.0
"""How long the staging directory of another move is left alone after its last change."""


def begin(directory: Path, move_id: str, sizes: Mapping[str, int], now_ms: int) -> None:
    """Make room for the partitions of a move. sizes: of the files by name, in bytes. now_ms: milliseconds since 1970.
    Raises StorageError if the disk has no room for them."""
    refuse_standby(directory)
    clear(directory, unchanged_since_s=now_ms / 1000 - LEFT_S)
    staging = _staging(directory, move_id)
    with translated(directory):
        free_bytes = shutil.disk_usage(directory).free
        if free_bytes < sum(sizes.values()):
            raise StorageError(
                f"{format_bytes(sum(sizes.values()))} would come, and {format_bytes(free_bytes)} are free",
                path=directory,
                cause="The disk of this owner has no room for the partitions.",
                remedy="Name another owner, or make room.",
            )
        staging.mkdir(PRIVATE.directory)
        for name in sizes:
            os.close(create(_staged(directory, move_id, name)))


def put(directory: Path, move_id: str, name: str, some: Sequence[tuple[int, bytes]]) -> None:
    """Write blocks of a staged file. Raises StorageError."""
    path = _staged(directory, move_id, name)
    with translated(path), path.open("r+b", buffering=0) as file:
        for number, data in some:
            rest, offset = memoryview(data), number * BLOCK_BYTES
            while rest:
                written = os.pwrite(file.fileno(), rest, offset)
                rest, offset = rest[written:], offset + written


def staged_digests(directory: Path, move_id: str, name: str) -> Iterator[list[bytes]]:
    """Yield the digests of a staged file's blocks. Raises StorageError."""
    path = _staged(directory, move_id, name)
    with plain(path) as (read, size_bytes):
        yield from digests(read, size_bytes)


def check(directory: Path, move_id: str, name: str, size_bytes: int, expected: Mapping[int, bytes]) -> None:
    """Give a staged file its size, sync it, and compare blocks with what left. expected: the digests of the blocks that
    came since all others were compared, by number. Raises StorageError."""
    path = _staged(directory, move_id, name)
    with translated(path):
        os.truncate(path, size_bytes)
        sync(path)
        sync(path.parent)
    with plain(path) as (read, _):
        came = {number: digest_of(data) for some in blocks(read, sorted(expected)) for number, data in some}
    if came != expected:
        raise StorageError(
            "it is not what was sent",
            path=directory / name,
            cause="Bytes changed on the way, or on the disk.",
            remedy="Run the same command again. If it happens again, check disk and memory of this host.",
        )
    reach("arrive.checked")


def place(directory: Path, move_id: str, name: str) -> None:
    """Put a checked file into place; an older copy there is replaced. The caller holds the lock of the directory.
    Raises what `check_arrival` raises, StandbyDirectoryError or StorageError."""
    refuse_standby(directory)
    staged, path = _staged(directory, move_id, name), directory / name
    coming = read_partition(staged, lambda connection: describe(connection, staged))
    try:
        files = scan(directory)
    except NoPartitionsError:
        files = []
    for each in files:
        if each.error is not None:
            raise each.error
    check_arrival([each.description for each in files if each.description is not None], coming, "this owner")
    with translated(path):
        staged.chmod(modes_beside(files[0].path).file if files else PRIVATE.file)
        # An older copy goes first: SQLite would take its log for that of the new file.
        for end in ("", *ENDS):
            path.with_name(f"{name}{end}").unlink(missing_ok=True)
        sync(directory)
        reach("arrive.cleared")
        staged.rename(path)
        sync(directory)
    reach("arrive.placed")
    remove_note(directory, coming.index)


def end(directory: Path, move_id: str) -> None:
    """Remove what a move has staged and not put into place. Raises StorageError."""
    with translated(directory):
        _remove(_staging(directory, move_id))


def clear(directory: Path, *, unchanged_since_s: float | None = None) -> None:
    """Remove what killed moves left. unchanged_since_s: nothing that has changed since, in seconds since 1970; None:
    everything. Raises StorageError."""
    with translated(directory):
        for staging in directory.glob(f"{STAGING}*"):
            if not MOVE_ID.fullmatch(staging.name.removeprefix(STAGING)) or staging.is_symlink():
                continue
            newest_s = max((each.stat().st_mtime for each in (staging, *staging.iterdir())), default=0.0)
            if unchanged_since_s is None or newest_s < unchanged_since_s:
                _remove(staging)


def _remove(staging: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        for path in staging.iterdir():
            if PART.match(path.name):
                path.unlink(missing_ok=True)
        staging.rmdir()


def _staging(directory: Path, move_id: str) -> Path:
    if not MOVE_ID.fullmatch(move_id):
        raise StorageError(f"{one_line(move_id)[:80]} is not the id of a move", path=directory)
    return directory / f"{STAGING}{move_id}"


def _staged(directory: Path, move_id: str, name: str) -> Path:
    if not PART.fullmatch(name):
        raise StorageError(f"{one_line(name)[:80]} is not the name of a partition", path=directory)
    return _staging(directory, move_id) / name
