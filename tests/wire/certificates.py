"""Certificates for tests, made where they run."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import pytest


def make_certificates(
    directory: Path,
    names: tuple[str, ...] = ("localhost",),
    addresses: tuple[str, ...] = ("127.0.0.1",),
    *,
    lasts_days: float = 2,
) -> tuple[Path, Path, Path]:
    """Files of a certificate, its key, and the authority that signed it."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)

    def signed(name, key, issuer, issuer_key, *extensions):
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=lasts_days))
        )
        for extension, critical in extensions:
            made = made.add_extension(extension, critical)
        return made.sign(issuer_key, hashes.SHA256())

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = signed(
        "tests", authority_key, "tests", authority_key, (x509.BasicConstraints(ca=True, path_length=None), True)
    )
    subjects = [*map(x509.DNSName, names), *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses)]
    certificate = signed("owner", key, "tests", authority_key, (x509.SubjectAlternativeName(subjects), False))
    paths = directory / "cert.pem", directory / "key.pem", directory / "ca.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    paths[2].write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    return paths
