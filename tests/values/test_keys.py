"""State keys as text, the partition that holds them, and what of rows and keys is not text."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.base.ids import BatchId
from recovery.errors import StateValueError
from recovery.spark.steps.definition import HASH_BITS, KEY, ROUTE, UNHASHED
from recovery.spark.tasks.arrow_task import ArrowStepTask
from recovery.spark.tasks.run_tasks import run_tasks
from recovery.spark.tasks.step_task import StepTask
from recovery.storage.initialize import init_partitions
from recovery.values.keys import ESCAPE, decode_key, encode_key, partition_of
from tests.stores import Driver
from tests.tasks import definition

KEYS = st.none() | st.text(st.sampled_from("a0\0\u2400 😀'")) | st.text(st.characters(exclude_categories=["Cs"]))


@given(key=KEYS)
def test_every_key_comes_back(key):
    """Encoding loses nothing, NULL and the escape character itself included."""
    assert decode_key(encode_key(key)) == key


@given(one=KEYS, two=KEYS)
def test_different_keys_stay_different(one, two):
    """No two keys share a state."""
    assert (encode_key(one) == encode_key(two)) == (one == two)


@given(key=KEYS)
def test_an_encoded_key_holds_no_nul(key):
    """SQLite's C interface would end the text there."""
    assert "\0" not in encode_key(key)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (None, "\u2400"), ("", ""), ("plain", "plain"), ("\u2400", "\u2400\u2400"), ("\0", "\u24000"),
        ("a\0b\u2400", "a\u24000b\u2400\u2400"), ("\u24000", "\u2400\u24000"),
    ],
)  # fmt: skip
def test_the_documented_forms(key, text):
    """The text in the files is what the documentation says; ordinary keys are themselves."""
    assert encode_key(key) == text
    assert encode_key(None) == ESCAPE


@given(key=st.text(st.characters(exclude_categories=["Cs"])), count=st.integers(1, 64))
def test_the_partition_is_the_checksum_modulo_n(key, count):
    """The same rule in any language: crc32 of the UTF-8 bytes."""
    assert partition_of(key, count) == crc32(key.encode("utf-8")) % count
    assert 0 <= partition_of(key, count) < count


def test_known_partitions():
    """Keys written long ago are found again: it is the common CRC-32, with its published check value."""
    assert partition_of("123456789", 1 << 32) == 0xCBF43926
    assert [partition_of(key, 8) for key in ("", "a", "123456789", "naïve", "😀", "\u2400")] == [0, 3, 6, 6, 4, 6]


def test_keys_spread_evenly():
    """Numbered keys, the usual ones, fill the partitions alike."""
    counts = Counter(partition_of(f"user-{number}", 7) for number in range(70_000))
    assert min(counts.values()) > 9_000
    assert max(counts.values()) < 11_000


def strings(*values: bytes) -> pa.Array:
    """A column as Spark may send it: it does not ask whether bytes are text."""
    return pa.array(values, pa.binary()).cast(pa.string(), safe=False)


def remember(key, rows, state):
    """Counts rows."""
    state.update((state.getOption or 0) + len(rows))
    return [(json.dumps(key),)]


def run(directory, rows: pa.Table, key: tuple[str, ...], update=None, place: int = 0) -> list[str]:
    """One task over all rows: of `update`, which sees tables, or of `remember`. Returns its output."""
    kind = StepTask if update is None else ArrowStepTask
    step = definition(update or remember, "s string", "key string", rows, key)
    if update is None:
        step = replace(step, state_schema=None)
    if not step.key_in_place:
        # What Spark's to_json makes of bytes that are no text.
        parts = zip(*(rows.column(name).cast(pa.binary()).to_pylist() for name in key), strict=True)
        texts = [json.dumps([part.decode(errors="replace") for part in each], ensure_ascii=False) for each in parts]
        rows = rows.append_column(KEY, pa.array(texts))
    places = pa.array([place << HASH_BITS] * len(rows), pa.int64())
    if not (directory / "db").exists():
        init_partitions(directory / "db", 1)
    with Driver(directory / "db") as driver:
        batches = iter(rows.append_column(ROUTE, places).to_batches())
        found = run_tasks(step, batches, lambda keep: (driver.task(), driver.count), BatchId(0), kind, driver.count)
        return [row["key"] for each in found for row in each.to_pylist()]


def nothing(rows, states):
    return None, None


@pytest.mark.parametrize("update", [None, nothing], ids=["key by key", "tables"])
@pytest.mark.parametrize(
    ("columns", "place"),
    [(("word",), 0), (("word",), UNHASHED), (("word", "place"), 0), (("place", "word"), 0)],
    ids=str,
)
def test_a_key_that_is_no_text_is_refused(tmp_path, update, columns, place):
    """By the name of its column: several of them would be one key to Spark, which has one sign for what is not text."""
    rows = pa.table({"place": strings(b"x", b"x", b"x"), "word": strings(b"a\xff", b"a\xfe", b"a\xef\xbf\xbd")})
    with pytest.raises(StateValueError, match="step 'count': column 'word' has a string that is not valid") as caught:
        run(tmp_path, rows, columns, update, place)
    assert "F.make_valid_utf8" in caught.value.remedy


def test_the_sign_for_what_is_no_text_is_text(tmp_path):
    """Where it is a key's own."""
    rows = pa.table({"place": strings(b"x", b"y"), "word": strings(b"\xef\xbf\xbd", b"\xef\xbf\xbd")})
    assert run(tmp_path, rows, ("place", "word")) == ['["x", "\\ufffd"]', '["y", "\\ufffd"]']


def test_a_row_that_is_no_text_is_refused(tmp_path):
    """Where `update` would get it as a str; one that sees tables may look at the bytes."""
    inside = pa.StructArray.from_arrays([strings(b"\xff")], names=["s"])
    for column in (strings(b"\xff"), inside):
        rows = pa.table({"word": strings(b"a"), "text": column})
        with pytest.raises(StateValueError, match="column 'text' has a string that is not valid UTF-8"):
            run(tmp_path, rows, ("word",))
        assert run(tmp_path, rows, ("word",), nothing) == []


def test_a_state_that_is_no_text_is_refused(tmp_path):
    """As JSON it has to be one."""
    rows = pa.table({"word": strings(b"a"), "text": strings(b"\xff")})

    def keep(rows, states):
        return pa.table({"word": states["word"], "s": rows["text"]}), None

    with pytest.raises(StateValueError, match="step 'count': state column 's' has a string that is not valid UTF-8"):
        run(tmp_path, rows, ("word",), keep)


def test_keys_that_are_no_text_are_sorted(tmp_path, monkeypatch):
    """Through files, too: the error is the same."""
    monkeypatch.setattr(StepTask, "sorted_bytes", 64)
    rows = pa.table({"word": strings(*(b"a\xff%d" % number for number in range(100)))})
    pieces = pa.Table.from_batches(rows.to_batches(max_chunksize=10))
    with pytest.raises(StateValueError, match="column 'word' has a string that is not valid UTF-8"):
        run(tmp_path, pieces, ("word",))
