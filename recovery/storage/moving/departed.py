"""The notes of partitions that left a directory for another owner: where each of them went, and how new it was."""

from __future__ import annotations

from pathlib import Path

import msgspec

from recovery.base.ids import PartitionIndex
from recovery.base.untrusted_paths import read_received
from recovery.errors import StorageError
from recovery.host.durable import replace_durably
from recovery.planning.copies import Departed
from recovery.storage.sqlite.file.statements import translated

NOTE_BYTES = 4096


def note_path(directory: Path, index: PartitionIndex) -> Path:
    """Return the path of a partition's note."""
    return directory / f".moved-part-{index}.json"


def write_note(directory: Path, note: Departed) -> None:
    """Write a partition's note; it is on the disk when this returns. Raises StorageError."""
    path = note_path(directory, note.index)
    with translated(path):
        replace_durably(path, msgspec.json.encode(note))


def remove_note(directory: Path, index: PartitionIndex) -> None:
    """Remove a partition's note, if there is one. Raises StorageError."""
    path = note_path(directory, index)
    with translated(path):
        path.unlink(missing_ok=True)


def forget_note(directory: Path, index: PartitionIndex, to: str) -> None:
    """Remove a partition's note if it names this owner. Raises StorageError."""
    if any((note.index, note.to) == (index, to) for note in read_notes(directory)):
        remove_note(directory, index)


def remove_notes(directory: Path) -> None:
    """Remove all notes: the directory gets all its partitions from elsewhere. Raises StorageError."""
    for note in read_notes(directory):
        remove_note(directory, note.index)


def read_notes(directory: Path) -> tuple[Departed, ...]:
    """Return the notes in a directory. Raises StorageError for one that is none."""
    found = []
    with translated(directory):
        paths = sorted(directory.glob(".moved-part-*.json"))
    for path in paths:
        with translated(path):
            content = read_received(path, NOTE_BYTES)
        try:
            note = msgspec.json.decode(content, type=Departed)
            if note_path(directory, note.index) != path:
                raise ValueError("it is about another partition")
        except ValueError as error:
            raise StorageError(
                f"this is no note of a partition that moved: {error}",
                path=path,
                cause="Something else wrote to the file.",
                remedy="Remove the file, and name all owners that have partitions: the note only says where one went.",
            ) from error
        found.append(note)
    return tuple(found)
