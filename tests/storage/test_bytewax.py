"""Files of Bytewax, and files that only look like them."""

from __future__ import annotations

import contextlib
import re

import apsw
import pytest

from recovery.errors import CorruptPartitionError, ForeignPartitionError, NoPartitionsError, StorageError
from recovery.storage.bytewax import their_files
from tests import others
from tests.importing.theirs import TABLES, Theirs, run, word_count


def opened(directory):
    with their_files(directory) as found:
        return [each.said for each in found]


def test_what_a_partition_says(tmp_path):
    """Everything that planning asks, of all files together."""
    word_count(tmp_path / "db", {"one": 1, "two": None})
    found = opened(tmp_path / "db")
    assert [(each.index, each.count, each.collected) for each in found] == [(0, 2, 3), (1, 2, 3)]
    assert [e.resume_epoch for each in found for e in each.executions] == [1]
    assert {k: v for each in found for k, v in each.frontiers.items()} == {(0, 0): 4}
    assert {flow for each in found for flow in each.flows} == {"words"}
    assert {epoch for each in found for epoch in each.snapshots} == {3}


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("DROP TABLE fronts", ForeignPartitionError),
        ("ALTER TABLE snaps ADD COLUMN more TEXT", ForeignPartitionError),
        ("CREATE TABLE mine (x)", ForeignPartitionError),
        ("CREATE VIEW mine AS SELECT 1", ForeignPartitionError),
        ("CREATE TRIGGER mine AFTER INSERT ON exs BEGIN DELETE FROM exs; END", ForeignPartitionError),
        ("PRAGMA user_version = 4", ForeignPartitionError),
        ("DELETE FROM parts", CorruptPartitionError),
        ("CREATE TABLE _litestream_seq (id)", None),
    ],
)
def test_what_is_refused(tmp_path, sql, kind):
    """Tables of others, older versions and anything that could run."""
    theirs = Theirs(tmp_path / "db", 1)
    theirs.do(0, sql)
    if kind is None:
        assert opened(tmp_path / "db")
        return
    with pytest.raises(kind):
        opened(tmp_path / "db")


def test_files_that_are_no_partitions(tmp_path):
    """No file, an empty one, one without tables, text, a directory."""
    with pytest.raises(NoPartitionsError):
        opened(tmp_path)
    file = tmp_path / "part-0.sqlite3"
    for content in (b"", b"text" * 1000):
        file.write_bytes(content)
        with pytest.raises(CorruptPartitionError):
            opened(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(StorageError):
        opened(tmp_path)


def test_damage_is_found(tmp_path):
    """What SQLite's own check finds."""
    theirs = word_count(tmp_path / "db", {f"key{number}": number for number in range(2000)}, partitions=1)
    content = bytearray(theirs.paths[0].read_bytes())
    content[len(content) // 2 : len(content) // 2 + 4096] = b"\xff" * 4096
    theirs.paths[0].write_bytes(bytes(content))
    with pytest.raises(CorruptPartitionError):
        opened(tmp_path / "db")


def test_the_tables_are_those_of_bytewax(tmp_path):
    """Which the tests forge."""
    python = others.python_with("bytewax")
    (tmp_path / "db").mkdir()
    run(python, tmp_path, "bytewax.recovery", "db", "1")
    with contextlib.closing(apsw.Connection(str(tmp_path / "db" / "part-0.sqlite3"))) as connection:
        real = [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")]

    def words(sql):
        return re.sub(r"\s+", "", sql)

    assert words(";".join(real) + ";") == words(TABLES)
