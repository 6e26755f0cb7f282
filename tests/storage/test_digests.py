"""Digests: every column counts, SQLite and Python agree, and sums do not overflow."""

from __future__ import annotations

import hashlib

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.storage.sqlite.digests import MODULUS, SUM_SQL, combine, load_digests, record_digest, row_digest_sql

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
VALUE = st.none() | TEXT | st.binary(max_size=20)
ROW = st.tuples(TEXT, TEXT, st.none() | st.integers(1, 1 << 40), VALUE, st.none() | st.integers(0, 1 << 50))
SQL = f"SELECT {row_digest_sql('?1', '?2', '?3', '?4', '?5')}"


@pytest.fixture(scope="module")
def connection():
    """A connection that computes digests."""
    opened = apsw.Connection(":memory:")
    load_digests(opened)
    yield opened
    opened.close()


def digest_of(connection, row):
    [(found,)] = connection.execute(SQL, row).fetchall()
    return found


def expected(row) -> int:
    """The same computed in Python: the first 60 bits of a SHA-1."""
    step, key, epoch, value, timeout = row
    kind = {type(None): "null", str: "text", bytes: "blob"}[type(value)]
    numbers = ["" if number is None else str(number) for number in (epoch, timeout)]
    parts = [step, str(len(key)), key, numbers[0], kind, numbers[1]]
    data = value if isinstance(value, bytes) else (value or "").encode()
    return int(hashlib.sha1("\x1f".join(parts).encode() + b"\x1f" + data).hexdigest()[:15], 16)


@given(row=ROW)
def test_sqlite_computes_the_documented_digest(connection, row):
    """Anyone can check a row without this package: SHA-1 over its columns, the first 60 bits, as an integer."""
    found = digest_of(connection, row)
    assert type(found) is int
    assert found == expected(row)
    assert 0 <= found < MODULUS


@given(row=ROW, column=st.integers(1, 4), other=ROW)
def test_any_changed_column_changes_the_digest(connection, row, column, other):
    """Key, epoch, value and timeout all count; so does the difference between a text and a blob."""
    changed = (*row[:column], other[column], *row[column + 1 :])
    if changed != row:
        assert digest_of(connection, changed) != digest_of(connection, row)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("s", "k", 1, None, None), ("s", "k", 1, "", None)),
        (("s", "k", 1, "", None), ("s", "k", 1, b"", None)),
        (("s", "k", 1, "a\x1fb", None), ("s", "k", 1, "a", None)),
        (("s", "a\x1f1", 1, "v", None), ("s", "a", 1, "1\x1fv", None)),
        (("s", "k", 12, "v", None), ("s", "k", 1, "v", 2)),
        (("s", "k", None, "v", 1), ("s", "k", 1, "v", None)),
        (("s", "k", 1, b"a\0b", None), ("s", "k", 1, b"a\0c", None)),
    ],
)
def test_rows_that_look_alike_differ(connection, one, two):
    """Separators, empty values, NULL and bytes behind a NUL are no way to the same digest."""
    assert digest_of(connection, one) != digest_of(connection, two)


@given(digests=st.lists(st.integers(0, MODULUS - 1), max_size=30))
def test_sums_are_modulo_two_to_the_sixty_in_any_order(connection, digests):
    """The sum of a set of rows does not depend on their order, and is what plain arithmetic gives."""
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS d (digest INTEGER); DELETE FROM d").fetchall()
    connection.executemany("INSERT INTO d VALUES (?)", [(each,) for each in digests])
    [(count, high, low)] = connection.execute(f"SELECT {SUM_SQL} FROM d").fetchall()
    assert count == len(digests)
    assert combine(high, low) == sum(digests) % MODULUS


def test_sums_of_a_billion_rows_stay_inside_sqlite_s_integers():
    """The two halves of a sum are 30 bits wide, so eight billion of the largest fit into 64 bits."""
    most = (MODULUS - 1) >> 30
    assert 8_000_000_000 * most < 1 << 63


FIELD = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | TEXT | st.floats(allow_nan=False, allow_infinity=False)


@given(fields=st.lists(FIELD, max_size=6), position=st.integers(0, 5), other=FIELD)
def test_a_record_s_digest_depends_on_every_field(fields, position, other):
    """It is the same for the same fields, fits an INTEGER column, and another for others."""
    assert record_digest(*fields) == record_digest(*fields)
    assert 0 <= record_digest(*fields) < 1 << 56
    changed = [*fields[:position], other, *fields[position + 1 :]]
    if changed != fields:
        assert record_digest(*changed) != record_digest(*fields)
