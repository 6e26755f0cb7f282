"""Bytes to Arrow: the lines of a slice as record batches of bounded size, without per-line work in Python.

A line ends at "\\n"; one "\\r" before it belongs to the line end. numpy finds where lines begin and end, and one
Arrow kernel copies the lines without their ends. Compared with splitting in Python, masking line ends out,
`split_pattern` and Arrow's CSV reader, it is as fast as the fastest; offsets and carriage returns cost little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recovery.appended.files import display
from recovery.appended.line_ends import BYTE_ORDER_MARK, WINDOW_BYTES, find_line_end
from recovery.appended.plan import Slice
from recovery.appended.position import Read
from recovery.errors import FlowFailedError

ROWS_PER_BATCH = 1 << 16
MAX_LINE_BYTES = (1 << 31) - 1024
_NEWLINE, _RETURN = 10, 13

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of the batches: columns of `schema` among value, file and offset; how lines are decoded."""

    schema: pa.Schema
    encoding_errors: str = "replace"
    window_bytes: int = WINDOW_BYTES
    rows_per_batch: int = ROWS_PER_BATCH


def read_task(slices: Sequence[Slice], reader_of: Callable[[Slice], Read], shape: Shape) -> Iterator[pa.RecordBatch]:
    """Yield the lines of a task's slices, in order, with small batches combined.

    `reader_of` gives access to a slice's file: its reads return exactly the requested bytes or raise. Memory is bounded
    by a few windows, except for a single longer line. Raises FlowFailedError for a line that Arrow cannot hold, and for
    bytes that are not UTF-8 if `encoding_errors` is "fail".
    """
    return _together((batch for piece in slices for batch in _lines(piece, reader_of(piece), shape)), shape)


def _lines(piece: Slice, read: Read, shape: Shape) -> Iterator[pa.RecordBatch]:
    path = display(piece.whole.expected.path)
    for offset, data, length in _windows(piece, read, shape.window_bytes):
        yield from _batches(path, offset, data, length, shape)


def _windows(piece: Slice, read: Read, window_bytes: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield (place, data, length): the first `length` bytes of `data` are whole lines, at `place` in the file."""
    place = _first_line(piece, read)
    while place < piece.stop:
        data = read(place, min(window_bytes, piece.stop - place))
        length = data.rfind(b"\n") + 1
        if not length:
            # The line is longer than the window or extends into the next slice: read it in one call.
            end = find_line_end(read, place + len(data), piece.whole.end) or piece.whole.end
            length = end - place
            if length > MAX_LINE_BYTES:
                raise too_long(display(piece.whole.expected.path), place, length)
            data = read(place, length)
        yield place, data, length
        place += length


def _first_line(piece: Slice, read: Read) -> int:
    """Return the place of the first line that begins at or after the slice's start."""
    whole = piece.whole
    if piece.start > whole.begin:
        return find_line_end(read, piece.start - 1, whole.end) or whole.end
    if not whole.after_unfinished:
        return whole.begin
    ending = read(whole.begin, min(2, whole.end - whole.begin))
    # A return at the very end is the first half of a line end; the second half is not written yet.
    return whole.begin + (1 if ending[:1] == b"\n" or ending == b"\r" else 2 if ending == b"\r\n" else 0)


def _batches(path: str, offset: int, data: bytes, length: int, shape: Shape) -> Iterator[pa.RecordBatch]:
    """Yield the first `length` bytes of `data`, whole lines at `offset` in the file, as record batches."""
    names = shape.schema.names
    starts, ends = _bounds(data, length)
    places = starts + offset if "offset" in names else starts
    if "value" in names and not _is_utf8(data, length):
        data = decoded(path, offset, data[:length], shape.encoding_errors)
        length = len(data)
        if length > MAX_LINE_BYTES:
            # Each replaced byte became three.
            raise too_long(path, offset, length)
        starts, ends = _bounds(data, length)
    if offset == 0 and data.startswith(BYTE_ORDER_MARK):
        starts[0] = len(BYTE_ORDER_MARK)
    for first in range(0, len(starts), shape.rows_per_batch):
        rows = slice(first, first + shape.rows_per_batch)
        columns: dict[str, pa.Array[Any]] = {}
        if "value" in names:
            columns["value"] = _strings(data, starts[rows], ends[rows])
        if "file" in names:
            columns["file"] = _constant(path, len(starts[rows]))
        if "offset" in names:
            columns["offset"] = pa.array(places[rows])
        yield pa.RecordBatch.from_arrays([columns[name] for name in names], schema=shape.schema)


def _bounds(data: bytes, length: int) -> tuple[Places, Places]:
    """Return where each line of `data[:length]` begins and ends, line ends excluded."""
    if data.find(b"\n") in (-1, length - 1):
        return _single(data, length)
    array = np.frombuffer(data, np.uint8, count=length)
    newlines = np.flatnonzero(array == _NEWLINE)
    ends = newlines if array[-1] == _NEWLINE else np.append(newlines, length)
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    if b"\r" in data:
        ends = ends - ((ends > starts) & (array[ends - 1] == _RETURN))
    return starts, ends


def _single(data: bytes, length: int) -> tuple[Places, Places]:
    """Return the bounds of one line without the copies that a scan makes: the line may be very long."""
    end = length - (data[length - 1] == _NEWLINE)
    end -= end > 0 and data[end - 1] == _RETURN
    return np.array([0], np.int64), np.array([end], np.int64)


def _strings(data: bytes, starts: Places, ends: Places) -> pa.Array[Any]:
    """Return an Arrow string for each pair of places in `data`, which is valid UTF-8."""
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2] = starts
    bounds[1::2] = ends
    if len(starts) == 1:
        return _views(data, bounds)
    # Every second string is a line, the others are line ends: take the lines.
    return _views(data, bounds).take(np.arange(0, len(bounds), 2))


def _views(data: bytes, bounds: npt.NDArray[np.int32]) -> pa.Array[Any]:
    """Return the strings between consecutive bounds, without a copy."""
    return pa.StringArray.from_buffers(len(bounds) - 1, pa.py_buffer(bounds.data), pa.py_buffer(data))


def _constant(text: str, count: int) -> pa.Array[Any]:
    encoded = text.encode()
    bounds = np.arange(0, (count + 1) * len(encoded), len(encoded), dtype=np.int32)
    return _views(encoded * count, bounds)


def _is_utf8(data: bytes, length: int) -> bool:
    if data.isascii():
        return True
    try:
        _views(data, np.array([0, length], np.int32)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def decoded(path: str, offset: int, data: bytes, encoding_errors: str) -> bytes:
    """Return `data` with U+FFFD for bytes that are not UTF-8, or raise FlowFailedError if `encoding_errors` is "fail".

    The number of lines stays the same, because line ends are never replaced.
    """
    if encoding_errors == "replace":
        return data.decode("utf-8", "replace").encode()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FlowFailedError(
            f"The bytes at {offset + error.start} are not UTF-8: {data[error.start : error.start + 4]!r}.",
            path=path,
            cause="The file is binary, or has another encoding.",
            remedy='Convert the file, or read such bytes as U+FFFD with .option("encodingErrors", "replace").',
        ) from error
    return data


def too_long(path: str, place: int, length: int) -> FlowFailedError:
    """The error for a line that is too long for one value."""
    return FlowFailedError(
        f"The line at byte {place} has {length} bytes; the longest possible is {MAX_LINE_BYTES}.",
        path=path,
        cause="The file is binary, or its lines do not end with a newline.",
        remedy="Write shorter lines: a value of a row cannot be longer.",
    )


def _together(batches: Iterable[pa.RecordBatch], shape: Shape) -> Iterator[pa.RecordBatch]:
    """Yield the given rows in fewer batches: combine small ones up to the bounds of rows and bytes."""
    pending: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if pending and (rows + batch.num_rows > shape.rows_per_batch or size_bytes + batch.nbytes > shape.window_bytes):
            yield _one(pending)
            pending, rows, size_bytes = [], 0, 0
        pending.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
    if pending:
        yield _one(pending)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
