"""Files that were empty, or not there, at the first scan: recognised without content, or an error."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recovery.appended.files import LocalFiles
from recovery.appended.planner import Planner
from recovery.appended.position import InputOffset
from recovery.errors import InputRewrittenError
from tests.appended.test_rotation import Query, append, replace, shift, tick


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """An empty log, in a directory of its own."""
    path = tmp_path / "logs" / "app.log"
    path.parent.mkdir()
    path.touch()
    return path


def seen_empty(path: Path | str, **options: str) -> Query:
    """A query that has scanned its input and read nothing."""
    query = Query(path, **options)
    assert query.values() == []
    assert query.at["files"] or "*" in str(path)
    query.restart()
    for directory in {Path(path).parent, Path(path)}:
        if directory.is_dir():
            tick(directory)
    return query


def compress(path: Path) -> Path:
    """What gzip does: the compressed file keeps the time."""
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    os.utime(packed, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    path.unlink()
    return packed


def test_the_first_scan_is_a_position_of_its_own(log: Path) -> None:
    """The first scan is saved although nothing was read, also without any file; a second scan changes nothing."""
    for path in (log, log.parent, f"{log.parent}/none*"):
        query = Query(path)
        start, end = query.plan()
        assert json.dumps(start) != json.dumps(end)
        start, end = query.plan()
        assert json.dumps(start) == json.dumps(end)


@pytest.mark.parametrize("pattern", ["app.log", "", "*.log", "app*"])
def test_an_empty_log_is_filled_and_moved(log: Path, pattern: str) -> None:
    """The lines of a rotated log come under its next name, and so do those of the log that follows."""
    query = seen_empty(log.parent / pattern)
    append(log, "1\n2\n")
    shift(log)
    append(log, "3\n")
    assert query.values() == ["1", "2", "3"]


def test_a_copy_that_stays_while_a_log_was_empty(log: Path) -> None:
    """After a minute it counts as a generation, like a copy in a directory that is input."""
    query = seen_empty(log)
    append(log, "1\n")
    shutil.copy(log, log.with_name("app.log.1"))
    assert query.values() == []
    query.planner = Planner(query.options, LocalFiles(), cores=1, clock_ns=lambda: time.time_ns() + 61 * 10**9)
    assert query.values() == ["1", "1"]


def test_generations_that_were_there_at_the_first_scan_are_no_input(log: Path) -> None:
    """A path of one file reads that, and what rotation makes of it: not what was rotated before."""
    append(log.with_name("app.log.1"), "old\n")
    query = seen_empty(log)
    append(log, "1\n")
    shift(log)
    append(log, "2\n")
    assert query.values() == ["1", "2"]


def test_a_file_of_its_own_is_no_generation(log: Path) -> None:
    """A number behind a dash, before the extension, makes no rotation's name; nor does a backup."""
    report = log.with_name("report.csv")
    report.touch()
    query = seen_empty(report)
    append(report, "1\n")
    append(report.with_name("report-2.csv"), "other\n")
    append(report.with_name("report.csv.bak"), "1\n")
    assert query.values() == ["1"]


def test_a_copy_in_the_making_of_a_log_that_was_empty(log: Path) -> None:
    """While a rotation copies the log, its lines do not come twice; afterwards none is missing."""
    query = seen_empty(log)
    append(log, "1\n2\n")
    copy = shutil.copy(log, log.with_name("app.log.1"))
    assert query.values() == []
    append(log, "3\n")
    append(copy, "3\n")
    log.write_text("")
    assert query.values() == ["1", "2", "3"]
    append(log, "4\n")
    assert query.values() == ["4"]


@pytest.mark.parametrize("held", [False, True], ids=["its inode is free", "its inode stays in use"])
@pytest.mark.parametrize("pattern", ["app.log", "", "*.log"])
def test_a_generation_that_was_compressed_unread_is_an_error(log: Path, pattern: str, held: bool) -> None:
    """The error says which file, and how its lines can still be read; then each line comes once.

    Whether the log that follows gets the inode number of the removed file, which the file system decides, makes no
    difference; while a process has the removed file open, no other file gets that number.
    """
    query, lenient = seen_empty(log.parent / pattern), seen_empty(log.parent / pattern, onMissing="ignore")
    append(log, "1\n")
    shift(log)
    with log.with_name("app.log.1").open() if held else contextlib.nullcontext():
        compressed_unread(log, query, lenient)


@pytest.mark.parametrize("pattern", ["app.log", "", "*.log"])
def test_a_generation_that_was_removed_unread_is_an_error_whatever_was_compressed(log: Path, pattern: str) -> None:
    """The generation after the one that is gone was empty: what its compressed file packs is no trace of the lines."""
    query = seen_empty(log.parent / pattern)
    append(log, "1\n")
    shift(log)
    log.touch()
    with log.with_name("app.log.1").open():
        shift(log)
        log.with_name("app.log.2").unlink()
        compress(log.with_name("app.log.1"))
        append(log, "2\n")
        with pytest.raises(InputRewrittenError, match=r"app\.log: The file is gone"):
            query.batch()


def compressed_unread(log: Path, query: Query, lenient: Query) -> None:
    """Compress the only generation of a log; the queries have not read the log's line, "1"."""
    packed = compress(log.with_name("app.log.1"))
    append(log, "2\n")
    for _ in range(2):
        with pytest.raises(
            InputRewrittenError, match=r"app\.log\.1\.gz: .*compressed before its lines .*(?s:.*)gunzip -k"
        ):
            query.batch()
        query.restart()
    assert lenient.values() == ["2"]
    plain = packed.with_suffix("")
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    os.utime(plain, ns=(packed.stat().st_atime_ns, packed.stat().st_mtime_ns))
    assert sorted(query.values()) == ["1", "2"]
    plain.unlink()
    append(log, "3\n")
    assert query.values() == ["3"]


@pytest.mark.parametrize("pattern", ["app.log", "", "*.log"])
def test_an_empty_generation_may_be_compressed(log: Path, pattern: str) -> None:
    """An idle log may be rotated as often as it likes: there was nothing to read."""
    query = seen_empty(log.parent / pattern)
    for _ in range(2):
        shift(log)
        compress(log.with_name("app.log.1"))
        log.touch()
        tick(log.parent)
        assert query.values() == []
    for i in (2, 3):
        shift(log)
        compress(log.with_name("app.log.1")).rename(log.with_name(f"app.log.{i}.gz"))
        log.touch()
        tick(log.parent)
    append(log, "1\n")
    assert query.values() == ["1"]


@pytest.mark.parametrize(
    "change",
    [
        lambda log: replace(log, "1\n"),
        lambda log: (log.unlink(), log.write_text("1\n")),
        lambda log: append(log, "1\n"),
    ],
    ids=["saved by an editor", "made again", "written to"],
)
@pytest.mark.parametrize("pattern", ["app.log", "", "*.log"])
def test_an_empty_file_may_be_replaced(log: Path, pattern: str, change: Callable[[Path], Any]) -> None:
    """Nothing shows that it had lines, and its name is input: the new one is read from its beginning."""
    query = seen_empty(log.parent / pattern)
    change(log)
    assert query.values() == ["1"]


def test_an_empty_file_may_be_deleted(log: Path) -> None:
    """Such as the lock or the mark of another program."""
    query = seen_empty(log.parent)
    log.unlink()
    append(log.with_name("other"), "1\n")
    assert query.values() == ["1"]
    assert len(query.at["files"]) == 1


def test_a_log_that_was_empty_and_left_the_input_is_an_error(log: Path) -> None:
    """Under a name that is no rotation's it may be another file: the error says where the lines are."""
    query = seen_empty(log)
    append(log, "1\n")
    saved = log.rename(log.with_name("saved"))
    append(log, "2\n")
    with pytest.raises(InputRewrittenError, match=r"app\.log: .*logs/saved.* 2 bytes that were not read"):
        query.batch()
    log.unlink()
    saved.rename(log)
    assert query.values() == ["1"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_link_that_moves_on_from_an_empty_file(log: Path, tmp_path: Path, elsewhere: bool) -> None:
    """The file that it led to is read to its end if it is in the input's directory, else it is an error."""
    first = (tmp_path if elsewhere else log.parent) / "first"
    first.touch()
    link = log.with_name("current")
    link.symlink_to(first)
    query = seen_empty(link)
    append(first, "1\n")
    link.unlink()
    link.symlink_to(log)
    append(log, "2\n")
    if elsewhere:
        with pytest.raises(InputRewrittenError, match="first"):
            query.batch()
        assert Query(link, onMissing="ignore").values() == ["2"]
    else:
        assert query.values() == ["1", "2"]


def test_a_log_that_appears_and_is_rotated_between_two_scans(log: Path) -> None:
    """A glob that names only the log finds its generations, also if no log follows."""
    query = seen_empty(f"{log.parent}/w*.log")
    web = log.with_name("web.log")
    for i in (1, 2):
        append(web, f"{i}\n")
        shift(web)
        tick(log.parent)
    assert query.values() == ["1", "2"]


def test_a_position_of_an_earlier_version_goes_on(log: Path) -> None:
    """An older position has no time of a scan: the next scan is the first, and no line comes again."""
    append(log, "1\n")
    append(log.with_name("app.log.1"), "old\n")
    query = Query(log)
    query.batch()
    del query.at["since"]
    assert InputOffset.from_json(query.at).since_ns == 0
    append(log, "2\n")
    assert query.values() == ["2"]
    assert query.at["since"]
