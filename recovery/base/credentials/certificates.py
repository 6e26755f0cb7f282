"""Certificates in PEM files, and the TLS settings with which a client checks an owner's certificate."""

from __future__ import annotations

import contextlib
import re
import ssl
from pathlib import Path

from recovery.base.untrusted_paths import read_named
from recovery.errors import ConfigurationError

MOST_BYTES = 64 << 10
"""The most bytes of certificates in a file: every task gets the certificates."""
MOST_FILE_BYTES = 16 << 20
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_ROUNDS = 10
"""Of a handshake, which needs three."""


def read_certificates(path: Path, option: str = "--tls-ca") -> str:
    """Return the certificates in a PEM file, without its other content, such as a key. option: names the file in an
    error. Raises ConfigurationError."""
    try:
        found = "\n".join(_CERTIFICATE.findall(read_named(path, MOST_FILE_BYTES).decode(errors="replace")))
        if not found:
            raise ValueError("it contains no certificate")
        if len(found) > MOST_BYTES:
            raise ValueError(f"they have {len(found)} bytes, where {MOST_BYTES} are allowed")
        client_context(found)
    except (OSError, ValueError, MemoryError) as error:
        raise ConfigurationError(
            f"the certificates of {option} cannot be used: {getattr(error, 'strerror', None) or error}",
            path=path,
            cause="The file is not a PEM file, or holds all authorities of a system.",
            remedy=f"Give a PEM file with the certificate of the authority alone: {option} FILE",
        ) from error
    return found + "\n"


def client_context(pem: str) -> ssl.SSLContext:
    """Return the TLS settings of a client that accepts a certificate that is one of these, or signed by one of them,
    and names the server. Raises ssl.SSLError, which is an OSError."""
    context = ssl.create_default_context(cadata=pem)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Accept a certificate that an authority has signed without that authority's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def shake_hands(server: ssl.SSLContext, pem: str, host: str) -> None:
    """Let a client of this process, which wants to reach `host`, accept what `server` shows. Raises ssl.SSLError."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client_context(pem).wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(_ROUNDS):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
