"""What the metadata files of an Iceberg table say without Spark. tests/spark/test_iceberg_directories.py compares
the answers with Spark's."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.errors import StorageError
from recovery.idle import iceberg
from recovery.idle.iceberg import DIRECTORY, new_snapshot
from recovery.idle.note import NotedSource
from recovery.idle.sources import noted_source
from tests.checkpoint.test_snapshots import offset

HINT = "version-hint.text"
SKIP_DELETES, SKIP_OVERWRITES = ("streaming-skip-delete-snapshots", "streaming-skip-overwrite-snapshots")
READ = 30
"""The snapshot that was read last, with two files."""


def snapshot(number: int, parent: int | None, operation: str = "append", **summary: object) -> dict[str, object]:
    """A snapshot, whose time is its number. Every append adds two files."""
    summary = {"operation": operation, "added-data-files": "2", **summary}
    found = {"sequence-number": number, "snapshot-id": number, "timestamp-ms": number, "schema-id": 0}
    found |= {"summary": summary, "manifest-list": f"file:/table/metadata/snap-{number}.avro"}
    return found if parent is None else {**found, "parent-snapshot-id": parent}


class Table:
    """A table as a Hadoop catalog keeps one: each commit adds a file, and then replaces the hint."""

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, path / "metadata"
        self.snapshots: list[dict[str, object]] = []
        self.version = 0
        self.folder.mkdir(parents=True)

    def commit(self, *snapshots: dict[str, object], end: str = ".metadata.json", **changes: object) -> None:
        """Add snapshots, of which the last one is the newest. changes: of other fields of the metadata."""
        self.snapshots += snapshots
        self.version += 1
        newest = self.snapshots[-1]["snapshot-id"] if self.snapshots else -1
        content = {
            "format-version": 2, "table-uuid": "9c12d441", "location": str(self.path), "last-sequence-number": 1,
            "current-snapshot-id": newest, "refs": {"main": {"snapshot-id": newest, "type": "branch"}},
            "snapshots": self.snapshots, "properties": {},
        }  # fmt: skip
        content |= {key.replace("_", "-"): value for key, value in changes.items()}
        text = json.dumps(content).encode()
        self.name(self.version, end).write_bytes(gzip.compress(text) if "gz" in end else text)
        self.hint(self.version)

    def name(self, version: int, end: str = ".metadata.json") -> Path:
        return self.folder / f"v{version}{end}"

    def hint(self, text: object) -> None:
        (self.folder / HINT).write_text(str(text))

    def new(self, at: str = offset(READ, 2), **options: str) -> str | None:
        """What the look finds. options: of the source."""
        return new_snapshot(str(self.path), at, {name.replace("_", "-"): value for name, value in options.items()})


@pytest.fixture
def table(tmp_path):
    """A table of the versions 1 to 4; the newest snapshot was read."""
    table = Table(tmp_path / "table")
    table.commit()
    table.commit(snapshot(10, None))
    table.commit(snapshot(20, 10, "replace"))
    table.commit(snapshot(READ, 20))
    return table


def others(table: Table) -> None:
    """What writers leave beside the metadata: the next one that nobody has committed, checksums, manifests."""
    for name in ("6f1c-4a2e.metadata.json", ".v4.metadata.json.crc", "00009-6f1c.metadata.json", "snap-30-1-6f1c.avro",
                 "6f1c-m0.avro", "6f1c-version-hint.temp", "20.stats"):  # fmt: skip
        (table.folder / name).write_text("x")


def expired(table: Table) -> None:
    table.snapshots = table.snapshots[-1:]
    table.commit()
    for version in range(1, 4):
        table.name(version).unlink()


def side_branch(table: Table) -> None:
    """Somebody has tagged a snapshot, and written to a branch."""
    refs = {"main": {"snapshot-id": READ, "type": "branch"}, "test": {"snapshot-id": 40, "type": "branch"},
            "kept": {"snapshot-id": 10, "type": "tag"}}  # fmt: skip
    table.commit(snapshot(40, READ), current_snapshot_id=READ, refs=refs)


def linked(table: Table) -> None:
    """The table and its newest metadata are behind links."""
    moved = table.path.rename(table.path.with_name("moved"))
    table.path.symlink_to("moved")
    table.name(4).rename(moved / "elsewhere.json")
    table.name(4).symlink_to(moved / "elsewhere.json")


NOTHING: dict[str, Callable[[Table], object]] = {
    "nothing happened": lambda table: None,
    "other files": others,
    "a hint that is old": lambda table: table.hint("2\n"),
    "no hint": lambda table: (table.folder / HINT).unlink(),
    "another property": lambda table: table.commit(properties={"a": "b"}),
    "packed": lambda table: table.commit(end=".gz.metadata.json"),
    "packed as long ago": lambda table: table.commit(end=".metadata.json.gz"),
    "older snapshots expired": expired,
    "a tag and a branch": side_branch,
    "links": linked,
    "maintenance": lambda table: table.commit(snapshot(40, READ, "replace"), snapshot(50, 40, "replace")),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_table_without_new_rows(table, name):
    """Whatever else was committed: no later snapshot leads to rows that were not read."""
    NOTHING[name](table)
    assert table.new() is None


def test_positions_behind_the_end(table):
    """The connector counts files that a manifest has taken over, too."""
    assert table.new(offset(READ, 3)) is None


def test_options_that_pass_over_snapshots(table):
    """Rows that such a snapshot removes or replaces are not read."""
    table.commit(snapshot(40, READ, "overwrite"), snapshot(50, 40, "delete"))
    both = {SKIP_DELETES: "TRUE", SKIP_OVERWRITES: "true"}
    assert table.new(**both) is None
    for name, says in ((SKIP_DELETES, "snapshot 40"), (SKIP_OVERWRITES, "snapshot 50")):
        assert says in (table.new(**{name: "true"}) or "")
        assert table.new(**both | {name: "false"}) is not None


def test_a_time_to_begin(table):
    """Before the newest snapshot it does not matter; after that one, the connector begins anywhere."""
    assert table.new(stream_from_timestamp="20") is None
    assert "no snapshot since" in (table.new(stream_from_timestamp="31") or "")
    with pytest.raises(ValueError, match="soon"):
        table.new(stream_from_timestamp="soon")


def recreated(table: Table) -> None:
    """Dropped and made again, with as many commits."""
    shutil.rmtree(table.path)
    again = Table(table.path)
    for number in (11, 21, 31, 41):
        again.commit(snapshot(number, number - 10 if again.snapshots else None))


def bomb(table: Table) -> None:
    table.name(5, ".gz.metadata.json").write_bytes(gzip.compress(bytes(100 << 20)))


def pipe(table: Table) -> None:
    table.name(4).unlink()
    os.mkfifo(table.name(4))


def circle(table: Table) -> None:
    table.commit(snapshot(40, 50, "replace"), snapshot(50, 40, "replace"))


def removed(table: Table, *versions: int) -> None:
    for version in versions:
        table.name(version).unlink()


def garbled(content: bytes) -> Callable[[Table], object]:
    return lambda table: table.name(5).write_bytes(content)


GARBLED = (b"", b"[]", b"{}", b"[" * 100_000, b'{"format-version":2,"snapshots":5}', b'{"format-version":"2"}', b"\xff",
           b'{"format-version":2,"current-snapshot-id":1e400,"snapshots":[{"summary":null}]}')  # fmt: skip
CHANGES: dict[str, tuple[Callable[[Table], object], str]] = {
    "a snapshot": (lambda table: table.commit(snapshot(40, READ)), "snapshot 40 of"),
    "a snapshot before maintenance": (
        lambda table: table.commit(snapshot(40, READ), snapshot(50, 40, "replace")), "snapshot 40 of"
    ),
    "a snapshot in packed metadata": (lambda table: table.commit(snapshot(40, READ), end=".gz.metadata.json"), "40 of"),
    "a snapshot without a hint": (lambda table: (table.commit(snapshot(40, READ)), table.hint(4)), "snapshot 40 of"),
    "rows that were removed": (lambda table: table.commit(snapshot(40, READ, "delete")), "snapshot 40 of"),
    "rows that were replaced": (lambda table: table.commit(snapshot(40, READ, "overwrite")), "snapshot 40 of"),
    "an operation that is not known": (lambda table: table.commit(snapshot(40, READ, "move")), "snapshot 40 of"),
    "no operation": (lambda table: table.commit({**snapshot(40, READ), "summary": {}}), "snapshot 40 of"),
    "a rollback": (lambda table: table.commit(current_snapshot_id=20), "does not lead to the newest"),
    "an empty table": (lambda table: table.commit(current_snapshot_id=-1), "does not lead to the newest"),
    "no newest snapshot": (lambda table: table.commit(current_snapshot_id=None), "does not lead to the newest"),
    "another table": (recreated, "does not lead to the newest"),
    "a snapshot that expired": (
        lambda table: table.commit(snapshots=[snapshot(40, READ, "replace")], current_snapshot_id=40),
        "snapshot 30 of .* does not lead to the newest",
    ),
    "a circle": (circle, "does not lead to the newest"),
    "a count that is missing": (
        lambda table: table.commit(snapshots=[{**snapshot(READ, 20), "summary": {"operation": "append"}}]), "within"
    ),
    "a count that is no number": (
        lambda table: table.commit(snapshots=[snapshot(READ, 20, **{"added-data-files": "-1"})]), "within"
    ),
    "a newer format": (lambda table: table.commit(format_version=4), "only Spark"),
    "a hint that is ahead": (lambda table: table.hint(5), "only Spark"),
    "a hint to what is gone": (lambda table: (table.hint(2), removed(table, 2)), "only Spark"),
    "a gap": (lambda table: (table.hint(1), removed(table, 3)), "only Spark"),
    "a hint that is no number": (lambda table: table.hint("4 of 5"), "only Spark"),
    "an empty hint": (lambda table: table.hint(""), "only Spark"),
    "a long hint": (lambda table: table.hint("4" * 2000), "larger than 1,024 bytes"),
    "a number far away": (lambda table: table.name(10**30).touch(), "only Spark"),
    "a name that is not known": (lambda table: table.name(5, ".zstd.metadata.json").touch(), "only Spark"),
    "no metadata": (lambda table: removed(table, 1, 2, 3, 4), "only Spark"),
    "no table": (lambda table: shutil.rmtree(table.path), "No such file"),
    "a pipe": (pipe, "not a file"),
    "a directory": (lambda table: table.name(5).mkdir(), "not a file|Is a directory"),
    "a link to nothing": (lambda table: table.name(5).symlink_to("nothing"), "No such file"),
    "a bomb": (bomb, "expands to more than"),
    "packed, and cut": (
        lambda table: table.name(5, ".gz.metadata.json").write_bytes(gzip.compress(b"{}")[:-3]), "it is cut off"
    ),
    "not packed": (lambda table: table.name(5, ".metadata.json.gz").write_text("{}"), "."),
    **{f"metadata that are {text[:60]!r}": (garbled(text), "cannot be read") for text in GARBLED},
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_needs_spark_of_an_iceberg_table(table, name):
    """Each change after the position is new, or not known."""
    change, why = CHANGES[name]
    change(table)
    try:
        found = table.new()
    except (StorageError, OSError, ValueError) as error:
        found = str(error)
    assert found is not None
    assert re.search(why, found), found


@pytest.mark.parametrize("at", [
    offset(READ, 1), offset(READ, 0), offset(READ, -1), offset(-1, -1), offset(10, 2), offset(99, 2), "-",
    '{"logOffset":0}', offset(READ, 2).replace('"version":1', '"version":2'),
    offset(READ, 2).replace("}", ',"branch":"main"}'),
])  # fmt: skip
def test_positions_that_need_spark(table, at):
    """Within a snapshot, before all of them, in an older one, in one that the table lacks, and in other forms."""
    assert table.new(at) is not None


def test_metadata_that_are_too_large(table, monkeypatch):
    """A file of any size costs no more memory than the limit."""
    monkeypatch.setattr(iceberg, "MOST_BYTES", 100)
    with pytest.raises(OSError, match="larger than 100 bytes"):
        table.new()


def test_what_a_note_keeps_of_a_table():
    """A note keeps the path of the table, and what decides which snapshots count. Another option, such as a branch, is
    for Spark."""
    options = {"path": "file:/lake/db/t", "split-size": "1", SKIP_DELETES: "true"}
    kept = NotedSource(DIRECTORY, {"path": "file:/lake/db/t", SKIP_DELETES: "true"})
    assert noted_source(DIRECTORY, options, plain_is_local=True) == kept
    assert "only Spark" in noted_source(DIRECTORY, options, plain_is_local=False)
    for other in ("branch", "recovery-lost-between", "async-micro-batch-planning-enabled", "password"):
        why = f"only Spark reads an Iceberg table with the option {other}"
        assert noted_source(DIRECTORY, options | {other: "x"}, plain_is_local=True) == why
    # A table of another catalog: its path is a name.
    catalog = noted_source("iceberg", {"path": "lake.db.t"}, plain_is_local=True)
    assert catalog == "only Spark knows whether the source iceberg has new input"
