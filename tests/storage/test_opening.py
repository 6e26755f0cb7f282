"""How files are opened: every connection waits for others, and there is one place that makes them."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path

import pytest

import recovery
from recovery.storage.sqlite.file.connections import connect
from recovery.storage.sqlite.file.log_files import has_log
from recovery.storage.sqlite.file.opening import open_partition
from recovery.storage.sqlite.file.reading import read_partition, reading
from recovery.storage.sqlite.file.statements import BUSY_TIMEOUT_MS
from tests.stores import STEP, Driver, paths_of

PACKAGE = Path(recovery.__file__).parent
OWN_TIMEOUT = {"storage/documents.py", "storage/moving/leaving.py"}
"""Operational state waits as long as its RetryPolicy says, and tries again; so does a partition that is to leave, until
nobody reads it."""


def timeout_ms(connection) -> int:
    """How long SQLite waits for others before it gives up."""
    return connection.pragma("busy_timeout")


def test_others_are_waited_for_long():
    """A backup tool or a slow disk may hold a file for seconds, which must not end a run."""
    assert BUSY_TIMEOUT_MS >= 30_000


@pytest.mark.parametrize("mode", ["unshared", "ro", "rw"])
def test_whoever_opens_a_partition_waits(store_dir, mode):
    """Reader or writer."""
    connection = open_partition(paths_of(store_dir)[0], mode)
    assert timeout_ms(connection) == BUSY_TIMEOUT_MS
    connection.close()


def test_whoever_makes_a_file_waits(tmp_path):
    """A partition, a copy, or a delta."""
    connection = connect(tmp_path / "part-0.sqlite3", "rwc")
    assert timeout_ms(connection) == BUSY_TIMEOUT_MS
    connection.close()


def test_readers_wait(store_dir):
    """Whether the file has a log or not."""
    path = paths_of(store_dir)[0]
    for use in (contextlib.nullcontext, Driver):
        with use(store_dir):
            assert has_log(path) == (use is Driver)
            assert read_partition(path, timeout_ms) == BUSY_TIMEOUT_MS
            with reading(path) as connection:
                assert timeout_ms(connection) == BUSY_TIMEOUT_MS


def test_those_of_a_run_wait(store_dir):
    """The writers of the driver, and what tasks and the driver have to the deltas."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1"})
        run.close(0)
        deltas = [delta for of_step in run.store._deltas.values() for delta in of_step]
        task = run.task()
        try:
            task.read(STEP, 1, {0: ("a",)})[0]
            connections = [*run.store._writers, *(delta._connection for delta in [*deltas, *task._deltas.values()])]
            assert [timeout_ms(each) for each in connections] == [BUSY_TIMEOUT_MS] * 5
        finally:
            task.release()


MAKERS = ("apsw.Connection", "sqlite3.connect")


def makes_a_connection(call: ast.Call) -> bool:
    """Whether a call is one of a library of SQLite that opens a file."""
    named = isinstance(call.func, ast.Attribute) and call.func.attr in ("Connection", "connect")
    return named and ast.unparse(call.func).endswith(MAKERS)


def test_connections_are_made_in_one_place():
    """Whatever opens a partition elsewhere would not wait, or not check what it opens."""
    for path in PACKAGE.rglob("*.py"):
        name, text = path.relative_to(PACKAGE).as_posix(), path.read_text()
        if not any(word in text for word in ("set_busy_timeout", *MAKERS)):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr == "set_busy_timeout":
                assert name in OWN_TIMEOUT | {"storage/sqlite/file/connections.py"}, f"{name}:{node.lineno}"
            if isinstance(node, ast.Call) and makes_a_connection(node):
                in_memory = ast.unparse(node.args[0]) == "':memory:'"
                assert name == "storage/sqlite/file/connections.py" or in_memory, f"{name}:{node.lineno}"
