"""What a Delta table's log says without Spark. tests/spark/test_delta_source.py compares the answers with Spark's."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from recovery.errors import StorageError
from recovery.idle import delta
from recovery.idle.delta import new_version

deltalake = pytest.importorskip("deltalake")
ROWS = pa.table({"n": [1, 2]})


def write(path: Path, versions: int = 1) -> None:
    """Add versions to a table; a table that is not there is made."""
    for _ in range(versions):
        deltalake.write_deltalake(str(path), ROWS, mode="append")


def identity(path: Path) -> str:
    return str(deltalake.DeltaTable(str(path)).metadata().id)


def offset(path: Path, version: int, index: int = -1, **more: object) -> str:
    """The position before the first file of a version, as Delta writes it."""
    return json.dumps({
        "sourceVersion": 1, "reservoirId": identity(path), "reservoirVersion": version, "index": index,
        "isStartingVersion": False, **more,
    })  # fmt: skip


@pytest.fixture
def table(tmp_path):
    """A table of the versions 0 to 2."""
    path = tmp_path / "table"
    write(path, 3)
    return path


def log(path: Path, name: str) -> Path:
    return path / "_delta_log" / name


def checkpointed(path: Path) -> None:
    """As long-lived tables are: the older entries were removed after a checkpoint."""
    found = deltalake.DeltaTable(str(path))
    found.create_checkpoint()
    for version in range(2):
        log(path, f"{version:020}.json").unlink()


def others(path: Path) -> None:
    """What writers leave beside entries."""
    for name in ("_commit_4f2a.json.tmp", ".00000000000000000002.json.crc", "00000000000000000002.crc"):
        log(path, name).write_text("x")
    log(path, "_sidecars").mkdir()
    log(path, "_sidecars/00000000000000000009.parquet").touch()
    log(path, "_staged_commits").mkdir()


@pytest.mark.parametrize("change", [lambda path: None, checkpointed, others])
def test_a_table_without_a_later_version(table, change):
    """Whatever the log has besides: nothing is new behind the last version."""
    positions = [offset(table, 3), offset(table, 3, -100)]
    change(table)
    assert [new_version(str(table), at) for at in positions] == [None, None]


def replaced(path: Path) -> None:
    shutil.rmtree(path)
    write(path, 3)


def replaced_and_checkpointed(path: Path) -> None:
    replaced(path)
    checkpointed(path)


def without_ids(path: Path) -> None:
    checkpointed(path)
    log(path, f"{2:020}.checkpoint.parquet").unlink()


def staged(path: Path) -> None:
    log(path, "_staged_commits").mkdir()
    log(path, f"_staged_commits/{3:020}.4f2a.json").write_text("{}")


GARBLED = (
    b"[1", b"[1]", b'{"metaData": 5}', b'"text"', b"[" * 100_000, b'{"version": "2"}', b"\xff", b"PAR1" * 9,
)  # fmt: skip
WITH_ID = {"an entry": f"{0:020}.json", "a pointer": "_last_checkpoint", "a checkpoint": f"{2:020}.checkpoint.parquet"}


def garbled(what: str, content: bytes) -> Callable[[Path], None]:
    """Puts this content in the place of a file that says the table's id."""

    def change(path: Path) -> None:
        if what != "an entry":
            checkpointed(path)
        log(path, WITH_ID[what]).write_bytes(content)

    return change


def compacted_entries(path: Path) -> None:
    log(path, f"{1:020}.{4:020}.compacted.json").write_text("{}")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a version": (write, "version 3 of"),
    "maintenance": (lambda path: deltalake.DeltaTable(str(path)).optimize.compact(), "version 3 of"),
    "a gap": (lambda path: log(path, f"{9:020}.json").write_text("{}"), "version 9 of"),
    "only a checkpoint": (lambda path: log(path, f"{3:020}.checkpoint.parquet").touch(), "version 3 of"),
    "entries in one file": (compacted_entries, "version 4 of"),
    "another table": (replaced, "is another table"),
    "another table with a checkpoint": (replaced_and_checkpointed, "is another table"),
    "a shorter log": (lambda path: log(path, f"{2:020}.json").unlink(), "lacks the version that was read last"),
    "a log without an id": (without_ids, "only Spark can read its id"),
    "commits elsewhere": (staged, "only Spark knows where"),
    "no table": (shutil.rmtree, "No such file"),
    **{f"{what} that is {text[:20]!r}": (garbled(what, text), ".") for what in WITH_ID for text in GARBLED},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_needs_spark(table, name):
    """Each change after the position is new, or not known."""
    change, why = CHANGES[name]
    at = offset(table, 3)
    change(table)
    try:
        found = new_version(str(table), at)
    except (StorageError, OSError, ValueError, KeyError) as error:
        found = str(error)
    assert found is not None
    assert re.search(why, found)


@pytest.mark.parametrize("at", [
    {"version": 3, "index": 0}, {"version": 2, "index": 7}, {"version": 3, "index": -20},
    {"version": 3, "isStartingVersion": True}, {"version": 0},
])  # fmt: skip
def test_positions_within_a_version(table, at):
    """Files of the version, or its schema, may be left to read."""
    assert "within a version" in (new_version(str(table), offset(table, **at)) or "")
    assert "within a version" in (new_version(str(table), '{"logOffset":0}') or "")


def test_an_entry_that_is_too_large(table, monkeypatch):
    """A first version of any size costs no more memory than the limit."""
    at = offset(table, 3)
    monkeypatch.setattr(delta, "MOST_BYTES", 100)
    with pytest.raises(OSError, match="larger than 100 bytes"):
        new_version(str(table), at)


def test_a_link_to_the_table(table, tmp_path):
    """Tables may be behind links."""
    (tmp_path / "link").symlink_to(table)
    assert new_version(str(tmp_path / "link"), offset(table, 3)) is None
