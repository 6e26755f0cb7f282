"""The prefix of all paths, for a server behind a proxy that has other pages, too."""

from __future__ import annotations

import re

from recovery.errors import ConfigurationError

_PREFIX = re.compile(r"(?:/[\w.~-]+)*/?", re.ASCII)


def checked_prefix(text: str) -> str:
    """Return the prefix without a slash at its end; empty if there is none. Raises ConfigurationError."""
    if not _PREFIX.fullmatch(text) or {".", ".."} & set(text.split("/")):
        raise ConfigurationError(
            f"{text!r:.120} is no prefix of paths",
            cause="A prefix begins with a slash, and its parts have letters, digits, '.', '-', '_' and '~'.",
            remedy="Write it like the path under which the proxy has these pages: --prefix /recovery",
        )
    return text.rstrip("/")
