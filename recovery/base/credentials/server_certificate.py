"""The certificate that a process of this host shows to its clients, with its key: read, and read again when renewed."""

from __future__ import annotations

import os
import ssl
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

from recovery.base.credentials.certificates import (
    MOST_FILE_BYTES,
    certificates_end_ms,
    certificates_in,
    shake_hands,
)
from recovery.base.credentials.token import warn_if_shared
from recovery.base.untrusted_paths import read_named
from recovery.errors import ConfigurationError

CHAIN_BYTES = 64 << 10
"""The most bytes of a certificate with those between it and its authority: clients read at most some 100 kB."""
KEY_BYTES = 64 << 10

Stamp = tuple[tuple[int, int, int, int], ...]
"""Device, number, time and size of each file."""


class ServerCertificate(NamedTuple):
    """What serves TLS, and when the first certificate of its chain ends; None: that cannot be read."""

    context: ssl.SSLContext
    end_ms: int | None


class CertificateFiles(NamedTuple):
    """PEM files of a certificate and its key. key: None: the certificate's file has the key, too."""

    certificate: Path
    key: Path | None = None

    def read(self) -> ServerCertificate:
        """Return what the files have now. Never waits: a pipe, but one of the shell, is refused. Raises
        ConfigurationError."""
        try:
            content = read_named(self.certificate, MOST_FILE_BYTES)
            chain = certificates_in(content, CHAIN_BYTES)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"the certificate of --tls-cert cannot be used: {getattr(error, 'strerror', None) or error}",
                path=self.certificate,
                cause="It is not a PEM file, or it has other certificates than this host's own and those that lead to "
                "its authority.",
                remedy="Give a PEM file that begins with the certificate of this host: --tls-cert FILE",
            ) from error
        try:
            key = content if self.key is None else read_named(self.key, KEY_BYTES)
        except OSError as error:
            raise ConfigurationError(
                f"the key of --tls-key cannot be used: {error.strerror or error}",
                path=self.key,
                cause="",
                remedy="Give the PEM file with the private key of the certificate: --tls-key FILE",
            ) from error
        return ServerCertificate(self._context(content, key), certificates_end_ms(chain))

    def warn_if_shared(self) -> None:
        """Log a warning if other users of this machine may read the key."""
        warn_if_shared(self.key or self.certificate, "the private key")

    def stamp(self) -> Stamp | None:
        """Return what shows that a file was replaced or written; None if one of them is not there."""
        try:
            found = [path.stat() for path in (self.certificate, self.key) if path is not None]
        except OSError:
            return None
        return tuple((each.st_dev, each.st_ino, each.st_mtime_ns, each.st_size) for each in found)

    def _context(self, certificate: bytes, key: bytes) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # OpenSSL reads files only. It would wait for a pipe, and read other bytes than those that were checked.
            with _nameless(certificate) as one, _nameless(key) as other:
                context.load_cert_chain(_path_of(one), _path_of(other), self._refuse_password)
        except OSError as error:
            raise ConfigurationError(
                f"the certificate and its key cannot be used: {getattr(error, 'reason', None) or error}",
                path=self.certificate,
                cause="They do not belong together, or one of them is not in PEM.",
                remedy="Give PEM files that belong together: --tls-cert and --tls-key.",
            ) from error
        return context

    def _refuse_password(self) -> NoReturn:
        raise ConfigurationError(
            "the key is encrypted, and nobody can be asked for its password",
            path=self.key or self.certificate,
            cause="",
            remedy="Give a key without a password that only this user can read: openssl pkey -in FILE -out NEW",
        )


class RenewedCertificate:
    """The certificate of a process that has no other way to learn of a new one: looked for with each connection.

    A pair of files that cannot be used, or that clients would not accept, leaves the last one in use. Any thread may
    call it.
    """

    def __init__(self, files: CertificateFiles, trusted: str | None, host: str, log: Callable[[str], None]) -> None:
        """trusted, host: the certificates with which clients check a new one, and the name by which they know this
        host; None: no check. Raises ConfigurationError."""
        self._files = files
        self._trusted = trusted
        self._host = host
        self._log = log
        self._lock = threading.Lock()
        self._seen = files.stamp()
        self._last = files.read()

    def __call__(self) -> ssl.SSLContext:
        """Return what serves TLS to a new connection."""
        with self._lock:
            seen = self._files.stamp()
            if seen not in (None, self._seen):
                self._seen = seen
                self._renew()
            return self._last.context

    def end_ms(self) -> int | None:
        """Return when the first certificate of the chain ends that a new connection would get; None: that cannot be
        read."""
        self()
        return self._last.end_ms

    def _renew(self) -> None:
        try:
            found = self._files.read()
            if self._trusted is not None:
                shake_hands(found.context, self._trusted, self._host)
        except (ConfigurationError, ssl.SSLError) as error:
            why = error.parts()[0] if isinstance(error, ConfigurationError) else getattr(error, "verify_message", error)
            self._log(f"the certificate was not renewed, the one from before stays in use: {why}")
            return
        self._last = found
        self._log("the certificate was renewed")


def _nameless(content: bytes) -> IO[bytes]:
    """Return a file without a name, in memory where the system can do that, so that no key gets on a disk."""
    made = getattr(os, "memfd_create", None)
    file: IO[bytes] = tempfile.TemporaryFile() if made is None else os.fdopen(made("recovery"), "w+b")  # noqa: SIM115
    file.write(content)
    file.flush()
    file.seek(0)
    return file


def _path_of(file: IO[bytes]) -> str:
    return f"/dev/fd/{file.fileno()}"
