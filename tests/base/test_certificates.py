"""What is read of PEM files, and how a client checks with it."""

from __future__ import annotations

import ssl

import pytest

from recovery.base.credentials.certificates import MOST_BYTES, read_certificates, shake_hands
from recovery.errors import ConfigurationError
from tests.wire.certificates import make_certificates


def test_only_certificates_are_read(tmp_path):
    """Not the key, nor what people write between them."""
    certificate, key, authority = make_certificates(tmp_path)
    both = tmp_path / "both.pem"
    both.write_text(f"Herr Müller\n{key.read_text()}{certificate.read_text()}# end\n{authority.read_text()}")
    assert read_certificates(both) == certificate.read_text() + authority.read_text()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "No such file"),
        (b"", "it contains no certificate"),
        (b"\xff\0", "it contains no certificate"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be used"),
        (b"-----BEGIN CERTIFICATE-----\n" + b"A" * MOST_BYTES + b"\n-----END CERTIFICATE-----\n", "are allowed"),
    ],
)
def test_what_cannot_be_used(tmp_path, content, found):
    """A typed error that names the file."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=found) as raised:
        read_certificates(path)
    assert raised.value.path == str(path)


def test_a_key_alone_is_no_certificate(tmp_path):
    """The error does not show it."""
    key = make_certificates(tmp_path)[1]
    with pytest.raises(ConfigurationError, match="it contains no certificate") as raised:
        read_certificates(key)
    assert key.read_text().splitlines()[1] not in str(raised.value)


def test_a_client_accepts_what_was_given_or_signed_by_it(tmp_path):
    """By its name or its address, and no other."""
    certificate, key, authority = make_certificates(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    for pem in (certificate.read_text(), authority.read_text()):
        shake_hands(server, pem, "localhost")
        shake_hands(server, pem, "127.0.0.1")
        for other in ("127.0.0.2", "localhost.example"):
            with pytest.raises(ssl.SSLCertVerificationError):
                shake_hands(server, pem, other)
