"""What else is received: checkpoints of Spark, lists of output, positions, exports."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from recovery.appended.position import InputOffset
from recovery.checkpoint.home import LocalHome
from recovery.checkpoint.native.state_files import StateFiles
from recovery.checkpoint.places import LocalPlace
from recovery.checkpoint.relocate import relocated
from recovery.checkpoint.source_places import recorded_places
from recovery.errors import (
    CorruptPartitionError,
    CorruptStateError,
    OutputMismatchError,
    SparkCheckpointError,
    StateValueError,
)
from recovery.operational.exports import read_export
from recovery.sinks.manifest import Entry, OutputFile, decode_entry, decode_note, decode_owner, encode, sealed
from recovery.values.declaration import Declaration
from tests.checkpoint.support import log, snapshot_zip, write

DEEP = "[" * 200_000 + "]" * 200_000


def place(path: Path) -> LocalPlace:
    """The directory as a checkpoint."""
    return LocalPlace(path, lambda: "x")


@pytest.mark.parametrize("what", ["file", "directory", "pipe"])
def test_a_checkpoint_with_links_is_not_imported(tmp_path, what):
    """They would bring other files of this user into the partitions; a pipe would be waited for."""
    checkpoint = tmp_path / "checkpoint"
    log(checkpoint, 0)
    assert set(place(checkpoint).sizes()) >= {"metadata", "offsets/0"}
    outside = tmp_path / "outside"
    write(outside, "secret", "x")
    if what == "pipe":
        os.mkfifo(checkpoint / "sources/0/1.compact")
    else:
        (checkpoint / "sources" / "1").symlink_to(outside / "secret" if what == "file" else outside)
    with pytest.raises(SparkCheckpointError, match="not a file" if what == "pipe" else "link"):
        place(checkpoint).sizes()


def test_a_snapshot_names_files_of_its_own_only(tmp_path):
    """And what it says of them is read up to a limit, however little room it takes."""
    for number, content in enumerate((snapshot_zip(sst=("..",)), _bomb(), b"no archive")):
        checkpoint = tmp_path / str(number)
        write(checkpoint, "state/0/0/1.zip", content)
        with pytest.raises(SparkCheckpointError):
            StateFiles(LocalHome(checkpoint), {}).needed(0)  # type: ignore[arg-type]


def _bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", b"\0" * (65 << 20))
    assert len(buffer.getvalue()) < 1 << 20
    return buffer.getvalue()


@pytest.mark.parametrize("within", ["../../x", "/etc/passwd", "a//b", ""])
def test_a_schema_lies_within_its_operator(within):
    """Spark would read it from there."""
    text = f'v2\n{{"stateStoreInfo":[{{"stateSchemaFilePaths":["file:/old/state/0/{within}"]}}]}}'
    with pytest.raises(SparkCheckpointError):
        relocated("state/0/_metadata/v2/0", text.encode(), "file:/new")


@pytest.mark.parametrize(
    ("name", "execution"), [("../../x", "ab"), ("/tmp/x", "ab"), (None, "../x"), (None, "a/b"), (None, "")]
)
def test_a_list_of_output_names_files_of_its_directory_only(tmp_path, name, execution):
    """Its digest is right."""
    name = name or "epoch-00000001-ab-00000000-00000.json"
    entry = sealed(Entry(1, execution, 0, (OutputFile(name, 1, "x"),), "sink"))
    with pytest.raises(OutputMismatchError, match="not a name that a run uses"):
        decode_entry(encode(entry), tmp_path)


@pytest.mark.parametrize("text", [DEEP, "{}", "[]", "5", '{"epoch":99999999999999999999}', "", '{"epoch":-1}'])
def test_texts_of_no_form_are_typed_errors(tmp_path, text):
    """Whatever they say."""
    with pytest.raises(OutputMismatchError):
        decode_note(text)
    with pytest.raises(OutputMismatchError):
        decode_owner(text.encode(), tmp_path)
    if text != "[]":
        with pytest.raises(CorruptPartitionError):
            recorded_places(text)
    with pytest.raises(ValueError, match="not a declaration"):
        Declaration.from_text(text)
    with pytest.raises((CorruptStateError, StateValueError)):
        read_export(['{"format":"recovery-state","version":1}', text, '{"end":1}'])


@pytest.mark.parametrize("files", [{"1": {}}, {"x": {}}, [], {"1": 5}, None, {"1": {"path": "a", "offset": -1}}])
def test_positions_of_no_form_are_typed_errors(files):
    """As they come out of Spark's log of offsets."""
    with pytest.raises(CorruptPartitionError):
        InputOffset.from_json({"version": 1, "next": 1, "turn": 0, "files": files})
