"""Tables: every cell in a pipe, and on a terminal only texts are shortened."""

from __future__ import annotations

import io
import random

import pytest

from recovery.base.printable import columns
from recovery.cli.tables import NARROWEST, shortened, table

HEADER = ("file", "epochs", "closed", "size", "verdict")
ROWS = [
    ("part-0.sqlite3", "0 to 1234", "2026-11-28 17:59:04+00:00", "65.5 kB", "current"),
    ("part-10.sqlite3", "7 to 1235", "2026-11-28 17:59:14+00:00", "1,065.5 kB", "it holds back the others " * 4),
]


class Terminal(io.StringIO):
    """A terminal with as many columns as COLUMNS says."""

    encoding = "utf-8"

    def isatty(self):
        return True


def lines(monkeypatch, width, header=HEADER, rows=ROWS, encoding="utf-8"):
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()
    monkeypatch.setattr(Terminal, "encoding", encoding)
    return [line.rstrip("\ufdd5").lstrip("\ufdd0") for line in table(header, rows, stream).splitlines()]


def test_wide_enough(monkeypatch):
    """Nothing is shortened, as in a pipe."""
    whole = [line.rstrip("\ufdd5").lstrip("\ufdd0") for line in table(HEADER, ROWS, io.StringIO()).splitlines()]
    assert lines(monkeypatch, 400) == whole
    assert max(map(columns, whole)) > 150


@pytest.mark.parametrize("width", [80, 100, 120])
def test_texts_give_way(monkeypatch, width):
    """The widest one first; times, sizes and epochs stay whole."""
    shown = lines(monkeypatch, width)
    assert max(map(columns, shown)) <= width
    for row in ROWS:
        assert any(all(cell in line for cell in row[1:4]) for line in shown)
    assert shown[2].rstrip().endswith("…")


def test_too_narrow(monkeypatch):
    """What is left is wider than the terminal: half a number would be a wrong one."""
    shown = lines(monkeypatch, 10)
    assert all(cell in shown[1] for cell in ROWS[0][1:4])
    assert max(map(columns, shown)) < 20 + 2 * NARROWEST + sum(len(cell) + 2 for cell in ROWS[1][1:4])


def test_words_keep_both_ends():
    """A path or key begins and ends as it does; a sentence begins so."""
    assert shortened("part-10-of-the-old-store.sqlite3", 15) == "part-10…sqlite3"
    assert shortened("it belongs to another store", 12) == "it belongs…"
    assert shortened("short", 5) == "short"
    assert shortened("漢字漢字漢字漢字", 7) in ("漢…字", "漢字…字")


def test_another_encoding(monkeypatch):
    """A terminal without the character gets three points."""
    assert lines(monkeypatch, 80, encoding="ascii")[2].rstrip().endswith("...")


@pytest.mark.parametrize("seed", range(3))
def test_random_tables(monkeypatch, seed):
    """No line is wider than before or than the limit allows, and numbers are never cut."""
    draw = random.Random(seed)
    for _ in range(100):
        header = [draw.choice(["n", "name", "a longer name"]) for _ in range(draw.randint(1, 5))]
        rows = [
            [draw.choice([draw.randint(0, 10**draw.randint(1, 9)), None, "x" * draw.randint(0, 60), "漢 " * 20])
             for _ in header]
            for _ in range(draw.randint(0, 4))
        ]  # fmt: skip
        width = draw.randint(1, 150)
        shown = lines(monkeypatch, width, header, rows)
        floor = sum(max(NARROWEST, len(name), 13) + 2 for name in header)
        assert max(map(columns, shown)) <= max(width, floor), (header, rows, width)
        for row, line in zip(rows, shown[1:], strict=True):
            assert all(f"{cell:,}" in line for cell in row if isinstance(cell, int)), (header, rows, width)
