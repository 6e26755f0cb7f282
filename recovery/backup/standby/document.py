"""What a standby knows of itself: `standby.json`, which also marks the directory.

The document names the place, and says for each partition which epoch the standby has reached. Before partitions are
changed, the document says what they will be (`coming`); what is needed for the change lies in the directory before. So
a kill at any moment leaves a standby that the next call completes without the place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from recovery.base.untrusted_json import Count, Moment, decode_json
from recovery.errors import CorruptPartitionError, UnsupportedVersionError
from recovery.host.beside import read_beside, remove_beside, write_beside
from recovery.host.durable import modes_beside
from recovery.planning.following import ChainPosition
from recovery.storage.standby import LARGEST, NAME

FORMAT = 1
STAGING = ".standby"
"""The directory, inside the standby, of files that were fetched and not applied yet."""

_Text = Annotated[str, msgspec.Meta(max_length=65_536)]


@dataclass(frozen=True, slots=True)
class At:
    """The backup that a standby is as of, or is about to be. positions: of its partitions, by index; None: it has to be
    fetched whole. whole: the indexes of the partitions of which a whole file was fetched. term: of its writer."""

    manifest: _Text
    taken_ms: Moment
    epoch: Count
    closed_ms: Moment | None
    positions: tuple[ChainPosition | None, ...]
    whole: tuple[Count, ...] = ()
    term: Count = 0

    @property
    def is_whole(self) -> bool:
        """Whether all partitions of the standby are there."""
        return None not in self.positions


@dataclass(frozen=True, slots=True)
class Standby:
    """The document. place: the address of the backups; shown: for people. writer: the nonce of the term that the place
    had at the last look; "" if it had none."""

    place: _Text
    shown: _Text
    store_id: _Text | None = None
    writer: _Text = ""
    at: At | None = None
    coming: At | None = None
    format: Count = FORMAT


def read_standby(directory: Path) -> Standby | None:
    """Return the document of a standby, None if the directory is none. Raises CorruptPartitionError for a document that
    this package did not write, UnsupportedVersionError or StorageError."""
    path = directory / NAME
    content = read_beside(path, LARGEST)
    if content is None:
        return None

    def refuse(why: str) -> CorruptPartitionError:
        return CorruptPartitionError(
            f"it cannot be read: {why}",
            path=path,
            cause="The file was edited or damaged.",
            remedy="Remove the directory, and follow the backups into a new one.",
        )

    found = decode_json(content, refuse, Standby)
    if found.format > FORMAT:
        raise UnsupportedVersionError(f"standby of format {found.format}", path=path)
    return found


def write_standby(directory: Path, document: Standby) -> None:
    """Replace the document, atomically; durable when it returns. Raises StorageError."""
    path = directory / NAME
    write_beside(path, msgspec.json.encode(document), modes_beside(path))


def end_standby(directory: Path) -> None:
    """Remove the document: the directory is an ordinary one. Durable when it returns. Raises StorageError."""
    remove_beside(directory / NAME)


def facts_of(directory: Path) -> dict[str, Any] | None:
    """Return what a standby says of itself, for people and programs; None if the directory is none. Raises what
    `read_standby` raises."""
    found = read_standby(directory)
    if found is None:
        return None
    return {
        "source": found.shown,
        "backup": found.at.manifest if found.at else None,
        "epoch": found.at.epoch if found.at else None,
        "closed_ms": found.at.closed_ms if found.at else None,
        "incomplete": incomplete(found.at),
    }


def incomplete(at: At | None) -> list[str]:
    """Return the names of the partitions that have to be fetched whole."""
    positions: Sequence[ChainPosition | None] = at.positions if at else ()
    return [f"part-{index}.sqlite3" for index, each in enumerate(positions) if each is None]
