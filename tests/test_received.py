"""What else is received: checkpoints of Spark, output, positions, exports, settings; and how files are opened."""

from __future__ import annotations

import ast
import io
import os
import re
import zipfile
from pathlib import Path

import pytest

from recovery.appended.position import InputOffset
from recovery.base.credentials.certificates import read_certificates
from recovery.base.credentials.token import read_tokens
from recovery.checkpoint.directories import LocalCheckpoint
from recovery.checkpoint.home import LocalHome
from recovery.checkpoint.relocate import relocated
from recovery.checkpoint.source_places import recorded_places
from recovery.checkpoint.state_stores.state_files import StateFiles
from recovery.cli.state_common import lines_of
from recovery.errors import (
    ConfigurationError,
    CorruptPartitionError,
    CorruptStateError,
    OutputMismatchError,
    SparkCheckpointError,
    StateValueError,
)
from recovery.host.properties import read_properties
from recovery.operational.exports import read_export
from recovery.sinks.manifest import ManifestEntry, OutputFile, decode_entry, decode_note, decode_owner, encode, sealed
from recovery.spark.jvm.cache.class_archive import is_readable
from recovery.values.declaration import Declaration
from tests.checkpoint.support import log, snapshot_zip, write
from tests.shares import first
from tests.stores import ROOT

DEEP = "[" * 200_000 + "]" * 200_000


def place(path: Path) -> LocalCheckpoint:
    """The directory as a checkpoint."""
    return LocalCheckpoint(path, lambda: "x")


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
    entry = sealed(ManifestEntry(1, execution, 0, (OutputFile(name, 1, "x"),), "sink"))
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


ELSEWHERE = {
    # Links, pipes and devices do not get there.
    "base/untrusted_paths.py": "the one place that opens what others made",
    "checkpoint/beginning.py": "a checkpoint of this execution",
    "checkpoint/capture.py": "a checkpoint of this execution",
    "checkpoint/offsets.py": "a checkpoint of this execution, or one whose files LocalCheckpoint.sizes has looked at",
    "checkpoint/position.py": "a checkpoint of this execution, or one whose files LocalCheckpoint.sizes has looked at",
    "checkpoint/restore.py": "files that this function has just written",
    "checkpoint/sources.py": "files that this function has just written",
    "operators/exporting.py": "files that this function has just written",
    "hadoop/home.py": "files of this execution",
    "backup/at_owners.py": "copies in this process's scratch directory",
    "backup/objects.py": "copies in this process's scratch directory",
    "owner/copying.py": "copies in this process's scratch directory",
    "storage/staged.py": "files that this process has staged",
    "storage/moving/blocks.py": "files that this process has staged",
    "spark/jvm/cache/class_archive.py": "an archive that this process has just written",
    "spark/jvm/cache/left_archive.py": "an archive in the user's own directory",
    "spark/steps/ticks.py": "a file in the run's private directory",
    "spark/tasks/retries.py": "a file in the run's private directory",
    "report/page.py": "a part of this package",
    "ui/pages/rendering.py": "a part of this package",
    "spark/jvm/java_sources.py": "a part of this package",
    # The system's own files.
    "base/clock.py": "/proc", "host/identity.py": "/proc", "host/peers.py": "/proc", "host/processes.py": "/proc",
    "metrics/memory.py": "/proc", "storage/documents.py": "/proc", "storage/lazy/pages.py": "/proc, and O_NOFOLLOW",
    "spark/jvm/java.py": "Java's own release file",
    # They open with flags of their own, and each says why.
    "appended/files.py": "input, which may be a link: only regular files, without waiting",
    "cli/common.py": "/dev/null",
    "host/durable.py": "files that are written",
    "host/private.py": "a directory", "host/locks.py": "locks", "host/scratch.py": "a lock",
    "storage/lock.py": "a lock",
    "operational/locks.py": "a directory, and locks in it, with O_NOFOLLOW",
    "storage/lazy/vfs.py": "a lock, with O_NOFOLLOW",
    "spark/jvm/cache/class_cache.py": "only files that nobody else can write to, with O_NOFOLLOW",
}  # fmt: skip
"""Modules that open files to read without `open_received`, `read_received` or `read_named`, and why they may."""


def test_files_that_others_made_are_opened_by_one_function():
    """Nothing else opens a file to read, but for what cannot be a link, a pipe or a device, or says why it may be."""
    found = set()
    for path in (ROOT / "recovery").rglob("*.py"):
        text = path.read_text()
        # Most modules have none of these names, and need not be parsed.
        nodes = ast.walk(ast.parse(text)) if re.search(r"\b(open|read_text|read_bytes)\(", text) else ()
        for node in nodes:
            if isinstance(node, ast.Call) and _reads_a_file(node):
                found.add(path.relative_to(ROOT / "recovery").as_posix())
    assert found == set(ELSEWHERE)


def _reads_a_file(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("read_text", "read_bytes"):
        return True
    if name != "open":
        return False
    of_os = ast.unparse(call.func) == "os.open"
    mode = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    plain = isinstance(call.func, ast.Name) or any(each in ("r", "rb") for each in mode)
    return of_os or plain


@first("kind", ["pipe", "device", "directory", "link to a device", "large"], count=4)
def test_settings_are_files(tmp_path, kind):
    """A token, certificates, settings of Spark, an export: what never ends is refused, in time."""
    path = tmp_path / "given"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(2 << 30)
    path = {"device": Path("/dev/zero")}.get(kind, path)
    if kind == "link to a device":
        path.symlink_to("/dev/zero")
    for read in (read_tokens, read_certificates, read_properties, lambda path: lines_of(str(path))):
        with pytest.raises(ConfigurationError, match=r"not a file|larger than|Is a directory"):
            read(path)


def test_a_pipe_of_the_shell_is_read():
    """As in --token <(print-secret)."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b"0123456789abcdef0123\n")
        os.close(writing)
        assert read_tokens(Path(f"/dev/fd/{reading}")) == (b"0123456789abcdef0123",)
    finally:
        os.close(reading)


def test_a_token_that_all_users_can_read(tmp_path, caplog):
    """It is used, and the warning says what to type."""
    path = tmp_path / "token"
    path.write_text("0123456789abcdef0123")
    path.chmod(0o600)
    read_tokens(path)
    assert not caplog.records
    path.chmod(0o644)
    assert read_tokens(path) == (b"0123456789abcdef0123",)
    assert f"chmod o= {path}" in caplog.text
    assert "0123456789" not in caplog.text


def test_an_archive_of_classes_that_others_could_have_written(tmp_path):
    """The JVM would run what is in it. A link counts as the file to which it leads."""
    home = tmp_path / "cache"
    home.mkdir(mode=0o755)
    archive, link = home / "spark.jsa", tmp_path / "link.jsa"
    archive.touch(mode=0o644)
    link.symlink_to(archive)
    assert is_readable(archive)
    assert is_readable(link)
    for path, mode in ((archive, 0o666), (archive, 0o664), (home, 0o777), (home, 0o775)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert not is_readable(archive)
        assert not is_readable(link)
        path.chmod(before)
    home.chmod(0o1777)
    assert is_readable(archive)
    assert not is_readable(home / "missing")
    if os.geteuid() == 0:
        os.chown(archive, 12345, 12345)
        assert not is_readable(archive)
