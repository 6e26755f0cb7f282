"""The token by which runs and owners on several hosts recognise each other: a secret in a file."""

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


def warn_if_shared(path: Path, what: str) -> None:
    """Log a warning if other users of this machine may read the file of a secret. what: the secret, for the text."""
    with contextlib.suppress(OSError):
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_IROTH:
            _log.warning("all users of this machine can read %s, %s: chmod o= %s", what, path, path)


def read_token(path: Path) -> bytes:
    """Return the token in a file, without white space around it. Warns if all users can read the file. Raises
    ConfigurationError."""
    warn_if_shared(path, "the token")
    try:
        token = read_named(path, MOST_BYTES).strip()
    except OSError as error:
        raise ConfigurationError(
            f"the token cannot be read: {error.strerror or error}",
            path=path,
            cause="",
            remedy="Make a token, and copy it to all hosts: python -c 'import secrets; print(secrets.token_hex())' > "
            "FILE",
        ) from error
    if not LEAST_BYTES <= len(token) <= MOST_BYTES:
        raise ConfigurationError(
            f"a token of {len(token)} bytes is too {'short' if len(token) < LEAST_BYTES else 'long'}",
            path=path,
            cause="",
            remedy="Make a token: python -c 'import secrets; print(secrets.token_hex())' > FILE",
        )
    return token
