"""The token by which runs and owners on several hosts recognise each other: a secret in a file."""

from __future__ import annotations

from pathlib import Path

from recovery.base.untrusted_paths import read_named
from recovery.errors import ConfigurationError

LEAST_BYTES = 16
MOST_BYTES = 4096


def read_token(path: Path) -> bytes:
    """Return the token in a file, without white space around it. Raises ConfigurationError."""
    try:
        token = read_named(path, MOST_BYTES).strip()
    except OSError as error:
        raise ConfigurationError(
            f"the token cannot be read: {error.strerror or error}",
            path=path,
            cause="",
            remedy="Make one, and copy it to all hosts: python -c 'import secrets; print(secrets.token_hex())' > FILE",
        ) from error
    if not LEAST_BYTES <= len(token) <= MOST_BYTES:
        raise ConfigurationError(
            f"a token of {len(token)} bytes is too {'short' if len(token) < LEAST_BYTES else 'long'}",
            path=path,
            cause="",
            remedy="Make one: python -c 'import secrets; print(secrets.token_hex())' > FILE",
        )
    return token
