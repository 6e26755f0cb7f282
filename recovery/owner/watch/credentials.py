"""The tokens and the certificate of an owner's service, which it reads when it starts and again when it is asked to."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from recovery.base.clock import Clock
from recovery.base.credentials.server_certificate import CertificateFiles
from recovery.base.credentials.token import read_tokens
from recovery.base.intervals import format_interval

SOON_S = 14 * 24 * 3600.0
"""A certificate that ends within this time is mentioned in the log."""


class Credentials(NamedTuple):
    """What an owner shows and accepts. tokens: each is accepted. tls: None: no TLS. certificate_end_ms: when the first
    certificate of its chain ends; None: unknown, or no TLS."""

    tokens: tuple[bytes, ...]
    tls: ssl.SSLContext | None
    certificate_end_ms: int | None

    def certificate_left_s(self, clock: Clock) -> float | None:
        """Return the seconds until the certificate ends, negative when it has; None: unknown, or no TLS."""
        end_ms = self.certificate_end_ms
        return None if end_ms is None else (end_ms - clock.wall_ms()) / 1000

    def text(self, clock: Clock) -> str:
        """Return what the log says about the credentials, without their content."""
        parts = ["one token" if len(self.tokens) == 1 else f"{len(self.tokens)} tokens"]
        left_s = self.certificate_left_s(clock)
        if self.tls is None:
            parts.append("no TLS")
        elif left_s is None:
            parts.append("TLS")
        elif left_s > 0:
            parts.append(f"TLS, certificate ends in {format_interval(round(left_s))}")
        else:
            parts.append("TLS, certificate has ended: nobody gets in")
        return ", ".join(parts)


class CredentialFiles(NamedTuple):
    """Where the credentials are: PEM files, and that of the token."""

    token: Path
    certificate: Path | None
    key: Path | None

    def read(self) -> Credentials:
        """Return what the files have now. Raises ConfigurationError if one of them cannot be used."""
        tokens = read_tokens(self.token)
        if self.certificate is None:
            return Credentials(tokens, None, None)
        files = CertificateFiles(self.certificate, self.key)
        files.warn_if_shared()
        return Credentials(tokens, *files.read())
