"""A fork does not write to what belongs to its origin. Nothing here starts Spark."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from recovery import FileSink, OutputMismatchError, UpsertSink
from recovery.storage.origin import Origin
from tests.sinks.support import Store

FORKED = (Origin("fork", "5e1f", 1, 0, 2, "/data/rec"),)


def forked(resume):
    """The same for the sink of a fork."""
    return replace(resume, store_id="7a2b", origins=FORKED)


def refused(sink, resume):
    """The error of a fork that has the sink of its origin; the origin itself may go on."""
    sink.check(resume)
    with pytest.raises(
        OutputMismatchError, match="of store 5e1f in /data/rec, which this one was forked from"
    ) as error:
        sink.check(forked(resume))
    assert "--no-output" in error.value.remedy
    moved = replace(resume, store_id="7a2b", origins=(Origin("repartition", "5e1f", 1, 0, 2, "/data/rec"),))
    with pytest.raises(OutputMismatchError) as other:
        sink.check(replace(forked(resume), origins=(*FORKED, *moved.origins), store_id="7a2b"))
    assert "--no-output" in other.value.remedy
    return error.value


def test_a_directory_of_files(tmp_path):
    """The error names it, and how to have another one."""
    store, sink = Store(), FileSink(tmp_path / "out", "json")
    sink.rollback(store.begin())
    error = refused(sink, store.resume())
    assert error.path == str(tmp_path / "out")
    assert "fresh=True" in error.remedy
    FileSink(tmp_path / "new", "json", fresh=True).check(forked(store.resume()))


def test_a_table(tmp_path):
    """Of a database."""
    connection = sqlite3.connect(tmp_path / "words.db")
    connection.execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER)")
    connection.commit()
    store = Store()
    sink = UpsertSink(lambda: sqlite3.connect(tmp_path / "words.db"), "words", ["word"])
    sink.rollback(store.begin())
    assert refused(sink, store.resume()).path == "table words"


def test_a_delta_table(tmp_path):
    """Also before an epoch of the origin has rows in it: its executions own it."""
    deltalake = pytest.importorskip("deltalake")
    import pyarrow as pa

    from recovery import DeltaSink

    deltalake.write_deltalake(str(tmp_path / "table"), pa.table({"n": [1]}))
    store, sink = Store(), DeltaSink(str(tmp_path / "table"))
    sink.rollback(store.begin())
    assert refused(sink, store.resume()).path == str(tmp_path / "table")
