"""Whether a Delta table on this host has a version that an epoch lacks, by the names in the table's log.

A version becomes visible when its entry appears in the log, under a name that begins with the number of the version. So
a log without a later number has nothing that Spark would read. A version of maintenance counts as new.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from recovery.base.untrusted_json import Count, decode_json
from recovery.base.untrusted_paths import open_received, read_received
from recovery.checkpoint.offsets import delta_offset
from recovery.errors import StorageError

SCHEMA_LOGS = ("schematrackinglocation", "schemalocation")
"""Options, in lower case, by which Delta also reads changes of the schema that it has noted elsewhere."""
MOST_BYTES = 16 << 20
_NUMBER = re.compile(r"(?<!\d)\d{20}(?!\d)")
_AT_A_BEGINNING = (-1, -100)
"""What Delta writes as the index of a position before the first file of a version."""
_SIDECARS = "_sidecars"
"""A folder of the log with parts of checkpoints. Other folders are for versions that a catalog has not made entries."""


def new_version(path: str, text: str) -> str | None:
    """Return what a run would find to read in a table, as text, or why that is not known; None: nothing.

    path: of the table. text: the epoch's position in the table. Raises StorageError, OSError,
    ValueError or KeyError if the log cannot be read.
    """
    at = delta_offset(text)
    if at is None or at.index not in _AT_A_BEGINNING or at.isStartingVersion or at.reservoirVersion < 1:
        return f"the position in {path} is within a version"
    log = Path(path, "_delta_log")
    with os.scandir(log) as entries:
        names = {entry.name: entry.is_dir() for entry in entries}
    if any(is_folder and name != _SIDECARS and os.listdir(log / name) for name, is_folder in names.items()):  # noqa: PTH208
        return f"only Spark knows where the newest versions of {path} are"
    newest = max((int(number) for name in names for number in _NUMBER.findall(name)), default=-1)
    if newest >= at.reservoirVersion:
        return f"version {newest} of {path}"
    if _entry(newest) not in names or newest != at.reservoirVersion - 1:
        return f"the log of {path} lacks the version that was read last"
    if at.reservoirId not in _ids(log, names, newest):
        return f"{path} is another table, or only Spark can read its id"
    return None


def _entry(version: int) -> str:
    return f"{version:020}.json"


class _Identity(msgspec.Struct):
    id: str


class _Action(msgspec.Struct):
    """A line of an entry, as far as it says which table this is."""

    metaData: _Identity | None = None  # noqa: N815 - Delta's name


class _LastCheckpoint(msgspec.Struct):
    version: Count


def _ids(log: Path, names: Mapping[str, bool], newest: int) -> set[str]:
    """Return the table's id as the first version or the last checkpoint says it; nothing if both are gone."""

    def refuse(why: str) -> StorageError:
        return StorageError(f"the log of the table cannot be read: {why}", path=str(log))

    if _entry(0) in names:
        lines = read_received(log / _entry(0), MOST_BYTES, through_links=True).splitlines()
        actions = [decode_json(line, refuse, _Action) for line in lines]
        return {action.metaData.id for action in actions if action.metaData is not None}
    content = read_received(log / "_last_checkpoint", MOST_BYTES, through_links=True)
    last = decode_json(content, refuse, _LastCheckpoint).version
    name = f"{last:020}.checkpoint.parquet"
    if name not in names or last > newest:
        return set()
    try:
        import pyarrow.parquet as pq

        with open_received(log / name, through_links=True) as file:
            column = pq.ParquetFile(file).read(columns=["metaData.id"])["metaData"]
    except (ImportError, NotImplementedError):
        # This build of pyarrow lacks what the file needs.
        return set()
    return {each["id"] for each in column.drop_null().to_pylist()}
