"""Recovery directories as Bytewax 0.20 and 0.21 leave them, written by hand; and runs of Bytewax itself."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import zlib
from collections import defaultdict
from pathlib import Path

import apsw

TABLES = """
CREATE TABLE parts (
 created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
 part_index INTEGER PRIMARY KEY NOT NULL CHECK (part_index >= 0),
 part_count INTEGER NOT NULL CHECK (part_count > 0), CHECK (part_index < part_count)) STRICT;
CREATE TABLE exs (
 created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, ex_num INTEGER NOT NULL PRIMARY KEY,
 worker_count INTEGER NOT NULL CHECK (worker_count > 0), resume_epoch INTEGER NOT NULL) STRICT;
CREATE TABLE fronts (
 created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, ex_num INTEGER NOT NULL,
 worker_index INTEGER NOT NULL CHECK (worker_index >= 0), worker_frontier INTEGER NOT NULL,
 PRIMARY KEY (ex_num, worker_index)) STRICT;
CREATE TABLE commits (
 created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, part_index INTEGER PRIMARY KEY NOT NULL,
 commit_epoch INTEGER NOT NULL) STRICT;
CREATE TABLE snaps (
 created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, step_id TEXT NOT NULL, state_key TEXT NOT NULL,
 snap_epoch INTEGER NOT NULL, ser_change BLOB, PRIMARY KEY (step_id, state_key, snap_epoch)) STRICT;
"""
COUNT = "words.count.stateful_flat_map.stateful.stateful_batch"
LINES = "words.lines"


def at(second: int) -> str:
    """A time as Bytewax's files have it."""
    return f"2026-01-01 00:{second // 60:02}:{second % 60:02}"


class Theirs:
    """A recovery directory of Bytewax; each change is durable, and the files have no log."""

    def __init__(self, directory: Path, count: int = 2) -> None:
        self.directory = directory
        directory.mkdir()
        self.paths = [directory / f"part-{index}.sqlite3" for index in range(count)]
        for index, path in enumerate(self.paths):
            self.do(index, TABLES + "PRAGMA user_version = 5;")
            self.do(index, "INSERT INTO parts (part_index, part_count) VALUES (?, ?)", index, count)
            assert path.exists()

    def do(self, index: int, sql: str, *values: object) -> None:
        """Change a partition."""
        with contextlib.closing(apsw.Connection(str(self.paths[index]))) as connection:
            connection.execute(sql, values or None).fetchall()

    def home(self, *words: object) -> int:
        """The partition of some words."""
        return zlib.crc32(repr(words).encode()) % len(self.paths)

    def execution(self, number: int, resume: int, begun: int, workers: int = 1) -> None:
        """An execution begins."""
        sql = "INSERT INTO exs VALUES (?, ?, ?, ?)"
        self.do(self.home("ex", number), sql, at(begun), number, workers, resume)

    def snapshot(
        self, epoch: int, states: dict[str, object], second: int, step: str = COUNT, pickled: bool = False
    ) -> None:
        """Snapshots of keys; None discards one. pickled: the values are pickles already."""
        rows = defaultdict(list)
        for key, value in states.items():
            data = value if pickled or value is None else pickle.dumps(value, 4)
            rows[self.home(step, key)].append((at(second), step, key, epoch, data))
        sql = "INSERT INTO snaps VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET ser_change = EXCLUDED.ser_change"
        for index, values in rows.items():
            with contextlib.closing(apsw.Connection(str(self.paths[index]))) as connection, connection:
                connection.executemany(sql, values)

    def counted(self, execution: int, frontier: int, worker: int = 0) -> None:
        """The epochs below the frontier are counted."""
        sql = "INSERT INTO fronts VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET worker_frontier = ?"
        self.do(self.home("front", execution, worker), sql, at(0), execution, worker, frontier, frontier)

    def collected(self, epoch: int) -> None:
        """Every partition has collected up to this epoch."""
        for index in range(len(self.paths)):
            self.do(index, "INSERT INTO commits VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET commit_epoch = ?",
                    at(0), index, epoch, epoch)  # fmt: skip

    def contents(self) -> dict[str, bytes]:
        """Every file and its bytes."""
        return {path.name: path.read_bytes() for path in self.directory.iterdir()}


def word_count(directory: Path, states: dict[str, object], position: int | None = None, partitions: int = 2) -> Theirs:
    """A word count over words.txt whose one execution has ended with the input."""
    theirs = Theirs(directory, partitions)
    theirs.execution(0, 1, 0)
    theirs.snapshot(3, states, 5)
    if position is not None:
        theirs.snapshot(3, {"0xfe00::words.txt": position}, 5, LINES)
    theirs.counted(0, 4)
    theirs.collected(3)
    return theirs


def run(python: str, directory: Path, *words: str, code: int = 0) -> None:
    """Run a module of Bytewax to its end."""
    done = subprocess.run([python, "-m", *words], cwd=directory, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
