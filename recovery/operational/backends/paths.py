"""The path of a document in a backend outside the recovery directory: `<encoded state id>/state.json`.

All stores and file systems accept these names: letters, digits, "-", "_" and "@" stand for themselves, every other byte
is =XX. A part that would be too long ends in "!" and a digest; then only the document itself holds its full id.
"""

from __future__ import annotations

import hashlib
import re
import string

from recovery.operational.ids import StateId

STATE_FILE = "state.json"
LOCK_FILE = "lock.json"
LONGEST_PART = 120
LONGEST_PATH = 600
LONGEST_SHARED = 100
"""How many characters of a path are as in its id, however long the id is."""
_PLAIN = frozenset((string.ascii_letters + string.digits + "-_@").encode())
_ESCAPED = re.compile(rb"=([0-9A-F]{2})")


def encode_path(state_id: StateId) -> str:
    """Return the relative directory of a state id. Different ids never share a path, and no path lies where another
    id's file does."""
    parts = [_encode_part(part) for part in state_id.split("/")]
    path = "/".join(parts)
    return path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PART].rstrip('/=')}!{_digest(state_id)}"


def directory_with(prefix: str) -> str:
    """Return the directory that has the documents of all state ids that begin with a prefix; "" for the whole store."""
    directory = encode_path(prefix.rpartition("/")[0]) if "/" in prefix else ""
    # Of a path that would be too long, only the beginning is as in the id.
    while "!" in directory or len(directory) > LONGEST_SHARED:
        directory = directory.rpartition("/")[0]
    return directory


def decode_path(path: str) -> StateId | None:
    """Return the state id of a directory; None if only the document holds it."""
    if "!" in path:
        return None
    parts = [b"" if part == "=" else _ESCAPED.sub(_byte, part.encode()) for part in path.split("/")]
    try:
        return b"/".join(parts).decode()
    except UnicodeDecodeError:
        return None


def _encode_part(part: str) -> str:
    encoded = "".join(chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in part.encode()) or "="
    return encoded if len(encoded) <= LONGEST_PART else f"{encoded[:60]}!{_digest(part)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _byte(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 16)])
