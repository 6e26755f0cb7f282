"""Whether the order of texts is that of what they say: a mark among dates or numbers that are written as text is only
right where it is.

The patterns are those of Python and of Java alike, which Spark uses.
"""

from __future__ import annotations

import re

MONTH = (
    "january|february|march|april|june|july|august|september|october|november|december|"
    "jan|feb|mar|apr|may|jun|jul|aug|sept|sep|oct|nov|dec"
)
UNORDERED = (
    # A month by its name, beside a number; day or month first, or a year of two digits; a clock of twelve hours;
    rf"(?i)^(?=.*[0-9])(.*[^a-z])?({MONTH})([^a-z].*)?$"
    r"|^[0-9]{1,2}[./-][0-9]{1,2}[./-]([0-9]{2}|[0-9]{4})([^0-9].*)?$"
    r"|^[0-9]{4}[./-][0-9]{1,2}[./-][0-9]{1,2}[^0-9].*[ap][.]?m[.]?$"
    # year first, but month or day without a zero before it; and a number below zero.
    r"|^[0-9]{4}[./-]([0-9][./-][0-9]{1,2}|[0-9]{1,2}[./-][0-9])([^0-9].*)?$"
    r"|^-[0-9]+([.][0-9]*)?$"
)
"""Texts whose order is another one than that of the dates or numbers that they say, whatever stands beside them."""
SHAPED = r"^[0-9]{4}[./-][0-9]{2}[./-][0-9]{2}([^0-9].*)?$|^[^0-9]*[0-9]+([.][0-9]+)?$"
"""Dates that begin with the year, and numbers, also after a prefix: in order as long as all have one shape."""
PREFIX = r"^([^0-9]*)"
OFFSET = r"[0-9]([+-][0-9]{2}:?[0-9]{2})$"
"""The offset of a time from UTC: times of different offsets are not in order as text."""

DATE_REMEDY = (
    "Give the load date_format= if it is a date, such as date_format='dd-MMM-yy'; cast numbers in the reader, such as "
    "by col(…).cast('bigint'); or use a column whose order is that of time."
)


def is_unordered(text: str) -> bool:
    """Whether it is a date or a number in a form that texts have no right order in."""
    return re.search(UNORDERED, text) is not None


def shape(text: str) -> tuple[str, str] | None:
    """The prefix, and the shape that all texts with this prefix must have; None: any text may stand beside it."""
    if re.search(SHAPED, text) is None:
        return None
    prefix, offset = re.search(PREFIX, text), re.search(OFFSET, text)
    assert prefix is not None
    return prefix[1], re.sub("[0-9]", "0", text) + (f"|{offset[1]}" if offset else "")


def disagreement(before: str, after: str) -> bool:
    """Whether the order of two texts is not that of what they say."""
    if is_unordered(before) or is_unordered(after):
        return True
    one, other = shape(before), shape(after)
    return one is not None and other is not None and one[0] == other[0] and one[1] != other[1]
