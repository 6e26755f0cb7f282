"""Text of strangers in a page: keys and names may hold anything."""

from __future__ import annotations

import html
import unicodedata

LONGEST = 120


def escaped(text: object) -> str:
    """The text as HTML shows it literally, in elements and in quoted attributes.

    Control characters become their pictures, what is no valid Unicode its escape; direction marks are shown as codes,
    so that no key can turn around the text beside it.
    """
    shown = "".join(_visible(each) for each in str(text))
    return html.escape(shown.encode(errors="backslashreplace").decode(), quote=True)


def shortened(text: str, longest: int = LONGEST) -> str:
    """The beginning of a long text."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def format_count(count: int) -> str:
    """1,234, or 1.2 M and the like."""
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
