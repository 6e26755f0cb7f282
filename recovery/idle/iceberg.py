"""Whether an Iceberg table on this host has a snapshot that an epoch lacks, by the table's metadata files.

Only a table that is a directory can be asked: one of a Hadoop catalog, or one that is named by its path. Each commit
adds a metadata file there, under the next number, so that the names say which one is the newest. Other catalogs know
the newest metadata themselves, and tell only who may ask.

Files are numbered within a snapshot by its manifests, which are not read here. So the note has to be of a run in which
Spark found the end of the table: that stays the end until a later snapshot adds rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from recovery.base.untrusted_json import decode_json
from recovery.base.untrusted_paths import read_received
from recovery.checkpoint.snapshots import table_offset
from recovery.errors import StorageError
from recovery.places.packed import unpacked

DIRECTORY = "iceberg table"
"""What a note calls the source: no format of Spark has this name."""
SINCE = "stream-from-timestamp"
_PASSES_OVER = {"streaming-skip-delete-snapshots": "delete", "streaming-skip-overwrite-snapshots": "overwrite"}
"""Options by which the connector passes over snapshots of an operation, besides those of maintenance."""
KEPT = ("path", SINCE, *_PASSES_OVER)
"""Options that a note keeps, in lower case."""
_OF_READING = (
    "batch-size", "file-open-cost", "locality", "lookback", "split-size", "streaming-max-files-per-micro-batch",
    "streaming-max-rows-per-micro-batch", "vectorization-enabled",
)  # fmt: skip
"""Options of the connector that do not change which rows there are."""
MOST_BYTES = 64 << 20
"""The largest metadata file that is read: some kilobytes a snapshot, so tables with thousands of them have less."""
_HINT = "version-hint.text"
_HINT_BYTES = 1 << 10
_ENDS = (".metadata.json", ".gz.metadata.json", ".metadata.json.gz")
"""What metadata files are called behind their number, in the order in which the connector looks for them."""
_NUMBERED = re.compile(r"v([0-9]+)\.")
_POSITIONS = 1
"""The form of positions that is understood here."""
_FORMATS = (1, 2, 3)


class _Summary(msgspec.Struct, rename="kebab"):
    operation: str = ""
    added_data_files: str = ""


class _Snapshot(msgspec.Struct, rename="kebab"):
    snapshot_id: int
    timestamp_ms: int
    summary: _Summary
    parent_snapshot_id: int | None = None


class _Metadata(msgspec.Struct, rename="kebab"):
    """A metadata file, as far as it says which snapshots lead to the newest one of the main branch."""

    format_version: int
    current_snapshot_id: int | None = None
    snapshots: list[_Snapshot] = []


def why_not_asked(options: Mapping[str, str]) -> str | None:
    """Return why only Spark can ask a table for its newest snapshot; None: this package can. options: names in lower
    case."""
    others = sorted(options.keys() - {*KEPT, *_OF_READING})
    return f"only Spark reads an Iceberg table with the option {others[0]}" if others else None


def new_snapshot(path: str, text: str, options: Mapping[str, str]) -> str | None:
    """Return what a run would find to read in a table, as text, or why that is not known; None: nothing.

    path: of the table. text: the epoch's position in the table, at which Spark has found the end of its input. options:
    those that the note keeps. Raises StorageError, OSError or ValueError if the metadata cannot be read.
    """
    at = table_offset(text)
    if at is None or at.version != _POSITIONS or not at.begun:
        return f"only Spark can read the position in {path}"
    metadata = _newest(Path(path, "metadata"))
    if metadata is None or metadata.format_version not in _FORMATS:
        return f"only Spark can tell which metadata of {path} are the newest, and what they say"
    chain = _chain(metadata, at.snapshot_id)
    if chain is None:
        return f"snapshot {at.snapshot_id} of {path}, which was read last, does not lead to the newest one"
    if SINCE in options and chain[0].timestamp_ms < int(options[SINCE]):
        return f"{path} has no snapshot since {SINCE}"
    passed = {"replace", *(what for name, what in _PASSES_OVER.items() if options.get(name, "").lower() == "true")}
    for each in chain[:-1]:
        if each.summary.operation not in passed:
            return f"snapshot {each.snapshot_id} of {path}"
    added = chain[-1].summary.added_data_files
    if not added.isdecimal() or at.position < int(added):
        return f"the position in {path} may be within snapshot {at.snapshot_id}"
    return None


def _chain(metadata: _Metadata, last: int) -> list[_Snapshot] | None:
    """Return the snapshots from the newest one of the main branch back to the last; None: the last one is not among
    those that lead to the newest one."""
    snapshots: dict[int | None, _Snapshot] = {each.snapshot_id: each for each in metadata.snapshots}
    chain, number = [], metadata.current_snapshot_id
    # Taken out one by one: what leads in a circle ends, too.
    while (each := snapshots.pop(number, None)) is not None:
        chain.append(each)
        if each.snapshot_id == last:
            return chain
        number = each.parent_snapshot_id
    return None


def _newest(folder: Path) -> _Metadata | None:
    """Return the metadata that the connector opens; None if that is not certain.

    The connector begins with the number in the hint, which writers replace after each commit, or without a hint with
    the highest number, and goes on as long as there is a file with the next number.
    """
    names = set(os.listdir(folder))  # noqa: PTH208 - names
    newest = max((int(found[1]) for found in map(_NUMBERED.match, names) if found), default=0)
    begin = _hinted(folder) if _HINT in names else newest
    name = _name(newest, names)
    # Before a gap, or a name that is not known here, the connector may end.
    if name is None or begin is None or begin > newest or not all(_name(n, names) for n in range(begin, newest)):
        return None

    def refuse(why: str) -> StorageError:
        return StorageError(f"the metadata of the table cannot be read: {why}", path=str(folder / name))

    content = read_received(folder / name, MOST_BYTES, through_links=True)
    if ".gz" in name:
        content = bytes(unpacked([content], MOST_BYTES))
    return decode_json(content, refuse, _Metadata)


def _hinted(folder: Path) -> int | None:
    """Return the number in the hint; None if the hint is no number."""
    found = re.match(rb"[0-9]{1,9}(?=[\r\n]|\Z)", read_received(folder / _HINT, _HINT_BYTES, through_links=True))
    return int(found[0]) if found else None


def _name(number: int, names: Collection[str]) -> str | None:
    return next((name for end in _ENDS if (name := f"v{number}{end}") in names), None)
