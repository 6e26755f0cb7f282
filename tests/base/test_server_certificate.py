"""The certificate that a process shows: its files are read without waiting, and again when they change."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from recovery.base.credentials.certificates import shake_hands
from recovery.base.credentials.server_certificate import (
    CHAIN_BYTES,
    KEY_BYTES,
    CertificateFiles,
    RenewedCertificate,
)
from recovery.errors import ConfigurationError
from tests.wire.certificates import make_certificates


@pytest.fixture
def files(tmp_path) -> CertificateFiles:
    return CertificateFiles(*make_certificates(tmp_path)[:2])


def test_what_is_read_serves_tls(tmp_path, files):
    """From two files, or from one that has both; and it says when the certificate ends."""
    together = tmp_path / "together.pem"
    together.write_text(files.key.read_text() + files.certificate.read_text())
    for each in (files, CertificateFiles(together)):
        found = each.read()
        shake_hands(found.context, files.certificate.read_text(), "localhost")
        assert found.end_ms is not None


def test_a_key_from_a_pipe_of_the_shell(files):
    """As in --tls-key <(print-secret)."""
    reading, writing = os.pipe()
    try:
        os.write(writing, files.key.read_bytes())
        os.close(writing)
        CertificateFiles(files.certificate, Path(f"/dev/fd/{reading}")).read()
    finally:
        os.close(reading)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _chain(path: Path) -> None:
    path.write_text(path.read_text() * (CHAIN_BYTES // path.stat().st_size + 1))


def _encrypted(path: Path) -> None:
    made = path.with_suffix(".new")
    words = ["openssl", "pkey", "-in", path, "-aes256", "-passout", "pass:x", "-out", made]
    subprocess.run(words, check=True, capture_output=True)
    made.replace(path)


WRONG = {
    "no certificate": ("certificate", Path.unlink, "No such file", "--tls-cert FILE"),
    "a pipe as certificate": ("certificate", _pipe, "not a file", "--tls-cert FILE"),
    "a device as certificate": ("certificate", _device, "not a file", "--tls-cert FILE"),
    "a long chain": ("certificate", _chain, "where 65536 are allowed", "begins with the certificate of this host"),
    "no key": ("key", Path.unlink, "No such file", "--tls-key FILE"),
    "a pipe as key": ("key", _pipe, "not a file", "--tls-key FILE"),
    "a large key": ("key", lambda path: path.write_bytes(b"x" * (KEY_BYTES + 1)), "larger than", "--tls-key FILE"),
    "no PEM": ("key", lambda path: path.write_bytes(b"x"), "cannot be used", "belong together"),
    "an encrypted key": ("key", _encrypted, "is encrypted", "without a password"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_used(files, what):
    """A typed error, in time, that names the file and says what to give in its place."""
    if what == "an encrypted key" and shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    field, change, words, way = WRONG[what]
    change(getattr(files, field))
    with pytest.raises(ConfigurationError, match=words) as error:
        files.read()
    assert way in error.value.remedy
    assert error.value.path in (str(files.certificate), str(files.key))


class TestRenewed:
    """A process that nobody can signal shows a new certificate to who connects next."""

    @pytest.fixture
    def authority(self, tmp_path, files) -> str:
        return (tmp_path / "ca.pem").read_text()

    def accepted(self, shown: RenewedCertificate, pem: str) -> bool:
        try:
            shake_hands(shown(), pem, "localhost")
        except ssl.SSLError:
            return False
        return True

    def test_a_new_pair(self, tmp_path, files):
        """Without a check, whatever belongs together is taken."""
        lines: list[str] = []
        before = files.certificate.read_text()
        shown = RenewedCertificate(files, None, "", lines.append)
        first_end = shown.end_ms()
        assert self.accepted(shown, before)
        make_certificates(tmp_path, lasts_days=30)
        assert self.accepted(shown, files.certificate.read_text())
        assert not self.accepted(shown, before)
        assert shown.end_ms() > first_end
        assert lines == ["the certificate was renewed"]

    def test_what_cannot_be_used_leaves_the_last_one(self, tmp_path, files):
        """A pair that is half written, one that clients would not accept, files that are gone; said once each."""
        lines: list[str] = []
        before = files.certificate.read_text()
        shown = RenewedCertificate(files, before, "localhost", lines.append)
        kept = files.key.read_bytes()
        files.key.write_bytes(b"")
        assert [self.accepted(shown, before) for _ in range(3)] == [True] * 3
        make_certificates(tmp_path)
        assert [self.accepted(shown, before) for _ in range(3)] == [True] * 3
        files.certificate.unlink()
        assert self.accepted(shown, before)
        assert len(lines) == 2
        assert all("stays in use" in line for line in lines)
        files.certificate.write_text(before)
        files.key.write_bytes(kept)
        assert self.accepted(shown, before)
        assert lines[2:] == ["the certificate was renewed"]
