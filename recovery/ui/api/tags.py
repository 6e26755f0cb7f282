"""Tags of answers, as the header ETag has them: a reader who names one has the answer already."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def tag_of(content: bytes) -> str:
    """Return a text that changes with the content. Weak: an answer with this tag says the same, and may say it a moment
    later."""
    return f'W/"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'


def is_known(tag: str, lines: Sequence[str]) -> bool:
    """Whether the header If-None-Match, which may be there several times, names a tag."""
    named = {each.strip() for line in lines for each in line.split(",")}
    return "*" in named or tag in named or tag.removeprefix("W/") in named
