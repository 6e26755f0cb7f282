"""Read settings from files in the format of Java's properties, as spark-submit does, and write settings for
programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from recovery.base.untrusted_paths import read_named
from recovery.errors import ConfigurationError

MOST_BYTES = 16 << 20
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_END_OF_LINE = re.compile(r"\r\n|\r|\n")
_BLANK = " \t\f"


def read_properties(path: Path) -> dict[str, str]:
    """Return the settings in a file: `key value`, `key=value` or `key: value` on each line, in UTF-8. Raises
    ConfigurationError."""
    try:
        return parse_properties(read_named(path, MOST_BYTES).decode())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigurationError(
            f"the settings of Spark in {path} cannot be read: {why}",
            cause="There is no such file, this user may not read it, or it is not a file of properties in UTF-8.",
            remedy="Name a file with a line `spark.name value` for each setting, in --properties-file or the variable "
            "RECOVERY_PROPERTIES_FILE.",
        ) from error


def parse_properties(text: str) -> dict[str, str]:
    """Return the settings in a text. Raises ValueError."""
    found = {}
    for line in _logical_lines(text):
        end = _end_of_key(line)
        rest = line[end:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        # spark-submit trims values as well.
        found[_unescaped(line[:end])] = _unescaped(rest).strip(_BLANK)
    return found


def format_properties(settings: Mapping[str, str]) -> str:
    """Return a text that Java, too, reads as these settings."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


def _logical_lines(text: str) -> list[str]:
    """Return lines without leading blanks and comments; a line that ends with an odd number of backslashes
    continues."""
    lines: list[str] = []
    open_line: str | None = None
    for natural in _END_OF_LINE.split(text):
        line = natural.lstrip(_BLANK)
        if open_line is None and (not line or line[0] in "#!"):
            continue
        line = (open_line or "") + line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            open_line = line[:-1]
        else:
            lines.append(line)
            open_line = None
    return lines if open_line is None else [*lines, open_line]


def _end_of_key(line: str) -> int:
    """Return the position of the first separator without a backslash before it."""
    place = 0
    while place < len(line) and line[place] not in f"=:{_BLANK}":
        place += 2 if line[place] == "\\" else 1
    return min(place, len(line))


def _unescaped(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[2] == "u":
            raise ValueError(f"a malformed \\u in {text!r:.40}")
        return _ESCAPES.get(match[2], match[2])

    # Characters beyond \uffff come as two escapes.
    return _ESCAPE.sub(replaced, text).encode("utf-16", "surrogatepass").decode("utf-16")


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[place : place + 2], "big") for place in range(0, len(units), 2)]
    return "".join(
        chr(code) if chr(code).isascii() and (chr(code).isalnum() or chr(code) in "._-/") else f"\\u{code:04x}"
        for code in codes
    )
