"""Options, names, limits and cuts: the parts of the `appended` input that are functions of values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.appended.options import Options, parse_options, parse_size
from recovery.appended.plan import (
    FULL_PARTITION_BYTES,
    MAX_PARTITION_BYTES,
    MIN_PARTITION_BYTES,
    Backlog,
    Range,
    cut,
    partition_bytes_for,
    plan_ends,
)
from recovery.appended.position import FilePosition, InputOffset
from recovery.appended.rotation import bases, generation, is_rotation_of, siblings_pattern
from recovery.errors import ConfigurationError, UnsupportedVersionError

UNHURRIED = settings(deadline=None)


class Contents:
    """Line ends of files that are byte strings."""

    def __init__(self, contents: Mapping[int, bytes]) -> None:
        self._contents = contents

    def last(self, number: int, start: int, stop: int) -> int | None:
        found = self._contents[number].rfind(b"\n", start, stop)
        return None if found < 0 else found + 1

    def first(self, number: int, start: int, stop: int) -> int | None:
        found = self._contents[number].find(b"\n", start, stop)
        return None if found < 0 else found + 1


def plan(
    contents: Mapping[int, bytes], max_bytes: int | None, *, turn: int = 0, take_last: bool = False
) -> tuple[dict[int, int], int]:
    groups = [[Backlog(number, 0, len(text), take_last)] for number, text in contents.items()]
    return plan_ends(groups, max_bytes, turn, Contents(contents))


# --- options


def test_options_have_defaults_and_count_in_any_case() -> None:
    """Only a path is needed; names and choices are case-insensitive, sizes have units of 1024."""
    assert parse_options({"path": "/logs"}) == Options("/logs")
    given_options = {
        "PATH": "file:///logs/a%20b?c#d",
        "maxbytespertrigger": "10m",
        "partitionBytes": "64K",
        "LASTLINE": "Take",
        "encodingErrors": "fail",
        "onRewrite": "restart",
        "onMissing": "ignore",
    }
    assert parse_options(given_options) == Options(
        "/logs/a b?c#d", 10 << 20, 64 << 10, "take", "fail", "restart", "ignore"
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("1048576", 1 << 20), ("10m", 10 << 20), ("10 MB", 10 << 20), ("2GiB", 2 << 30), ("7b", 7)],
)
def test_sizes(text: str, size: int) -> None:
    """Sizes are bytes, or k, m, g, t with an optional b."""
    assert parse_size("maxBytesPerTrigger", text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5m", "ten", "10x", "0k"])
def test_an_invalid_size_is_refused_by_name(text: str) -> None:
    """Zero, negative, fractional and unreadable sizes are errors that name the option."""
    with pytest.raises(ConfigurationError, match="maxBytesPerTrigger"):
        parse_options({"path": "/x", "maxBytesPerTrigger": text})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a path"),
        ({"path": "  "}, "needs a path"),
        ({"path": "s3://bucket/x"}, "not local"),
        ({"path": "/x", "maxBytePerTrigger": "1"}, "Did you mean maxBytesPerTrigger"),
        ({"path": "/x", "lastLine": "maybe"}, "lastLine is 'maybe'.*hold, take"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, str], message: str) -> None:
    """A missing or foreign path, a misspelt option and an unknown choice say what is possible."""
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        parse_options(options)


# --- names


@pytest.mark.parametrize(
    "name",
    [
        "app.log.1",
        "app.log.12",
        "app.log-20240131",
        "app.log-20240131-1706659200",
        "app.log.2024-01-31",
        "app.log.2024-01-31_23-59",
        "app.log.2024-01-31T00:00:00Z",
        "app-1.log",
        "app.1.log",
        "app-2024-01-31-1.log",
        "app.log.old",
        "app.log.bak",
    ],
)
def test_names_that_rotations_give(name: str) -> None:
    """Numbers, dates and a few words after the name or before its extension are a rotation's."""
    assert is_rotation_of("app.log", name)


@pytest.mark.parametrize("name", ["app.log", "app.log.gz", "app2.log", "app.log1", "b.log.1", "app.log.x1", ".1"])
def test_names_that_rotations_do_not_give(name: str) -> None:
    """Other names, and the name itself, are no rotation of it."""
    assert not is_rotation_of("app.log", name)


def test_a_numbered_log_is_distinguished_from_its_rotations() -> None:
    """server2.log is no rotation of server1.log, and both have their own."""
    assert "server1.log" not in bases("server2.log")
    assert bases("server2.log.3") == ["server2.log"]


def test_other_generations_are_named_alike() -> None:
    """The generations between two rotations are found by the form of the name, and put in order."""
    pattern = siblings_pattern("app.log", "app.log.3")
    assert pattern is not None
    assert [n for n in ("app.log.2", "app.log.10", "app.log", "app.log.2.gz") if pattern.fullmatch(n)] == [
        "app.log.2",
        "app.log.10",
    ]
    assert siblings_pattern("app.log", "app.log.old") is None
    assert siblings_pattern("app.log", "other.1") is None
    assert generation("app.log", "app.log.2") > generation("app.log", "app.log.3")
    assert generation("app.log", "app-20240201.log") > generation("app.log", "app-20240131.log")


# --- limits


def test_without_a_limit_all_whole_lines_are_planned() -> None:
    """Each file is read to its last line end; one without any is left out."""
    assert plan({1: b"a\nb\nc", 2: b"abc", 3: b"", 4: b"x\n"}, None) == ({1: 4, 4: 2}, 0)


def test_a_last_line_is_taken_where_it_may_be() -> None:
    """With take_last the end of the file ends its last line."""
    assert plan({1: b"a\nb", 2: b"abc"}, None, take_last=True) == ({1: 3, 2: 3}, 0)
    assert plan({1: b"aaaa\nbbbb"}, 2, take_last=True) == ({1: 5}, 1)
    assert plan({1: b"bbbb"}, 2, take_last=True) == ({1: 4}, 0)


def test_the_limit_is_kept_except_for_one_long_line() -> None:
    """A batch stays within its bytes; a first line that is longer is taken all the same, alone."""
    assert plan({1: b"aa\nbb\ncc\n"}, 7) == ({1: 6}, 1)
    assert plan({1: b"a" * 99 + b"\nbb\n", 2: b"c\n"}, 10) == ({1: 100}, 2)


def test_an_unfinished_giant_does_not_stop_the_others() -> None:
    """A file that has only an unfinished line, however long, is passed over."""
    assert plan({1: b"x" * 1000, 2: b"a\n"}, 10) == ({2: 2}, 0)


def test_the_older_generation_comes_first() -> None:
    """A younger generation of a log waits until the older one is read as far as it can be."""
    contents = {1: b"old\nold\nrest", 2: b"new\n"}
    group = [Backlog(1, 0, 12), Backlog(2, 0, 4)]
    assert plan_ends([group], 4, 0, Contents(contents)) == ({1: 4}, 1)
    assert plan_ends([group], 12, 0, Contents(contents)) == ({1: 8, 2: 4}, 0)


@UNHURRIED
@given(
    st.dictionaries(st.integers(1, 9), st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"") + b"\n"))),
    st.integers(1, 40),
)
def test_limited_batches_read_everything_once_and_none_starves(files: dict[int, list[bytes]], max_bytes: int) -> None:
    """Batch after batch, each file is read in whole lines, within the limit, and none waits for ever."""
    contents = {number: b"".join(lines) for number, lines in files.items()}
    offsets = dict.fromkeys(contents, 0)
    turn, waited = 0, dict.fromkeys(contents, 0)
    while any(offsets[n] < len(contents[n]) for n in contents):
        groups = [[Backlog(n, offsets[n], len(contents[n]))] for n in contents]
        ends, turn = plan_ends(groups, max_bytes, turn, Contents(contents))
        assert ends
        planned = sum(end - offsets[n] for n, end in ends.items())
        (first, *_) = ends
        is_one_line = len(ends) == 1 and contents[first].index(b"\n", offsets[first]) + 1 == ends[first]
        assert planned <= max_bytes or is_one_line
        for n in contents:
            if n in ends:
                assert offsets[n] < ends[n]
                assert contents[n][ends[n] - 1 : ends[n]] == b"\n"
                offsets[n], waited[n] = ends[n], 0
            elif offsets[n] < len(contents[n]):
                waited[n] += 1
                assert waited[n] <= len(contents)


# --- cuts


@UNHURRIED
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 300))), st.integers(1, 120))
def test_tasks_cover_each_byte_once(lengths: list[tuple[int, int]], partition_bytes: int) -> None:
    """Slices of all tasks, in order, are the ranges; no task is larger than asked, few are small."""
    position = FilePosition("/a", "a", 0, 0, 0, 1, "")
    ranges = [Range(f"/{i}", position, begin, begin + length) for i, (begin, length) in enumerate(lengths)]
    tasks = cut(ranges, partition_bytes)
    sizes = [sum(piece.stop - piece.start for piece in task) for task in tasks]
    assert all(0 < size <= partition_bytes for size in sizes)
    assert all(a + b > partition_bytes / 2 for a, b in pairwise(sizes))
    pieces = [piece for task in tasks for piece in task]
    for whole in ranges:
        own = [piece for piece in pieces if piece.whole is whole]
        assert [piece.start for piece in own] == [whole.begin, *(piece.stop for piece in own[:-1])]
        assert own[-1].stop == whole.end


def test_default_tasks_keep_every_core_busy_and_are_worth_starting() -> None:
    """Two tasks a core, but not below nor above the bounds."""
    assert partition_bytes_for(1, 2) == MIN_PARTITION_BYTES
    assert partition_bytes_for(4_000_000, 2) == 2_000_000
    assert partition_bytes_for(12 << 20, 2) == FULL_PARTITION_BYTES
    assert partition_bytes_for(64 << 20, 2) == 16 << 20
    assert partition_bytes_for(1 << 40, 2) == MAX_PARTITION_BYTES


# --- offsets


def test_offsets_survive_json() -> None:
    """An offset is JSON on one line, comes back equal, and equal offsets have equal text."""
    files = {
        10: FilePosition("/logs/a\udcff\n.log", "a\udcff\n.log", 7, 9, 5, 3, "ab", unfinished=True),
        2: FilePosition("/logs/b", "b", 0, 0, 6, 4, "cd"),
    }
    offset = InputOffset(files, next_id=11, turn=2, since_ns=1_795_874_973_364_263_356)
    text = json.dumps(offset.to_json())
    assert "\n" not in text
    assert InputOffset.from_json(json.loads(text)) == offset
    assert json.dumps(InputOffset.from_json(json.loads(text)).to_json()) == text


def test_the_bytes_between_two_offsets() -> None:
    """Of files read on and of new ones; a file that is left out since, or no longer there, counts as nothing."""

    def offset(**read: int) -> InputOffset:
        return InputOffset({int(n[1:]): FilePosition("/a", "a", at, at, 5, 3, "ab") for n, at in read.items()})

    assert offset(f1=10, f2=7).bytes_since(InputOffset()) == 17
    assert offset(f1=12, f3=5).bytes_since(offset(f1=10, f2=7)) == 7
    assert offset(f1=10, f2=7).bytes_since(offset(f1=10, f2=7)) == 0


def test_an_offset_of_a_later_version_is_refused() -> None:
    """A saved position that this version cannot read is an error, not a start from the beginning."""
    with pytest.raises(UnsupportedVersionError, match="version 99"):
        InputOffset.from_json({"version": 99, "next": 1, "turn": 0, "files": {}})
