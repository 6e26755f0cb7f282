"""Tables of results: whole in a pipe or file, and no wider than the terminal on one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from recovery.base.printable import columns, fitted, one_line
from recovery.cli.common import is_utf8, style
from recovery.cli.terminal import is_terminal, width

NARROWEST = 12
"""The number of columns that a column of texts keeps."""
_GAP = "  "
# Numbers, sizes, spans of epochs and times: a part of one would be a wrong one.
_WHOLE = re.compile(r"-?[\d.,:+\-T ]*(?: to [\d.,]+)?(?: ?[A-Za-zµ%]{1,3}(?:/s)?)?")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], stream: TextIO | None = None) -> str:
    """Return a table with columns as wide as their widest cell; numbers are right-aligned.

    If the stream that gets the table is a terminal and the table is wider, the widest columns of texts are shortened
    with "…". Numbers and times stay whole, so the table may still be wider. stream: None: standard output.
    """
    stream = stream or sys.stdout
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max([columns(name), *(columns(row[i]) for row in cells)]) for i, name in enumerate(header)]
    right = [bool(cells) and all(_numeric(row[i]) for row in cells) for i in range(len(header))]
    if stream is not None and is_terminal(stream):
        _narrow(widths, header, cells, width(stream))
    gap = "…" if stream is None or is_utf8(stream) else "..."

    def padded(cell: str, room_for: int, to_right: bool) -> str:
        cell = shortened(cell, room_for, gap)
        room = " " * (room_for - columns(cell))
        return room + cell if to_right else cell + room

    def line(values: Sequence[str]) -> str:
        return _GAP.join(map(padded, values, widths, right)).rstrip()

    return "\n".join([style(line(list(header)), "bold"), *map(line, cells)])


def shortened(text: str, most: int, gap: str = "…") -> str:
    """Return a text of at most `most` columns: of a longer sentence its beginning, of a longer word its two ends. gap:
    stands for what is left out."""
    if columns(text) <= most:
        return text
    room = max(1, most - len(gap))
    if " " in text:
        return fitted(text, room).rstrip() + gap
    end = fitted(text[::-1], room // 2)[::-1]
    return f"{fitted(text, room - columns(end))}{gap}{end}"


def _narrow(widths: list[int], header: Sequence[str], cells: Sequence[Sequence[str]], limit: int) -> None:
    """Take columns from the widest texts until a line fits, or none of them may be narrower."""
    least = {
        i: max(NARROWEST, columns(name))
        for i, name in enumerate(header)
        if not all(_WHOLE.fullmatch(row[i]) for row in cells)
    }
    for _ in range(sum(widths) + len(_GAP) * (len(widths) - 1) - limit):
        wide = [i for i, narrowest in least.items() if widths[i] > narrowest]
        if not wide:
            return
        widths[max(wide, key=lambda i: widths[i])] -= 1


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else one_line(value)


def _numeric(cell: str) -> bool:
    """Whether a cell is a number, perhaps with a unit; a sentence may begin with a number too."""
    number, *rest = cell.replace(",", "").replace(".", "").split(" ")
    return cell == "-" or (number.isdigit() and len(rest) < 2)
