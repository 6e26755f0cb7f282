"""Untrusted text in a page: keys and names may contain anything."""

from __future__ import annotations

import html
import unicodedata

LONGEST = 120


def visible(text: object) -> str:
    """Return the text with nothing in it that a reader does not see.

    Control characters become their pictures, invalid Unicode its escape; direction marks appear as codes, so no key
    can reverse the text beside it.
    """
    whole = str(text)
    if whole.isascii() and whole.isprintable():
        return whole
    return "".join(_visible(each) for each in whole).encode(errors="backslashreplace").decode()


def escaped(text: object) -> str:
    """Return the `visible` text as HTML that shows it literally, in elements and in quoted attributes."""
    return html.escape(visible(text), quote=True)


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return the text, of a long one only the beginning."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def format_count(count: int) -> str:
    """Return a count as text like "1,234" or "1.2 M"."""
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:,}"


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if unicodedata.category(character) in ("Cc", "Cf") and character != "\u200d":
        return f"‹U+{code:04X}›"
    return character
