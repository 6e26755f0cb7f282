"""Real files that grow, rotate, vanish and are rewritten: no line lost or repeated, or a clear error."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.appended.content import Shape, read_task
from recovery.appended.files import LocalFiles, OpenFile
from recovery.appended.options import parse_options
from recovery.appended.planner import KEPT_LOST_FILES, Planner
from recovery.appended.reach import TaskFiles
from recovery.errors import ConfigurationError, InputRewrittenError, RecoveryError, StorageError

SHAPE = Shape(pa.schema([("value", pa.string()), ("file", pa.string()), ("offset", pa.int64())]))
Offset = dict[str, Any]
Row = tuple[str, str, int]


class Query:
    """A streaming query in miniature: its position goes through JSON, its planner can be a new process's."""

    def __init__(self, path: Path | str, **options: str) -> None:
        self.options = parse_options({"path": str(path), **options})
        self.restart()
        self.at = self.planner.initial()

    def restart(self) -> None:
        self.planner = Planner(self.options, LocalFiles(), cores=2)

    def plan(self, max_bytes: int | None = None) -> tuple[Offset, Offset]:
        start = json.loads(json.dumps(self.at))
        self.at = json.loads(json.dumps(self.planner.latest(start, max_bytes)))
        return start, self.at

    def read(self, start: Offset, end: Offset) -> list[Row]:
        with TaskFiles(LocalFiles()) as files:
            return [
                (row["value"], Path(row["file"]).name, row["offset"])
                for task in self.planner.tasks(start, end)
                for batch in read_task(task, files, SHAPE)
                for row in batch.to_pylist()
            ]

    def batch(self, max_bytes: int | None = None) -> list[Row]:
        return self.read(*self.plan(max_bytes))

    def values(self, max_bytes: int | None = None) -> list[str]:
        return [value for value, _, _ in self.batch(max_bytes)]

    def available_now(self, max_bytes: int | None = None) -> list[list[str]]:
        """A run to the end that is fixed at its start: the values of each batch."""
        self.restart()
        self.planner.fix_end()
        batches = []
        while (pair := self.plan(max_bytes))[0] != pair[1]:
            batches.append([value for value, _, _ in self.read(*pair)])
        return batches


def append(path: Path, text: str | bytes) -> None:
    with path.open("ab") as out:
        out.write(text.encode() if isinstance(text, str) else text)


def shift(log: Path) -> None:
    """What logrotate does: app.log.1 becomes app.log.2, then app.log becomes app.log.1."""
    generations = [path for path in log.parent.glob(log.name + ".*") if path.suffix[1:].isdigit()]
    for path in sorted(generations, key=lambda path: -int(path.suffix[1:])):
        path.rename(log.with_name(f"{log.name}.{int(path.suffix[1:]) + 1}"))
    log.rename(log.with_name(log.name + ".1"))


def tick(directory: Path) -> None:
    """Wait until the clock of the file system has gone on: a change that follows has a later time."""
    probe = directory / ".probe"
    probe.touch()
    before = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == before:
        time.sleep(0.001)
        probe.touch()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "logs" / "app.log"
    path.parent.mkdir()
    return path


PATHS = pytest.mark.parametrize("path_of", [lambda log: log, lambda log: log.parent], ids=["file", "directory"])
PathOf = Callable[[Path], Path]
LONG = "".join(f"line {i} of a log that is long enough to be told apart\n" for i in range(200))

# --- growth


@PATHS
def test_appended_lines_come_once(log: Path, path_of: PathOf) -> None:
    """Each batch has the lines that were completed since the last, with file and offset."""
    append(log, "a\nb\nhal")
    query = Query(path_of(log))
    assert query.batch() == [("a", "app.log", 0), ("b", "app.log", 2)]
    assert query.batch() == []
    append(log, "f\nc\n")
    query.restart()
    assert query.batch() == [("half", "app.log", 4), ("c", "app.log", 9)]
    assert query.batch() == []


def test_nothing_new_is_the_same_offset(log: Path) -> None:
    """Without a new line or file the end is the start, so no batch runs; not even for half lines and renames."""
    append(log, "a\n")
    query = Query(log)
    query.batch()
    append(log, "half")
    start, end = query.plan()
    assert json.dumps(start) == json.dumps(end)
    shift(log)
    start, end = query.plan()
    assert json.dumps(start) == json.dumps(end)
    log.touch()
    assert query.batch() == []
    start, end = query.plan()
    assert json.dumps(start) == json.dumps(end)


def test_what_a_directory_names(log: Path) -> None:
    """Files right in it: no hidden or compressed ones, no subdirectories, no pipes; empty ones give nothing."""
    directory = log.parent
    for name in ("b.log", ".hidden", "b.log.1.gz", "odd \n name[1]*é", os.fsdecode(b"bytes\xff")):
        append(directory / name, f"{name!r}\n")
    (directory / "empty").touch()
    (directory / "sub").mkdir()
    append(directory / "sub" / "deep.log", "deep\n")
    os.mkfifo(directory / "pipe")
    (directory / "broken").symlink_to("nowhere")
    rows = Query(directory).batch()
    assert sorted(file for _, file, _ in rows) == sorted(["b.log", "odd \n name[1]*é", "bytes\\xff"])


def test_what_a_glob_names(log: Path) -> None:
    """Names that match, in directories that match; ** goes down; a name that exists is taken as it is."""
    for name in ("a/x.log", "a/x.txt", "b/y.log", "b/c/z.log", "b/.h.log", "[a]*.log"):
        path = log.parent / name
        path.parent.mkdir(exist_ok=True)
        append(path, f"{name}\n")

    def values(pattern: str) -> list[str]:
        return sorted(Query(f"{log.parent}/{pattern}").values())

    assert values("*/*.log") == ["a/x.log", "b/y.log"]
    assert values("**/*.log") == ["[a]*.log", "a/x.log", "b/c/z.log", "b/y.log"]
    assert values("**") == ["[a]*.log", "a/x.log", "a/x.txt", "b/c/z.log", "b/y.log"]
    assert values("[ab]/?.log") == ["a/x.log", "b/y.log"]
    assert values("[a]*.log") == ["[a]*.log"]
    assert values("none*") == []


def test_a_file_with_two_names_is_read_once(log: Path) -> None:
    """Links, hard or symbolic, do not double the lines of the file they lead to."""
    append(log, "a\n")
    query = Query(log.parent)
    (log.parent / "current").symlink_to(log)
    (log.parent / "hard").hardlink_to(log)
    assert query.values() == ["a"]
    append(log, "b\n")
    assert query.values() == ["b"]


def test_a_symbolic_link_that_moves_on(log: Path) -> None:
    """A path that is a link to the present log goes on with the next log when the link changes."""
    first, second, link = (log.parent / name for name in ("first.log", "second.log", "current"))
    append(first, "1\n")
    link.symlink_to(first)
    query = Query(link)
    assert query.values() == ["1"]
    append(first, "2\n")
    append(second, "3\n")
    link.unlink()
    link.symlink_to(second)
    assert query.values() == ["2", "3"]


def test_files_with_equal_beginnings_are_kept_apart(log: Path) -> None:
    """Files that share a header, or all of what was read, are followed each for itself."""
    a, b = log.with_name("a.csv"), log.with_name("b.csv")
    append(a, "header\n")
    append(b, "header\n")
    query = Query(log.parent)
    assert query.values() == ["header"] * 2
    append(a, "1\n")
    append(b, "2\n")
    a.rename(log.with_name("c.csv"))
    b.rename(log.with_name("d.csv"))
    query.restart()
    assert sorted(query.values()) == ["1", "2"]


def test_a_copy_is_a_file_of_its_own(log: Path) -> None:
    """A copy under a name that no rotation gives is read like any new file."""
    append(log, LONG)
    query = Query(log.parent)
    assert len(query.values()) == 200
    shutil.copy(log, log.with_name("copy.log"))
    assert query.values() == LONG.splitlines()
    append(log, "end\n")
    assert query.values() == ["end"]


# --- limits and the end of input


def test_a_limit_cuts_a_backlog_into_batches(log: Path) -> None:
    """Batches stay within the limit, always have a line, and together are the input."""
    append(log, "1\n22\n" + "x" * 50 + "\n4\n")
    append(log.with_name("b.log"), "5\n6\n")
    query = Query(log.parent)
    batches = []
    while batch := query.values(max_bytes=5):
        batches.append(batch)
        query.restart()
    assert sorted(value for batch in batches for value in batch) == sorted(["1", "22", "x" * 50, "4", "5", "6"])
    assert all(len(batch) == 1 or sum(len(v) + 1 for v in batch) <= 5 for batch in batches)


@PATHS
def test_available_now_ends_where_it_was_fixed(log: Path, path_of: PathOf) -> None:
    """Lines, files and generations that come while it runs belong to the next run."""
    append(log, "1\n2\n3\n")
    query = Query(path_of(log))
    query.restart()
    query.planner.fix_end()
    append(log, "4\n")
    append(log.with_name("b.log"), "9\n")
    assert query.values(max_bytes=2) == ["1"]
    shift(log)
    append(log, "5\n")
    assert query.values(max_bytes=2) == ["2"]
    assert query.values() == ["3"]
    assert query.values() == []
    now = [value for batch in query.available_now() for value in batch]
    assert sorted(now) == ["4", "5"] + ["9"] * (path_of(log) != log)


def test_available_now_reads_what_was_rotated_out_of_the_path(log: Path) -> None:
    """A run to the end includes the rest of files that only a rotation's name leads to, and those between."""
    append(log, "1\n")
    query = Query(log)
    assert query.available_now() == [["1"]]
    append(log, "2\n")
    for i in (3, 4, 5):
        shift(log)
        append(log, f"{i}\n")
    assert sorted(value for batch in query.available_now(max_bytes=2) for value in batch) == ["2", "3", "4", "5"]
    assert query.available_now() == []


def test_a_half_line_is_held_until_it_is_whole(log: Path) -> None:
    """By default a last line without line end waits, also at the end of a run."""
    append(log, "a\nhalf")
    query = Query(log)
    assert query.available_now() == [["a"]]
    append(log, "\n")
    assert query.available_now() == [["half"]]


def test_a_half_line_is_taken_at_the_end_where_asked(log: Path) -> None:
    """lastLine=take gives it at the end of a run, not before; the line end that follows is no line of its own."""
    append(log, "a\nhalf")
    query = Query(log, lastLine="take")
    assert query.values() == ["a"]
    assert query.available_now() == [["half"]]
    append(log, "\nb\nrest")
    assert query.available_now() == [["b", "rest"]]
    append(log, " of it\r\n")
    assert query.available_now() == [[" of it"]]


def test_a_line_that_is_being_written_is_not_taken(log: Path) -> None:
    """lastLine=take leaves a line alone that has grown since the end was fixed."""
    append(log, "a\nha")
    query = Query(log, lastLine="take")
    query.planner.fix_end()
    append(log, "lf\n")
    assert query.values() == ["a"]
    assert query.values() == []
    assert query.available_now() == [["half"]]


def test_a_byte_order_mark_alone_is_no_line(log: Path) -> None:
    """A file that is only a byte order mark so far gives nothing, whatever is taken."""
    append(log, b"\xef\xbb\xbf")
    query = Query(log, lastLine="take")
    assert query.available_now() in ([], [[]])
    append(log, "a\n")
    assert query.available_now() == [["a"]]


# --- rotation by renaming


@PATHS
@pytest.mark.parametrize("restart", [False, True])
def test_a_renamed_log_is_read_to_its_end(log: Path, path_of: PathOf, restart: bool) -> None:
    """What was appended before and after the rotation comes once, and the new log from its beginning."""
    append(log, "1\n2\n")
    query = Query(path_of(log))
    assert query.values() == ["1", "2"]
    append(log, "3\n")
    shift(log)
    if restart:
        query.restart()
    assert query.batch() == [("3", "app.log.1", 4)]
    append(log.with_name("app.log.1"), "4\n")
    append(log, "1\n2\n5\n")
    assert query.batch() == [("4", "app.log.1", 6), ("1", "app.log", 0), ("2", "app.log", 2), ("5", "app.log", 4)]
    shift(log)
    append(log, "1\n")
    assert query.batch() == [("1", "app.log", 0)]


@pytest.mark.parametrize(
    "names",
    [
        ("app.log.3", "app.log.2", "app.log.1"),
        ("app.log-20240101", "app.log-20240102", "app.log-20240103"),
        ("app-1.log", "app-2.log", "app-3.log"),
    ],
)
def test_generations_that_were_never_seen_are_read(log: Path, names: tuple[str, ...]) -> None:
    """A log rotated several times between two looks: the generations between are read although the path is one name."""
    append(log, "0\n")
    old = log.with_name(names[0].replace("3", "4") if names[0].endswith("3") else "app.log-20231231")
    log.rename(old)
    append(log, "1\n")
    query = Query(log)
    assert query.values() == ["1"]
    append(log, "2\n")
    for i, name in enumerate(names):
        log.rename(log.with_name(name))
        append(log, f"{3 + i}\n")
    os.utime(old, ns=(1, 1))
    query.restart()
    assert [query.values(max_bytes=2) for _ in range(5)] == [["2"], ["3"], ["4"], ["5"], []]


def test_equal_beginnings_do_not_confuse_a_rotation(log: Path) -> None:
    """Only the header was read when the log was rotated, and the new one has the same header."""
    append(log, "header\n")
    query = Query(log)
    assert query.values() == ["header"]
    append(log, "old\n")
    shift(log)
    append(log, "header\nnew\n")
    assert query.values() == ["old", "header", "new"]


def test_rotation_removes_what_was_read(log: Path) -> None:
    """Generations that were read to their end may be deleted by rotation, whether the path names them or not."""
    append(log.with_name("app.log.1"), "0\n")
    os.utime(log.with_name("app.log.1"), ns=(1, 1))
    append(log, "1\n")
    queries = [Query(log), Query(log.parent)]
    assert [sorted(query.values()) for query in queries] == [["1"], ["0", "1"]]
    for i in range(2, 6):
        log.with_name("app.log.2").unlink(missing_ok=True)
        shift(log)
        append(log, f"{i}\n")
        assert [query.values() for query in queries] == [[f"{i}"]] * 2


def test_rotation_removes_and_reuses_names_between_two_looks(log: Path) -> None:
    """A removed generation's name may be another's by now, one that was never seen: it is read."""
    append(log.with_name("app.log.1"), "0\n")
    append(log, "1\n")
    query = Query(log.parent)
    query.batch()
    for i in (2, 3):
        shift(log)
        append(log, f"{i}\n")
    log.with_name("app.log.3").unlink()
    query.restart()
    assert query.values() == ["2", "3"]


def test_a_rotated_file_that_is_edited_is_an_error(log: Path) -> None:
    """Without a rotation, another content under a rotated name is a rewritten file, not a new one."""
    append(log.with_name("app.log.1"), "0\n")
    append(log, "1\n")
    query = Query(log.parent)
    query.batch()
    replace(log.with_name("app.log.1"), "edited\n")
    with pytest.raises(InputRewrittenError, match=r"app\.log\.1: The file no longer begins"):
        query.batch()


@pytest.mark.parametrize("unread", ["2\n", "half"])
def test_rotation_may_not_remove_what_was_not_read(log: Path, unread: str) -> None:
    """A generation that is deleted with unread bytes in it is an error."""
    append(log, "1\n")
    query = Query(log)
    query.batch()
    append(log, unread)
    shift(log)
    append(log, "3\n")
    if unread == "half":
        query.batch()
    log.with_name("app.log.1").unlink()
    append(log, "4\n")
    query.restart()
    with pytest.raises(InputRewrittenError):
        query.batch()


# --- rotation by copying and truncating


@PATHS
def test_a_copied_and_truncated_log_is_read_to_its_end(log: Path, path_of: PathOf) -> None:
    """The copy goes on where the log was read to, the truncated log begins again."""
    append(log, "1\n2\n")
    query = Query(path_of(log))
    query.batch()
    append(log, "3\n")
    shutil.copy(log, log.with_name("app.log.1"))
    log.write_text("other\n")
    query.restart()
    assert query.values() == ["3", "other"]
    append(log, "more\n")
    assert query.values() == ["more"]


@PATHS
def test_a_copy_in_the_making_is_not_read(log: Path, path_of: PathOf) -> None:
    """While a rotation copies the log, its lines do not come twice; afterwards nothing is missing."""
    append(log, LONG)
    query = Query(path_of(log))
    assert len(query.values()) == 200
    copy = log.with_name("app.log.1")
    for length in (1000, len(LONG)):
        copy.write_text(LONG[:length])
        assert query.values() == []
    append(log, "late\n")
    assert query.values() == ["late"]
    append(copy, "late\nlater\n")
    log.write_text("")
    assert query.values() == ["later"]
    append(log, "new\n")
    assert query.values() == ["new"]


def test_a_copy_of_a_short_log(log: Path) -> None:
    """However little is in it."""
    append(log, "one\ntwo\n")
    query = Query(log.parent)
    assert query.values() == ["one", "two"]
    shutil.copy(log, log.with_name("app.log.1"))
    assert query.values() == []
    log.write_text("")
    assert query.values() == []
    append(log, "three\n")
    assert query.values() == ["three"]


def test_a_copy_that_stays_is_a_file_of_its_own(log: Path) -> None:
    """A copy under a rotation's name that is a minute old, or as old as the log to the query, is read."""
    append(log, LONG)
    shutil.copy(log, log.with_name("app.log.1"))
    query = Query(log.parent)
    assert len(query.values()) == 400
    shutil.copy(log, log.with_name("app.log.2"))
    assert query.values() == []
    query.planner = Planner(query.options, LocalFiles(), cores=1, clock_ns=lambda: time.time_ns() + 61 * 10**9)
    assert query.values() == LONG.splitlines()


def test_truncated_without_a_copy_is_an_error(log: Path) -> None:
    """A log that was compressed and truncated in one go cannot be followed: an error, not a gap."""
    append(log, "1\n2\n")
    query = Query(log)
    query.batch()
    append(log, "3\n")
    log.with_name("app.log.1.gz").write_bytes(b"\x1f\x8b...")
    log.write_text("4\n")
    with pytest.raises(InputRewrittenError, match=r"(?s)app\.log.*has 2 bytes, but 4 were read.*onRewrite.*restart"):
        query.batch()


# --- rewriting


def replace(log: Path, text: str) -> None:
    new = log.with_name(".new")
    new.write_text(text)
    new.rename(log)


@PATHS
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda log: log.write_text("x\n"), "has 2 bytes, but 4 were read"),
        (lambda log: log.write_text(""), "has 0 bytes"),
        (lambda log: log.write_text("9\n2\n3\n"), "no longer begins with the 4 bytes"),
        (lambda log: replace(log, "9\n8\n7\n"), "no longer begins with the 4 bytes"),
    ],
    ids=["shorter", "empty", "rewritten", "replaced"],
)
def test_a_rewritten_file_is_an_error_or_begins_again(
    log: Path, path_of: PathOf, change: Callable[[Path], Any], message: str
) -> None:
    """The error names the file and the choice; with onRewrite=restart the file is read from its beginning."""
    append(log, "1\n2\n")
    strict, lenient = Query(path_of(log)), Query(path_of(log), onRewrite="restart")
    assert strict.values() == lenient.values() == ["1", "2"]
    change(log)
    for _ in range(2):
        with pytest.raises(InputRewrittenError, match=f"(?s){log}.*{message}.*onRewrite.*restart"):
            strict.batch()
        strict.restart()
    assert lenient.values() == log.read_text().splitlines()
    append(log, "more\n")
    lenient.restart()
    assert lenient.values() == ["more"]


def test_a_rewrite_beyond_the_first_bytes_is_seen(log: Path) -> None:
    """The bytes just before the place read to count as well as the first ones."""
    append(log, LONG)
    query = Query(log)
    query.batch()
    log.write_text(LONG[:-20] + "x" * 30 + "\n")
    with pytest.raises(InputRewrittenError, match="no longer begins"):
        query.batch()


def test_an_identical_replacement_continues(log: Path) -> None:
    """A file that was copied back, or saved by an editor with the same beginning, is the same file."""
    append(log, "1\n2\n")
    query = Query(log)
    query.batch()
    replace(log, "1\n2\n3\n")
    assert query.values() == ["3"]


def test_the_whole_input_may_move(tmp_path: Path, log: Path) -> None:
    """Copied to another directory or machine, under the same names, everything goes on where it was."""
    append(log, "1\n")
    append(log.with_name("b.log"), LONG)
    query = Query(log.parent)
    assert len(query.values()) == 201
    shutil.copytree(log.parent, tmp_path / "moved")
    append(tmp_path / "moved" / "app.log", "2\n")
    moved = Query(tmp_path / "moved")
    moved.at = query.at
    assert moved.values() == ["2"]


def test_another_path_leaves_files_where_they_were(log: Path) -> None:
    """Files that the path names no more are not read, and go on where they were when it names them again."""
    append(log, "1\n")
    append(log.with_name("b.txt"), "2\n")
    query = Query(log)
    query.batch()
    other = Query(f"{log.parent}/*.txt")
    other.at = query.at
    append(log, "3\n")
    assert other.values() == ["2"]
    query.at = other.at
    assert query.values() == ["3"]


# --- missing


@PATHS
def test_a_vanished_file_is_an_error_or_left_out(log: Path, path_of: PathOf) -> None:
    """The error names the file and the choice; with onMissing=ignore the rest goes on, and so does the file if
    it comes back."""
    append(log, LONG)
    strict, lenient = Query(path_of(log)), Query(path_of(log), onMissing="ignore")
    assert strict.values() == lenient.values() == LONG.splitlines()
    log.unlink()
    with pytest.raises(InputRewrittenError, match=f"(?s){log}.*is gone.*onMissing.*ignore"):
        strict.batch()
    assert lenient.values() == []
    lenient.restart()
    log.write_text(LONG + "back\n")
    assert lenient.values() == ["back"]


def test_a_file_that_was_seen_but_never_read_is_missed(log: Path) -> None:
    """A file known only as a backlog is an error when it vanishes, and is followed when it is renamed."""
    append(log, "1\n1\n1\n")
    b = log.with_name("b.log")
    append(b, "2\n")
    query = Query(f"{log.parent}/*.log")
    assert query.values(max_bytes=4) == ["1", "1"]
    b.rename(log.with_name("b.log.1"))
    assert query.values(max_bytes=2) == ["2"] or query.values(max_bytes=2) == ["2"]
    query = Query(f"{log.parent}/*.log")
    append(b, "3\n")
    query.plan(max_bytes=4)
    b.unlink()
    with pytest.raises(InputRewrittenError, match=r"b\.log: The file is gone\. 0 bytes were read from it; 2 more"):
        query.plan()


def test_a_missing_directory_is_an_error_even_if_missing_files_are_ignored(log: Path) -> None:
    """An unmounted file system is not taken for vanished files, neither while running nor at a restart."""
    append(log, "1\n")
    query = Query(log.parent, onMissing="ignore")
    query.batch()
    log.parent.rename(log.parent.with_name("elsewhere"))
    with pytest.raises(StorageError, match="directory does not exist"):
        query.batch()
    query.restart()
    with pytest.raises(StorageError, match="The path matches no file"):
        query.batch()


def test_bytes_that_are_reserved_ahead_are_awaited(log: Path) -> None:
    """A file that is extended with NUL bytes first and filled in later gives its lines when they are there."""
    append(log, b"\0" * 100)
    query = Query(log)
    assert query.values() == []
    with log.open("r+b") as out:
        out.write(b"1\n")
    assert query.values() == ["1"]
    with log.open("r+b") as out:
        out.seek(2)
        out.write(b"2\n")
    assert query.values() == ["2"]


@pytest.mark.parametrize("name", ["nothing.log", "nowhere/app.log", "app.log.gz", "pipe"])
def test_a_path_that_cannot_be_read_is_refused_immediately(log: Path, name: str) -> None:
    """A missing file or directory, a compressed file and a pipe are errors before anything is read."""
    os.mkfifo(log.parent / "pipe")
    with pytest.raises((ConfigurationError, StorageError), match=name.partition("/")[0]):
        Query(log.parent / name)


def test_lost_positions_do_not_pile_up_for_ever(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of vanished files only the latest are remembered."""
    monkeypatch.setattr("recovery.appended.planner.KEPT_LOST_FILES", 3)
    assert KEPT_LOST_FILES >= 1000
    query = Query(log.parent, onMissing="ignore")
    for i in range(10):
        append(log.with_name(f"{i}.log"), f"{i}\n")
        assert query.values() == [f"{i}"]
        log.with_name(f"{i}.log").unlink()
    assert len(query.at["files"]) == 4


def test_files_that_the_path_does_not_name_stay_where_they_are(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many: when it names them again, nothing comes twice."""
    monkeypatch.setattr("recovery.appended.planner.KEPT_LOST_FILES", 3)
    for number in range(10):
        append(log.with_name(f"b{number}.log"), f"{number}\n")
    append(log.with_name("a.log"), "a\n")
    query = Query(log.parent / "*.log")
    assert len(query.values()) == 11
    every, query.options = query.options, parse_options({"path": str(log.parent / "a*.log")})
    query.restart()
    append(log.with_name("a.log"), "more\n")
    assert query.values() == ["more"]
    query.options = every
    query.restart()
    assert query.values() == []
    append(log.with_name("b0.log"), "more of b0\n")
    assert query.values() == ["more of b0"]


# --- planning again, and reading while files change


@PATHS
def test_a_batch_is_read_again_after_a_crash(log: Path, path_of: PathOf) -> None:
    """The same offsets give the same rows in a new process, when the files have grown and were rotated since."""
    append(log, "1\n2\nhalf")
    query = Query(path_of(log))
    pair = query.plan()
    rows = query.read(*pair)
    append(log, " line\n3\n")
    shift(log)
    append(log, "1\n2\n")
    query.restart()
    assert query.read(*pair) == rows
    shift(log)
    query.restart()
    assert query.read(*pair) == rows
    assert query.values() == ["half line", "3", "1", "2"]


def test_a_batch_that_cannot_be_read_again_is_an_error(log: Path) -> None:
    """Lines that were planned and are gone raise the error of what happened; the options leave them out."""
    append(log, "1\n")
    query = Query(log)
    pair = query.plan()
    log.write_text("9\n")
    with pytest.raises(InputRewrittenError, match="no longer begins"):
        query.read(*pair)
    assert Query(log, onRewrite="restart").read(*pair) == []
    log.unlink()
    with pytest.raises(InputRewrittenError, match="is gone"):
        query.read(*pair)
    log.touch()
    ignoring = Query(log, onMissing="ignore")
    log.unlink()
    assert ignoring.read(*pair) == []


class RotatingFiles(LocalFiles):
    """Does something to the files once, before the n-th file is opened or the n-th read."""

    def __init__(self, change: Callable[[], None], *, at_open: int = 0, at_read: int = 0) -> None:
        self._change = change
        self._opens = at_open
        self._reads = at_read

    def open(self, path: str) -> OpenFile | None:
        self._opens -= 1
        if self._opens == 0:
            self._change()
        opened = super().open(path)
        if opened is not None:
            read = opened.read

            def counted(offset: int, length: int) -> bytes:
                self._reads -= 1
                if self._reads == 0:
                    self._change()
                return read(offset, length)

            opened.read = counted  # type: ignore[method-assign]
        return opened


def copy_and_truncate(log: Path) -> None:
    shutil.copy(log, log.with_name("app.log.1"))
    log.write_text("")
    append(log, "something else altogether\n" * 1000)


@pytest.mark.parametrize("rotate", [shift, copy_and_truncate])
@pytest.mark.parametrize("when", [{"at_open": n} for n in (1, 2)] + [{"at_read": n} for n in range(1, 30, 3)])
def test_a_task_reads_on_through_a_rotation(log: Path, rotate: Callable[[Path], None], when: dict[str, int]) -> None:
    """Whenever a rotation comes while a task reads, the task gets the lines that were planned for it."""
    append(log, LONG)
    query = Query(log, partitionBytes="1000")
    pair = query.plan()
    tasks = query.planner.tasks(*pair)
    values: list[str] = []
    shape = Shape(SHAPE.schema, window_bytes=300)
    for task in tasks:
        with TaskFiles(RotatingFiles(lambda: rotate(log), **when) if task is tasks[3] else LocalFiles()) as files:
            for batch in read_task(task, files, shape):
                values += batch.column("value").to_pylist()
    assert values == LONG.splitlines()


@pytest.mark.parametrize("rotate", [shift, copy_and_truncate])
@pytest.mark.parametrize("when", [{"at_open": n} for n in range(1, 8)] + [{"at_read": n} for n in range(1, 10)])
def test_a_plan_is_right_through_a_rotation(log: Path, rotate: Callable[[Path], None], when: dict[str, int]) -> None:
    """Whenever a rotation comes while the next batch is planned, no line is lost or repeated."""
    append(log, LONG)
    query = Query(log)
    values = query.values()
    append(log, "more\n")
    changed = []
    files = RotatingFiles(lambda: changed.append(rotate(log)), **when)
    query.planner = Planner(query.options, files, cores=2)
    values += query.values()
    query.restart()
    values += query.values()
    rest = ["something else altogether"] * 1000 if changed and rotate is copy_and_truncate else []
    assert values == [*LONG.splitlines(), "more", *rest]


def test_a_task_whose_lines_are_gone_is_an_error(log: Path) -> None:
    """A file that is rewritten between planning and reading is never read as if it were the old one."""
    append(log, LONG)
    query = Query(log)
    pair = query.plan()
    tasks = query.planner.tasks(*pair)
    log.write_text("x" * len(LONG) + "\n")
    with TaskFiles(LocalFiles()) as files, pytest.raises(InputRewrittenError, match=str(log)):
        list(read_task(tasks[0], files, SHAPE))


def test_a_copy_on_another_host_is_the_same_file(log: Path) -> None:
    """With another number, time and owner; other content is an error that names the host."""
    append(log, LONG)
    query = Query(log, sharedFiles="true")
    tasks = query.planner.tasks(*query.plan())
    copy = log.with_name("copy")
    copy.write_text(LONG)
    copy.replace(log)
    with TaskFiles(LocalFiles(), shared=True) as files:
        batches = list(read_task(tasks[0], files, SHAPE))
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == LONG.splitlines()
    log.unlink()
    with (
        TaskFiles(LocalFiles(), shared=True) as files,
        pytest.raises(StorageError, match=f"host {socket.gethostname()} does not see this file"),
    ):
        list(read_task(tasks[0], files, SHAPE))


def test_a_file_that_may_not_be_read_is_an_error(log: Path) -> None:
    """Without permission nothing is skipped: the error names the file."""

    class Forbidding(LocalFiles):
        def open(self, path: str) -> OpenFile | None:
            raise PermissionError(13, "Permission denied", path)

    append(log, "1\n")
    query = Query(log)
    query.planner = Planner(query.options, Forbidding(), cores=1)
    with pytest.raises(StorageError, match=str(log)):
        query.batch()


# --- any schedule


def expected_values(content: bytes) -> list[str]:
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")[:-1]
    return [line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines]


TEXT = st.lists(st.sampled_from([b"\n", b"a", b"\r\n", b"b\n", b"\xff", b"\xef\xbb\xbf"]), max_size=6).map(b"".join)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), TEXT),
        st.tuples(st.just("append to the rotated"), TEXT),
        st.tuples(st.just("rotate"), st.just(b"")),
        st.tuples(st.just("copy and truncate"), st.just(b"")),
        st.tuples(st.just("batch"), st.sampled_from([None, 1, 3, 10])),
        st.tuples(st.just("plan and crash"), st.sampled_from([None, 1, 3, 10])),
        st.tuples(st.just("available now"), st.sampled_from([None, 2])),
        st.tuples(st.just("restart"), st.just(b"")),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=150)
@given(
    steps=STEPS,
    kind=st.sampled_from(["file", "directory", "glob"]),
    partition_bytes=st.sampled_from([1, 4, 99]),
    stamped=st.booleans(),
    empty=st.booleans(),
)
def test_any_schedule_gives_every_line_once(
    steps: list[tuple[str, Any]], kind: str, partition_bytes: int, stamped: bool, empty: bool
) -> None:
    """Appends, rotations, batches, crashes and restarts in any order, from a log with lines or an empty one: the values
    are the files' lines, each once.

    A log that was truncated and then begins exactly as before cannot be told from one that has grown, so where
    logs are truncated each generation begins with a line of its own.
    """
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "app.log"
        generations = [bytearray()]
        names = [log]
        copies_of_nothing: set[int] = set()
        got: list[str] = []

        def write(generation: int, text: bytes) -> None:
            if generation % len(names) in copies_of_nothing:
                return
            generations[generation] += text
            append(names[generation], text)

        def rotated(new_names: Callable[[], None]) -> None:
            tick(log.parent)
            new_names()
            for i, name in enumerate(names):
                names[i] = log.with_name(f"app.log.{int(name.suffix[1:]) + 1}" if i < len(names) - 1 else "app.log.1")
            names.append(log)
            generations.append(bytearray())
            write(-1, b"generation %d\n" % len(names) if stamped else b"\n")

        def copied() -> None:
            if not generations[-1]:
                copies_of_nothing.add(len(names) - 1)
            for name in names[:-1]:
                name.rename(log.with_name(f".{name.name}"))
            for name in names[:-1]:
                log.with_name(f".{name.name}").rename(log.with_name(f"app.log.{int(name.suffix[1:]) + 1}"))
            shutil.copy(log, log.with_name("app.log.1"))
            log.write_bytes(b"")

        write(0, b"" if empty else b"generation 1\n" if stamped else b"\n")
        path = {"file": log, "directory": log.parent, "glob": f"{directory}/app*"}[kind]
        query = Query(path, partitionBytes=str(partition_bytes))
        got += query.values()
        for step, value in steps:
            if step == "append":
                write(-1, value)
            elif step == "append to the rotated" and len(names) > 1:
                write(-2, value)
            elif step == "rotate":
                rotated(lambda: shift(log))
            elif step == "copy and truncate" and stamped:
                rotated(copied)
            elif step == "batch":
                got += query.values(max_bytes=value)
            elif step == "plan and crash":
                pair = query.plan(max_bytes=value)
                query.read(*pair)
                write(-1, b"x")
                query.restart()
                got += [row[0] for row in query.read(*pair)]
            elif step == "available now":
                got += [v for batch in query.available_now(max_bytes=value) for v in batch]
                query.restart()
            elif step == "restart":
                query.restart()
        for i in range(len(names)):
            write(i, b"\n")
        # A copy in the making is one no more.
        query.planner = Planner(query.options, LocalFiles(), cores=1, clock_ns=lambda: time.time_ns() + 61 * 10**9)
        while (pair := query.plan())[0] != pair[1]:
            got += [row[0] for row in query.read(*pair)]
        assert Counter(got) == Counter(v for content in generations for v in expected_values(bytes(content)))


def test_errors_have_no_bytes_that_cannot_be_printed(log: Path) -> None:
    """A name that is not UTF-8 can appear in an error's text."""
    odd = log.with_name(os.fsdecode(b"odd\xff.log"))
    append(odd, "1\n")
    query = Query(odd)
    query.batch()
    odd.write_text("")
    with pytest.raises(RecoveryError) as caught:
        query.batch()
    assert b"odd\\xff.log" in str(caught.value).encode()
