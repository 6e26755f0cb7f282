"""Bytewax's positions in files as the position of the source `appended`, after a micro-batch 0 that nobody ran.

A position of Bytewax's FileSource, DirSource and CSVSource is a number of bytes under a key FILE_SYSTEM::PATH. The path
is relative to Bytewax's working directory, or to the directory of a DirSource.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recovery.appended.files import InputFiles, LocalFiles, name_of
from recovery.appended.position import FilePosition, InputOffset, fingerprint
from recovery.base.ids import StepId
from recovery.base.reserved import CHECKPOINT_STEP, SOURCES_STEP
from recovery.checkpoint.source_places import name_digest, places_of, read_for
from recovery.checkpoint.sources import PLACES_KEY
from recovery.errors import ConfigurationError, InputRewrittenError, StateValueError
from recovery.storage.seam import DriverRows

BATCH = 0
"""The micro-batch after which the imported position is."""
MOST_BYTES = 1 << 62

SETTINGS = {
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
    "spark.sql.streaming.join.stateFormatVersion": "2",
    "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
    "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled": "true",
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    "spark.sql.streaming.stateStore.rocksdb.formatVersion": "5",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "false",
    "spark.sql.dropDuplicates.deterministicKeyOrder.enabled": "true",
}
"""Spark's own defaults. Without them in the log of offsets, Spark takes those of its oldest versions. Settings that are
missing here are the session's."""


@dataclass(frozen=True, slots=True)
class TheirInput:
    """A file source of Bytewax and how far it read: the name that the flow's source gives it in `path`, and for each
    file its path and the number of bytes that were read."""

    step: str
    path: str
    files: tuple[tuple[Path, int], ...]


def is_position(key: str, value: Any) -> bool:
    """Return whether a snapshot looks like the position of a file source."""
    return bool(key.partition("::")[2]) and type(value) is int and value >= 0


def their_input(step: str, positions: Mapping[str, int], named: str | None, current: Path) -> TheirInput:
    """Return the files of a source. named: the path that the flow will read, if it is not the one in the position.

    Raises ConfigurationError if files are missing, StateValueError for a position that is not a number of bytes.
    """
    parts = {key.partition("::")[2]: offset for key, offset in positions.items()}
    way = f"Name the file, or the directory of a DirSource: --input {step}=PATH"
    if named is None and len(parts) > 1:
        raise ConfigurationError(
            f"source {step!r:.80} read {len(parts)} files of a directory that its position does not name", remedy=way
        )
    path = named if named is not None else next(iter(parts))
    at = current / path
    files = tuple((at / part if at.is_dir() else at, offset) for part, offset in sorted(parts.items()))
    if len(files) > 1 and not at.is_dir():
        raise ConfigurationError(f"source {step!r:.80} read {len(files)} files of a directory", path=path, remedy=way)
    for file, offset in files:
        if not file.is_file():
            raise ConfigurationError(
                f"source {step!r:.80} read {str(file)!r:.200}, and there is no such file",
                cause="The path is relative to the directory in which Bytewax ran; or the file was removed.",
                remedy=way,
            )
        if offset > MOST_BYTES:
            raise StateValueError(
                f"source {step!r:.80} has a position in {str(file)!r:.200} that is not a number of bytes",
                cause="The file's encoding keeps a state between characters, or Bytewax stopped within a line end.",
                remedy="Let Bytewax read to the end of the file first.",
            )
    return TheirInput(step, path, files)


def offset_of(source: TheirInput, files: InputFiles | None = None) -> InputOffset:
    """Return the position at which `appended` continues. Raises InputRewrittenError for a file that is shorter, or that
    has no line end there."""
    reach = files or LocalFiles()
    found = {number: _position(path.absolute(), at, reach) for number, (path, at) in enumerate(source.files, 1)}
    return InputOffset(found, next_id=len(found) + 1)


def _position(path: Path, offset: int, files: InputFiles) -> FilePosition:
    opened = files.open(str(path))
    if opened is None:
        raise ConfigurationError("it is not a regular file", path=path)
    with opened:
        stat = opened.stat()
        end_of_line = offset == 0 or opened.read(offset - 1, 1) == b"\n"
        if stat.size < offset or not (end_of_line or stat.size == offset):
            what = f"has {stat.size} bytes" if stat.size < offset else "has no line end there"
            raise InputRewrittenError(
                f"Bytewax read {offset} bytes of it, and it {what}",
                path=path,
                cause="The file was replaced, truncated or edited since.",
                remedy="Put the file back. Without the file, leave the source out with --drop-step: the flow then "
                "reads all.",
            )
        digest = fingerprint(opened.read, offset, stat.size)
    return FilePosition(
        stat.path, name_of(stat.path), offset, stat.size, stat.mtime_ns, stat.inode, digest, not end_of_line
    )


def rows_of(sources: Sequence[TheirInput], now_ms: int) -> DriverRows:
    """Return the driver's own rows of an epoch from which a run continues at these positions."""
    described = {"batchWatermarkMs": 0, "batchTimestampMs": now_ms, "conf": SETTINGS}
    offsets = [json.dumps(offset_of(each).to_json()) for each in sources]
    # The flow's options are unknown, and so are its steps. The path identifies the source.
    names = [f"appended {name_digest(each.path)} {name_digest('')} {read_for([''])}" for each in sources]
    places = places_of(range(len(names)), [False] * len(names), names)
    return {
        StepId(CHECKPOINT_STEP): {
            "metadata": json.dumps({"id": str(uuid.uuid4())}),
            f"offsets/{BATCH}": "\n".join(["v1", json.dumps(described), *offsets]),
            f"commits/{BATCH}": 'v1\n{"nextBatchWatermarkMs":0}',
        },
        StepId(SOURCES_STEP): {PLACES_KEY: places.to_text()},
    }
