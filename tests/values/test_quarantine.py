"""Entries of a quarantine: rows come back with their types, and nothing of other rows comes with them."""

from __future__ import annotations

import base64
import json
import random
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from recovery.errors import CorruptPartitionError, StateValueError
from recovery.values import quarantine, quarantined_rows
from recovery.values.keys import home_of, partition_of
from recovery.values.quarantine import Entry, KeptFailure, KeyNote

ROWS = pa.RecordBatch.from_pydict(
    {
        "text": ["a", None, "ü😀\0"],
        "bytes": [b"\xff\x00", b"", None],
        "number": pa.array([1.5, float("nan"), None], pa.float64()),
        "money": pa.array([Decimal("1.10"), None, Decimal("-0.01")], pa.decimal128(38, 2)),
        "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC), None, None], pa.timestamp("us", "UTC")),
        "day": pa.array([-1_000_000, 0, None], pa.int32()).cast(pa.date32()),
        "nested": pa.array(
            [[{"a": 1, "b": ["x"]}], [], None],
            pa.list_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        ),
        "pairs": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    }
)


def refuse(why: str) -> CorruptPartitionError:
    return CorruptPartitionError(why)


def test_rows_of_any_type_come_back():
    """Also values that Python cannot represent, such as a date before the year 1."""
    back = quarantined_rows.unpacked(quarantined_rows.packed(ROWS), refuse)
    assert back.schema == ROWS.schema
    # NaN does not equal itself; its text does.
    assert str(back.to_batches()[0].column("number")) == str(ROWS.column("number"))
    assert back.drop_columns("number").equals(pa.Table.from_batches([ROWS]).drop_columns("number"))
    [first, second, _] = quarantined_rows.json_rows(back)
    assert json.dumps([first, second], allow_nan=False)
    assert first["bytes"] == "/wA="
    assert (first["money"], second["number"], second["text"]) == ("1.10", "nan", None)


def test_an_entry_has_its_own_rows_only():
    """A slice of Arrow's refers to the text of all rows: other rows would be stored with each entry."""
    rows = pa.RecordBatch.from_pydict({"text": [f"row {number}" * 100 for number in range(1000)]})
    data = quarantined_rows.packed(rows.slice(500, 1))
    assert len(data) < 3000
    assert quarantined_rows.unpacked(data, refuse)["text"].to_pylist() == ["row 500" * 100]


def test_bytes_that_are_no_text_come_back():
    """Spark does not check the text that it gives to a task."""
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    rows = pa.RecordBatch.from_arrays([bad], ["text"])
    back = quarantined_rows.unpacked(quarantined_rows.packed(rows), refuse)
    assert back["text"].chunk(0).buffers()[2].to_pybytes()[:2] == b"\xff\xfe"
    assert quarantined_rows.json_rows(back) == [{"text": "\\xff\\xfe"}]
    nested = pa.StructArray.from_arrays([bad], ["text"])
    rows = pa.RecordBatch.from_arrays([nested, pa.ListArray.from_arrays([0, 1], bad)], ["struct", "list"])
    back = quarantined_rows.unpacked(quarantined_rows.packed(rows), refuse)
    json.dumps(quarantined_rows.json_rows(back))


def test_many_rows_become_several_entries():
    """Each within a limit, or with a single row."""
    rows = pa.RecordBatch.from_pydict({"text": ["x" * 1000] * 10})
    sizes = [len(each) for each in quarantined_rows.pieces(rows, 2500)]
    assert (sum(sizes), max(sizes)) == (10, 2)
    assert [len(each) for each in quarantined_rows.pieces(rows, 1)] == [1] * 10
    assert [len(each) for each in quarantined_rows.pieces(rows)] == [10]


@pytest.mark.parametrize("key", ["", "a", "a\x1e", "\x1e000000000001", "␀", "日\x1f"])
def test_a_key_is_found_in_the_keys_of_its_note_and_entries(key):
    """Also a key that looks like one of them. All of them are in the key's own partition."""
    assert quarantine.parse_waiting_key(quarantine.note_key(key)) == (key, None)
    for number in (0, 7, 10**12):
        name = quarantine.entry_key(key, number)
        assert quarantine.parse_waiting_key(name) == (key, number)
        assert home_of("$bad count", 7, name) == home_of("$bad count", 7, quarantine.note_key(key))
        assert home_of("$bad count", 7, name) == partition_of(key, 7)
    assert quarantine.parse_waiting_key(quarantine.note_key(key) + "1" * 5000) == (key, None)


def test_what_is_kept_of_an_error():
    """Its type, its message and where in the user's files it was raised; also of an error that cannot be shown."""

    class ShyError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fail(error: Exception) -> KeptFailure:
        try:
            raise error
        except Exception as raised:
            return quarantine.failure_of(raised)

    found = fail(ValueError("no\udc80" + "x" * 5000))
    assert (found.type, len(found.message) < 2100) == ("ValueError", True)
    assert found.places[-1].startswith("test_quarantine.py, line ")
    assert "\n" not in found.text
    assert quarantine.entry_from(quarantine.to_text(Entry(1, 2, 3, "", 1, found)), refuse).failure == found
    code = compile("def fail(): raise ValueError('bad')", "/flows/\udc80.py", "exec")
    exec(code, given := {})
    with pytest.raises(ValueError, match="bad") as raised:
        given["fail"]()
    failure = quarantine.failure_of(raised.value)
    assert quarantine.to_text(Entry(1, 2, 3, "", 1, failure)).count(r"\\udc80.py, line 1, in fail") == 1
    assert "cannot be shown: RuntimeError" in fail(ShyError()).message
    assert fail(StateValueError("what was found")).message == "what was found"


MANY = '{"rows":1,"first":0,"end":99999999999,"since_ms":0,"error":""}'


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"rows":-1}', "[" * 100_000, '{"batch":1,"at_ms":1e99}', "\ud800", MANY]
)
def test_a_text_that_is_no_entry_or_note_is_refused(text):
    """The file may be anybody's."""
    with pytest.raises(CorruptPartitionError):
        quarantine.entry_from(text, refuse)
    with pytest.raises(CorruptPartitionError):
        quarantine.note_from(text, refuse)


PACKED = quarantined_rows.packed(ROWS)


@pytest.mark.parametrize("data", ["!", "AAAA", PACKED[:400], PACKED[400:]])
def test_data_that_is_no_arrow_stream_is_refused(data):
    """Whatever is in the place of the rows."""
    with pytest.raises(CorruptPartitionError):
        quarantined_rows.unpacked(data, refuse)


def stream(column: pa.Array, **options: object) -> str:
    """Rows with one column as another program could write them."""
    rows, sink = pa.RecordBatch.from_arrays([column], ["a"]), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(rows)
    return base64.b64encode(sink.getvalue()).decode()


ZEROS = pa.array([bytes(1 << 20)])
WIDE = pa.StructArray.from_arrays([pa.nulls(1)] * 100_001, [f"c{number}" for number in range(100_001)])


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: stream(ZEROS, compression="zstd"), "compressed"),
        (lambda: stream(ZEROS, compression="lz4"), "compressed"),
        (lambda: stream(pa.array(["x" * 1000] * 10).dictionary_encode()), "share values"),
        (lambda: stream(pa.RunEndEncodedArray.from_arrays([1 << 30], ["x"], pa.run_end_encoded(pa.int32(), "str"))),
         "run_end_encoded"),
        (lambda: stream(pa.array([[1], [1]], pa.list_view(pa.int64()))), "list_view"),
        (lambda: stream(pa.array([[1, 2]], pa.list_(pa.int64(), 2))), "fixed_size_list"),
        (lambda: stream(pa.nulls(1 << 27)), "134,217,728 elements"),
        (lambda: stream(pa.ListArray.from_arrays(pa.array([0, 1 << 27], pa.int32()), pa.nulls(1 << 27))),
         "134,217,728 elements"),
        (lambda: stream(WIDE), "100,000 columns and parts"),
        (lambda: stream(pa.nulls(2)), "2 rows, where 1 may be"),
    ],
)  # fmt: skip
def test_rows_that_would_take_much_more_memory_than_their_text_are_refused(make, found):
    """A compressed buffer, shared values, elements without bytes, very many columns: nothing of it is unpacked."""
    data = make()
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptPartitionError, match=found):
        quarantined_rows.unpacked(data, refuse, 1)
    assert pa.total_allocated_bytes() - before < 1 << 20


def _buffers(kind: pa.DataType, offsets: list[int], child: pa.Array) -> pa.Array:
    """Three lists with these offsets, as another program could write them."""
    return pa.ListArray.from_buffers(kind, 3, [None, pa.array(offsets, pa.int32()).buffers()[1]], children=[child])


LISTS = pa.list_(pa.int64())
VALUES = pa.struct([pa.field("key", pa.string(), False), ("value", pa.null())])
ENTRIES = pa.array([{"key": "a", "value": None}] * 2, VALUES)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[None, None], [None]], pa.list_(pa.null())),
        pa.array([{"a": [None], "b": "x"}, {"a": [None] * 3, "b": None}]),
        pa.array([[("a", [1.5])], [("b", []), ("c", None)]], pa.map_(pa.string(), pa.list_(pa.float64()))),
        pa.array([[("a", None)], [("b", None), ("c", None)]], pa.map_(pa.string(), pa.null())),
        pa.array([[[1], []], [None, [2, 3]]]),
        pa.array([None, None]),
    ],
    ids=lambda column: str(column.type),
)
def test_nested_rows_come_back(column):
    """Types of Spark within each other, with elements that have no bytes."""
    rows = pa.RecordBatch.from_arrays([column], ["a"])
    assert quarantined_rows.unpacked(quarantined_rows.packed(rows), refuse).column(0).to_pylist() == column.to_pylist()


def test_text_that_is_not_utf_8_comes_back():
    """Spark keeps such text, too."""
    text = pa.array([b"\xff", b"a"]).view(pa.string())
    found = quarantined_rows.unpacked(stream(text), refuse).column(0).combine_chunks()
    assert found.view(pa.binary()).to_pylist() == [b"\xff", b"a"]


@pytest.mark.parametrize(
    "column",
    [
        _buffers(LISTS, [0, 1 << 20, 1, 2], pa.array([1, 2])),
        _buffers(LISTS, [0, 2, 1, 2], pa.array([1, 2])),
        _buffers(pa.list_(pa.null()), [0, 1 << 20, 1, 2], pa.nulls(2)),
        _buffers(pa.map_(pa.string(), pa.null()), [0, 9, 1, 2], ENTRIES),
        pa.StringArray.from_buffers(3, pa.array([0, 1 << 20, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"ab")),
    ],
    ids=["beyond", "backwards", "nulls", "map", "text"],
)
def test_offsets_that_lead_outside_are_refused(column):
    """Arrow would read what they say."""
    with pytest.raises(CorruptPartitionError, match="no Arrow stream"):
        quarantined_rows.unpacked(stream(column), refuse)


def test_a_piece_has_no_more_rows_than_can_be_read(monkeypatch):
    """Rows without bytes are divided, too."""
    monkeypatch.setattr(quarantined_rows, "MOST_ROWS", 3)
    rows = pa.RecordBatch.from_arrays([pa.nulls(10)], ["a"])
    pieces = list(quarantined_rows.pieces(rows))
    assert [len(quarantined_rows.unpacked(quarantined_rows.packed(each), refuse)) for each in pieces] == [2, 3, 2, 3]


def test_documents_come_back():
    """With and without what they may lack."""
    for note in (KeyNote(1, 0, 2, 3, "e"), KeyNote(1, 0, 2, 3, "e", 4)):
        assert quarantine.note_from(quarantine.to_text(note), refuse) == note
    for entry in (Entry(1, 2, 3, "AA"), Entry(1, 2, 0, "", 2, KeptFailure("E", "m", ("p",)), timed_out=True)):
        assert quarantine.entry_from(quarantine.to_text(entry), refuse) == entry


def test_data_with_changed_bytes_gives_rows_or_is_refused():
    """A file of somebody else's neither ends the process nor gives a traceback. The seed is fixed."""
    generator = random.Random(7)
    for _ in range(3000):
        content = bytearray(base64.b64decode(PACKED))
        for _ in range(generator.randrange(1, 4)):
            content[generator.randrange(len(content))] = generator.randrange(256)
        try:
            found = quarantined_rows.unpacked(base64.b64encode(content).decode(), refuse)
        except CorruptPartitionError:
            continue
        json.dumps(quarantined_rows.json_rows(found), allow_nan=False)
