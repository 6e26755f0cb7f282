"""What decides which sources a flow reads: what `CodeWatch` notes, and what voids the note."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from recovery.idle import note
from recovery.idle.code import CodeWatch, change_of
from tests.stores import ROOT

FACTS = {"--master": "local[2]"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory to work in, with what the flow's code reads. The salt of notes is always the same: checks of one byte
    do not name what differs in one of 256 notes."""
    monkeypatch.setattr(note.secrets, "token_hex", lambda count: "0" * 2 * count)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.json").write_text("1")
    (tmp_path / "days").mkdir()
    for path in (tmp_path / "settings.json", tmp_path / "days"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return tmp_path


def noted(code, *, jobs: int = 0):
    """What a watch notes of this code, run as the flow's `build`."""
    watch = CodeWatch(FACTS)
    counts = iter([0, jobs])
    watch.building(lambda _: code(), lambda _: 1, lambda _: next(counts))(None)
    return watch.code()


def test_what_code_has_read(here):
    """A file, a directory, a variable: the same is no change; each other content is one."""

    def code():
        (here / "settings.json").read_text()
        list((here / "days").iterdir())
        os.environ.get("FLOW_DAY")

    found = noted(code)
    assert found.why_not == ""
    assert change_of(found, FACTS) is None
    assert change_of(found, {"--master": "yarn"}) == "--master is not as in the run before"
    (here / "days/monday").touch()
    assert change_of(found, FACTS) == f"{here / 'days'} has other files"
    (here / "settings.json").write_text("2")
    assert change_of(found, FACTS) == f"{here / 'settings.json'} has changed"
    os.environ["FLOW_DAY"] = "monday"
    try:
        assert change_of(found, FACTS) == "the variable FLOW_DAY is not as in the run before"
    finally:
        del os.environ["FLOW_DAY"]


def test_code_that_changes_variables(here, monkeypatch):
    """What counts is what the process was started with."""

    def code():
        os.environ["FLOW_DAY"] = "set by the flow"
        assert os.environ["FLOW_DAY"]

    monkeypatch.delenv("FLOW_DAY", raising=False)
    found = noted(code)
    del os.environ["FLOW_DAY"]
    assert change_of(found, FACTS) is None


def test_variables_that_code_lists(here, monkeypatch):
    """A variable that is there for the first time, where code takes all that begin with some name."""
    found = noted(lambda: [value for name, value in os.environ.items() if name.startswith("TOPIC_")])
    assert change_of(found, FACTS) is None
    monkeypatch.setenv("TOPIC_2", "orders")
    assert change_of(found, FACTS) == "the list of variables is not as in the run before"


def in_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_what_threads_of_the_code_have_read(here):
    """A thread that the code has started counts as the code."""
    found = noted(lambda: in_thread((here / "settings.json").read_text))
    (here / "settings.json").write_text("2")
    assert change_of(found, FACTS) == f"{here / 'settings.json'} has changed"


@pytest.mark.parametrize("directory", ["/tmp", "/dev/shm"])
def test_files_in_memory_are_files(directory):
    """What a machine keeps in memory is no device."""
    with tempfile.NamedTemporaryFile("w", dir=directory) as file:
        os.utime(file.name, (1_700_000_000, 1_700_000_000))
        found = noted(Path(file.name).read_text)
    assert change_of(found, FACTS) == f"{file.name} has changed"


def client():
    sys.modules["duckdb"] = types.ModuleType("duckdb")


def connect():
    with socket.socket() as listening, socket.socket() as asking:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        asking.connect(listening.getsockname())


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (connect, "connects to another process"),
        (lambda: in_thread(connect), "connects to another process"),
        (lambda: os.chdir("days"), "changes the working directory"),
        (client, "imports duckdb, and Python does not report what duckdb reads"),
        (lambda: pytest.importorskip("deltalake"), "imports deltalake, and Python does not report what"),
        (lambda: subprocess.run([sys.executable, "-c", ""], check=True), "starts a process"),
        (lambda: (open("new.txt", "w").close(), open("new.txt").close()), "new.txt changed while"),  # noqa: PTH123
    ],
)  # fmt: skip
def test_what_voids_a_note(here, monkeypatch, code, why):
    """Code whose result may differ the next time, though nothing that can be compared does."""
    for name in ("duckdb", "deltalake"):
        # So that what was there, or nothing, is there again after the test.
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    found = noted(code)
    assert why in found.why_not
    assert change_of(found, FACTS) == found.why_not


FORKS = """
import importlib, os, sys
import recovery
from recovery.idle.code import forgotten_imports
from tests.idle.test_code import noted

code, *given = sys.argv[1:]
for argument in given:
    child = os.fork()
    if not child:
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, argument
"""


def in_forks(code: str, *given: str) -> list[str]:
    """The lines that code prints, run with each `argument` of those given in a fork of one process, which has imported
    the package and nothing that a flow's code imports."""
    words = [sys.executable, "-c", FORKS, code, *given]
    found = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def test_what_the_look_has_imported_before(here):
    """A look at the sources may import what the flow's code imports later, which is seen then, and works."""
    code = """
with forgotten_imports():
    before = importlib.import_module(argument)
print(noted(lambda: importlib.import_module(argument)).why_not)
import confluent_kafka.admin, pyarrow.parquet
confluent_kafka.admin.AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
"""
    of_kafka, of_arrow = in_forks(code, "confluent_kafka", "pyarrow.parquet")
    assert "imports confluent_kafka" in of_kafka
    assert "imports pyarrow" in of_arrow


def test_a_sink_does_not_void_a_note(here):
    """What a sink imports to write is no reason to start Spark."""
    sinks = (
        "FileSink('out')", "DeltaSink('table')", "IcebergSink('db.table')", "UpsertSink(print, 'table', ['key'])",
        "KafkaSink('topic', servers='localhost:1', staging='staging')",
    )  # fmt: skip
    code = "print(argument, noted(lambda: eval(f'recovery.{argument}')).why_not)"
    assert in_forks(code, *sinks) == [f"{each} " for each in sinks]


def test_reading_through_spark_voids_a_note(here):
    """What the JVM reads is not seen."""
    assert "through Spark" in noted(lambda: None, jobs=1).why_not


@pytest.mark.parametrize("name", ["{}", "file:{}?mode=ro", "file://{}"])
@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_database_that_code_reads(here, name, mode):
    """SQLite's files are files, by path or URI, also while another process has the database open."""
    with closing(sqlite3.connect(here / "choice.db")) as other:
        other.execute(f"PRAGMA journal_mode={mode}")
        other.execute("CREATE TABLE t (x)")
        for path in here.glob("choice.db*"):
            os.utime(path, (1_700_000_000, 1_700_000_000))
        found = noted(lambda: sqlite3.connect(name.format(here / "choice.db"), uri=True).close())
        assert change_of(found, FACTS) is None
        with other:
            other.execute("INSERT INTO t VALUES (1)")
        assert re.fullmatch(f"{here}/choice.db(-wal)? has changed", change_of(found, FACTS))


def test_links_that_code_follows(here):
    """Where a link leads to, though nothing was opened there."""
    (here / "new").mkdir()
    (here / "current").symlink_to("days")
    found = noted((here / "current").resolve)
    assert change_of(found, FACTS) is None
    (here / "current").unlink()
    (here / "current").symlink_to("new")
    assert change_of(found, FACTS) == f"{here / 'current'} has changed"
