"""Bytes to record batches: every line once, whatever the bytes and wherever they are cut."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.appended.content import Shape, read_task
from recovery.appended.files import LocalFiles
from recovery.appended.line_ends import find_last_line_end, find_line_end
from recovery.appended.plan import Range, Slice, cut
from recovery.appended.position import FilePosition, Read
from recovery.errors import FlowFailedError

UNHURRIED = settings(deadline=None)  # the first example pays for imports
ALL = pa.schema([("value", pa.string()), ("file", pa.string()), ("offset", pa.int64())])
VALUE = pa.schema([("value", pa.string())])

ODD = [b"\n", b"\r\n", b"\r", b"\0", b"\xef\xbb\xbf", b"\xff", b"\xe2\x82", b"\xed\xa0\x80"]
FRAGMENTS = st.sampled_from([*ODD, b"a", b"bc", b" ", "é".encode(), "😀".encode(), b"x" * 40])
CONTENTS = st.lists(FRAGMENTS | st.binary(max_size=6), max_size=40).map(b"".join)


def plain_lines(content: bytes) -> list[tuple[str, int]]:
    """What the lines of a file are, said in the plainest way: (value, offset of the first byte)."""
    lines, offset = [], 0
    for line in content.split(b"\n"):
        text = line.removesuffix(b"\r")
        if offset == 0:
            text = text.removeprefix(b"\xef\xbb\xbf")
        lines.append((text.decode("utf-8", "replace"), offset))
        offset += len(line) + 1
    return lines if lines[-1][1] < len(content) else lines[:-1]


def whole(content: bytes, path: str = "/logs/a.log", begin: int = 0, *, after_unfinished: bool = False) -> Range:
    expected = FilePosition(path, "a.log", len(content), len(content), 0, 1, "")
    return Range(path, expected, begin, len(content), after_unfinished)


def reader(content: bytes) -> Read:
    return lambda offset, length: content[offset : offset + length]


def batches(content: bytes, shape: Shape, *slices: Slice) -> Iterator[pa.RecordBatch]:
    return read_task(slices or (Slice(whole(content), 0, len(content)),), lambda _: reader(content), shape)


def values(content: bytes, **options: str) -> list[str]:
    shape = Shape(VALUE, **options)
    return [value for batch in batches(content, shape) for value in batch.column(0).to_pylist()]


@UNHURRIED
@given(CONTENTS, st.integers(1, 50), st.integers(1, 64), st.integers(1, 9))
def test_every_line_comes_once_wherever_a_range_is_cut(
    content: bytes, partition_bytes: int, window_bytes: int, rows: int
) -> None:
    """Tasks of any size give, put together, the lines of the plain splitting, with their offsets."""
    shape = Shape(ALL, "replace", window_bytes, rows)
    got = []
    for task in cut([whole(content)], partition_bytes):
        for batch in batches(content, shape, *task):
            batch.validate(full=True)
            assert batch.num_rows <= rows
            got += [(row["value"], row["offset"]) for row in batch.to_pylist()]
            assert set(batch.column("file").to_pylist()) == {"/logs/a.log"}
    assert got == plain_lines(content)


@UNHURRIED
@given(CONTENTS, st.data())
def test_consecutive_ranges_equal_the_file(content: bytes, data: st.DataObject) -> None:
    """Batches that end at line ends, one after the other, give the lines of the whole file."""
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    chosen = sorted(data.draw(st.sets(st.sampled_from(ends)) if ends else st.just(set())))
    got = []
    for begin, end in zip([0, *chosen], [*chosen, len(content)], strict=True):
        part = Range("/a", FilePosition("/a", "a", end, end, 0, 1, ""), begin, end)
        for batch in batches(content, Shape(ALL), Slice(part, begin, end)):
            got += [(row["value"], row["offset"]) for row in batch.to_pylist()]
    assert got == plain_lines(content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\n\n\n", ["", "", ""]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\nb\rc\n", ["a\r", "b\rc"]),
        (b"\r\n", [""]),
        (b"\r", [""]),
        (b"a\0b\n\0\n", ["a\0b", "\0"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf\n", [""]),
        (b"\xef\xbb\xbf\r\n", [""]),
        (b"a\xffb\n\xe2\x82\nok\n", ["a\ufffdb", "\ufffd", "ok"]),
        ("é😀\n".encode(), ["é😀"]),
    ],
)
def test_odd_content(content: bytes, expected: list[str]) -> None:
    """Line ends, empty lines, NUL, byte order marks and invalid UTF-8 have the documented outcomes."""
    assert values(content) == expected
    assert [value for value, _ in plain_lines(content)] == expected


def test_a_byte_order_mark_belongs_to_its_line() -> None:
    """The first line of a file with a byte order mark has offset 0, the second begins where it begins."""
    (batch,) = batches(b"\xef\xbb\xbfa\nb\n", Shape(ALL))
    assert batch.column("offset").to_pylist() == [0, 5]


def test_invalid_utf8_fails_where_it_is_to_fail() -> None:
    """encodingErrors=fail names the file and the byte; valid text of any script passes."""
    assert values("ok é\n".encode(), encoding_errors="fail") == ["ok é"]
    with pytest.raises(FlowFailedError, match=r"/logs/a\.log.*bytes at 5 are not UTF-8: b'\\xff"):
        values(b"good\n\xff\n", encoding_errors="fail")


def test_only_asked_columns_are_made_and_in_the_asked_order() -> None:
    """The schema's columns and order decide; without `value` nothing is decoded."""
    schema = pa.schema([("offset", pa.int64()), ("value", pa.string())])
    (batch,) = batches(b"a\nbc\n", Shape(schema))
    assert batch.to_pydict() == {"offset": [0, 2], "value": ["a", "bc"]}
    (batch,) = batches(b"a\n\xff\n", Shape(pa.schema([("offset", pa.int64())]), "fail"))
    assert batch.to_pydict() == {"offset": [0, 2]}


@pytest.mark.parametrize(
    ("rest", "expected"),
    [(b"\n", []), (b"\r\n", []), (b"\nb\n", ["b"]), (b"b\n", ["b"]), (b"\rb\n", ["\rb"]), (b"\n\n", [""]), (b"\r", [])],
)
@pytest.mark.parametrize("partition_bytes", [1, 2, 100])
def test_the_line_end_of_a_taken_line_is_no_line(rest: bytes, expected: list[str], partition_bytes: int) -> None:
    """What follows a last line that was taken unfinished: its line end is skipped, anything else is a line."""
    content = b"taken" + rest
    tasks = cut([whole(content, begin=5, after_unfinished=True)], partition_bytes)
    got = [v for task in tasks for batch in batches(content, Shape(VALUE), *task) for v in batch[0].to_pylist()]
    assert got == expected


def test_small_files_share_batches_and_keep_their_names() -> None:
    """The slices of one task come in few batches, in order; a name that is not UTF-8 is shown readably."""
    contents = {f"/logs/{i}\udcff": b"%d\n" % i for i in range(100)}
    slices = [Slice(whole(content, path), 0, len(content)) for path, content in contents.items()]
    (batch,) = read_task(slices, lambda piece: reader(contents[piece.whole.path]), Shape(ALL))
    assert batch.column("value").to_pylist() == [str(i) for i in range(100)]
    assert batch.column("file").to_pylist() == [f"/logs/{i}\\xff" for i in range(100)]


def test_batches_are_bounded_in_bytes() -> None:
    """No batch is much larger than the window, however many lines there are."""
    content = b"0123456789abcde\n" * 100_000
    sizes = [batch.nbytes for batch in batches(content, Shape(VALUE, window_bytes=1 << 16))]
    assert max(sizes) < 3 << 16
    assert len(sizes) < 50


def test_a_line_of_100_mb_comes_whole_and_without_many_copies(tmp_path: Path) -> None:
    """A line far longer than the window is read in one piece; memory stays below twice its length."""
    path, length = tmp_path / "long.log", 100 << 20
    with path.open("wb") as out:
        out.write(b"before\n")
        for _ in range(100):
            out.write(b"x" * (1 << 20))
        out.write(b"\nafter\n")
    opened = LocalFiles().open(str(path))
    assert opened is not None
    size = path.stat().st_size
    task = (Slice(Range(str(path), FilePosition(str(path), "a", size, size, 0, 1, ""), 0, size), 0, size),)
    lengths = []
    with opened:
        tracemalloc.start()
        try:
            for batch in read_task(task, lambda _: opened.read, Shape(VALUE)):
                lengths += [len(value.as_buffer()) for value in batch.column(0)]
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert lengths == [6, length, 5]
    assert peak_bytes < 2 * length


def test_a_line_that_no_row_can_hold_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line beyond what Arrow can hold is refused by name and place, not cut."""
    monkeypatch.setattr("recovery.appended.content.MAX_LINE_BYTES", 1000)
    content = b"ok\n" + b"x" * 2000 + b"\n"
    with pytest.raises(FlowFailedError, match=r"/logs/a\.log.*line at byte 3 has 2001 bytes"):
        list(batches(content, Shape(VALUE, window_bytes=100)))
    # Each byte that is not text takes three.
    with pytest.raises(FlowFailedError, match="longest possible is 1000"):
        list(batches(b"\xff" * 400 + b"\n", Shape(VALUE)))


@UNHURRIED
@given(CONTENTS, st.data())
def test_line_ends_are_found_from_both_sides(content: bytes, data: st.DataObject) -> None:
    """The first and the last line end of any stretch are found, whatever the step."""
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, len(content)))
    step = data.draw(st.integers(1, 20))
    stretch = content[start:stop]
    first = start + stretch.index(b"\n") + 1 if b"\n" in stretch else None
    last = start + stretch.rindex(b"\n") + 1 if b"\n" in stretch else None
    assert find_line_end(reader(content), start, stop, step) == first
    assert find_last_line_end(reader(content), start, stop, step) == last
