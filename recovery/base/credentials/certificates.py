"""Certificates in PEM files, and the TLS settings with which a client checks an owner's certificate."""

from __future__ import annotations

import contextlib
import re
import ssl
from datetime import UTC, datetime
from pathlib import Path

from recovery.base.untrusted_paths import read_named
from recovery.errors import ConfigurationError

MOST_BYTES = 64 << 10
"""The most bytes of certificates in a file: every task gets the certificates."""
MOST_FILE_BYTES = 16 << 20
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _SHORT_TIME = 0xA0, 0x17
"""Tags of DER: the field `version`, and a time with two digits for its year."""
_EXPIRED = 10
"""OpenSSL's number for a certificate that has ended."""
_ROUNDS = 10
"""Of a handshake, which needs three."""


def read_certificates(path: Path, option: str = "--tls-ca") -> str:
    """Return the certificates in a PEM file, without its other content, such as a key, for a client that checks with
    them. option: names the file in an error. Raises ConfigurationError."""
    try:
        found = certificates_in(read_named(path, MOST_FILE_BYTES), MOST_BYTES)
        client_context(found)
    except (OSError, ValueError, MemoryError) as error:
        raise ConfigurationError(
            f"the certificates of {option} cannot be used: {getattr(error, 'strerror', None) or error}",
            path=path,
            cause="The file is not a PEM file, or holds all authorities of a system.",
            remedy=f"Give a PEM file with the certificate of the authority alone: {option} FILE",
        ) from error
    return found


def certificates_in(content: bytes, most_bytes: int) -> str:
    """Return the certificates in a PEM text, without its other content. Raises ValueError if there are none, or more
    than `most_bytes` of them."""
    found = "\n".join(_CERTIFICATE.findall(content.decode(errors="replace")))
    if not found:
        raise ValueError("it contains no certificate")
    if len(found) > most_bytes:
        raise ValueError(f"its certificates have {len(found)} bytes, where {most_bytes} are allowed")
    return found + "\n"


def certificates_end_ms(pem: str) -> int | None:
    """Return when the first of the certificates in a PEM text ends, in milliseconds since 1970; None if there is no
    certificate that can be read."""
    ends = []
    for found in _CERTIFICATE.findall(pem):
        with contextlib.suppress(ValueError, IndexError):
            ends.append(_end_ms(ssl.PEM_cert_to_DER_cert(found)))
    return min(ends, default=None)


def _end_ms(der: bytes) -> int:
    """Return when a certificate ends (RFC 5280, 4.1.2.5). Raises ValueError and IndexError for what is none."""
    _, certificate, _ = _element(der)
    _, fields, _ = _element(certificate)
    kind, _, after = _element(fields)
    # The version may be left out; then the serial number is first. The signature's algorithm and the issuer follow.
    for _ in range(3 if kind == _VERSION else 2):
        fields = after
        _, _, after = _element(fields)
    _, validity, _ = _element(after)
    _, _, validity = _element(validity)
    kind, end, _ = _element(validity)
    text = end.decode("ascii")
    if kind == _SHORT_TIME:
        text = ("19" if text >= "5" else "20") + text
    moment = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1000


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Return the tag and the content of the first element of a DER text, and what follows it."""
    length, begin = der[1], 2
    if length >= 0x80:
        begin += length - 0x80
        length = int.from_bytes(der[2:begin])
    if begin + length > len(der):
        raise ValueError("the certificate is cut off")
    return der[0], der[begin : begin + length], der[begin + length :]


def client_context(pem: str) -> ssl.SSLContext:
    """Return the TLS settings of a client that accepts a certificate that is one of these, or signed by one of them,
    and names the server. Raises ssl.SSLError, which is an OSError."""
    context = ssl.create_default_context(cadata=pem)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Accept a certificate that an authority has signed without that authority's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def why_not_accepted(error: ssl.SSLCertVerificationError) -> tuple[str, str]:
    """Return the probable cause and the way out of an owner's certificate that was not accepted."""
    if error.verify_code == _EXPIRED:
        return (
            "The certificate of the owner, or of its authority, was not renewed in time; or this clock is wrong.",
            "Renew it and have the owner read it: kill -HUP. Then run the same command again.",
        )
    return (
        "The certificate names another host, was signed by another authority, or is not valid yet.",
        "Give the owner a certificate that names this host, and the run the certificates to check it with.",
    )


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
