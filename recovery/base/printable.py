"""Untrusted text on terminals: keys, values, names, paths and messages may contain anything, also control sequences.
All terminal output goes through here; HTML pages have `recovery.report.text`.

Escaped is what a terminal or a reader would misinterpret: control characters of both sets, direction marks, invisible
characters, line separators, surrogates. The escapes are those of JSON, so the meaning of JSON text does not change.
"""

from __future__ import annotations

import re
import unicodedata

# Joiners, which several scripts need, and visible number marks stay. U+FDD0 to U+FDEF are noncharacters.
_OTHERS = (
    "\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufdd0-\ufdef\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
_IN_LINE = re.compile(f"[\x00-\x1f{_OTHERS}]")
_IN_TEXT = re.compile(f"[\x00-\x08\x0b-\x1f{_OTHERS}]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def one_line(text: object) -> str:
    """Return a value or a name as a part of a line: no character of it ends the line or controls a terminal."""
    return _IN_LINE.sub(_escaped, str(text))


def printable(text: str) -> str:
    """Escape lines of text; line ends and tabs stay."""
    return _IN_TEXT.sub(_escaped, text)


def columns(text: str) -> int:
    """Return how many terminal columns a line takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def fitted(text: str, width: int) -> str:
    """Return the longest beginning of a line that fits into `width` columns."""
    if columns(text) <= width:
        return text
    taken, used = 0, 0
    for character in text:
        used += _columns(character)
        if used > width:
            break
        taken += 1
    return text[:taken]


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
