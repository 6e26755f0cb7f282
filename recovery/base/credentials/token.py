"""The token by which runs and owners on several hosts recognise each other: a secret in a file.

While a token is replaced, the file has two lines: owners accept both tokens, and who asks uses the first.
"""

from __future__ import annotations

import contextlib
import logging
import stat
from pathlib import Path

from recovery.base.untrusted_paths import read_named
from recovery.errors import ConfigurationError

_log = logging.getLogger("recovery")
LEAST_BYTES = 16
MOST_BYTES = 4096
MOST_TOKENS = 2


def warn_if_shared(path: Path, what: str) -> None:
    """Log a warning if other users of this machine may read the file of a secret. what: the secret, for the text."""
    with contextlib.suppress(OSError):
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_IROTH:
            _log.warning("all users of this machine can read %s, %s: chmod o= %s", what, path, path)


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """Return the tokens in a file, one or two, each a line without white space around it: the first is the one to ask
    with. Warns if all users can read the file. Raises ConfigurationError."""
    warn_if_shared(path, "the token")
    return _tokens(path)


def _tokens(path: Path) -> tuple[bytes, ...]:
    try:
        lines = read_named(path, MOST_BYTES).split(b"\n")
    except OSError as error:
        raise ConfigurationError(
            f"the token cannot be read: {error.strerror or error}",
            path=path,
            cause="",
            remedy="Make a token, and copy it to all hosts: python -c 'import secrets; print(secrets.token_hex())' > "
            "FILE",
        ) from error
    tokens = tuple(filter(None, map(bytes.strip, lines))) or (b"",)
    if len(tokens) > MOST_TOKENS:
        raise ConfigurationError(
            f"the file has {len(tokens)} lines, each of which would be a token",
            path=path,
            cause="A token is one line of text.",
            remedy=f"Give a file with one token or, while it is replaced, {MOST_TOKENS}: the one to ask with is first.",
        )
    for token in tokens:
        if len(token) < LEAST_BYTES:
            raise ConfigurationError(
                f"a token of {len(token)} bytes is too short",
                path=path,
                cause="",
                remedy="Make a token: python -c 'import secrets; print(secrets.token_hex())' > FILE",
            )
    return tokens


class TokenFile:
    """The token to ask with, read from its file again for each connection: so the token can be replaced during a run.
    Any thread may call it."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigurationError for a file without a token."""
        self._path = path
        self._last = read_tokens(path)[0]

    def __call__(self) -> bytes:
        """Return the token. A file that has none any more, as while it is written, leaves the last one in use."""
        with contextlib.suppress(ConfigurationError):
            self._last = _tokens(self._path)[0]
        return self._last
