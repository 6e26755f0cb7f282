"""Whether texts sort in the order of the dates or numbers that they spell. Only then can such a text be a mark.

The patterns have the same meaning in Python and in Java, which Spark uses.
"""

from __future__ import annotations

import re

MONTH = (
    "january|february|march|april|june|july|august|september|october|november|december|"
    "jan|feb|mar|apr|may|jun|jul|aug|sept|sep|oct|nov|dec"
)
UNORDERED = (
    # A month's name beside a number; day or month first, or a two-digit year; a twelve-hour clock;
    rf"(?i)^(?=.*[0-9])(.*[^a-z])?({MONTH})([^a-z].*)?$"
    r"|^[0-9]{1,2}[./-][0-9]{1,2}[./-]([0-9]{2}|[0-9]{4})([^0-9].*)?$"
    r"|^[0-9]{4}[./-][0-9]{1,2}[./-][0-9]{1,2}[^0-9].*[ap][.]?m[.]?$"
    # year first, but month or day without a leading zero; and a negative number.
    r"|^[0-9]{4}[./-]([0-9][./-][0-9]{1,2}|[0-9]{1,2}[./-][0-9])([^0-9].*)?$"
    r"|^-[0-9]+([.][0-9]*)?$"
)
"""Texts that do not sort in the order of the dates or numbers that they spell, whatever they are compared with."""
SHAPED = r"^[0-9]{4}[./-][0-9]{2}[./-][0-9]{2}([^0-9].*)?$|^[^0-9]*[0-9]+([.][0-9]+)?$"
"""Dates that begin with the year, and numbers, also after a prefix: they sort correctly if all have one shape."""
PREFIX = r"^([^0-9]*)"
OFFSET = r"[T ][0-9]{2}.*?([+-][0-9]{2}(:?[0-9]{2})?)( *\[.*\])?$"
"""The offset of a time from UTC, also before the name of its zone in brackets: times with different offsets do not sort
correctly as text."""

DATE_REMEDY = (
    "Give the load date_format= if it is a date, such as date_format='dd-MMM-yy'; cast numbers in the reader, such as "
    "by col(…).cast('bigint'); or use a column that sorts by time."
)


def is_unordered(text: str) -> bool:
    """Whether a text is a date or a number in a form that never sorts correctly as text."""
    return re.search(UNORDERED, text) is not None


def shape(text: str) -> tuple[str, str] | None:
    """Return the prefix, and the shape that all texts with this prefix must have; None: the text goes with any
    other."""
    if re.search(SHAPED, text) is None:
        return None
    prefix, offset = re.search(PREFIX, text), re.search(OFFSET, text)
    assert prefix is not None
    return prefix[1], re.sub("[0-9]", "0", text) + (f"|{offset[1]}" if offset else "")


def disagreement(before: str, after: str) -> bool:
    """Whether two texts do not sort in the order of what they spell."""
    if is_unordered(before) or is_unordered(after):
        return True
    one, other = shape(before), shape(after)
    return one is not None and other is not None and one[0] == other[0] and one[1] != other[1]
