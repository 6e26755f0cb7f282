"""Older versions of objects in an S3 bucket, and locks on them, by moto."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from recovery.errors import BackupTargetError
from recovery.places.access import Access
from recovery.places.failures import Failures
from recovery.places.opening import open_place
from recovery.places.protocol import OlderVersion
from recovery.places.versions import BucketVersions, signed
from tests.backup import emulators
from tests.backup.buckets import Bucket, locked_bucket, versioned_bucket
from tests.backup.emulators import Emulator


@pytest.fixture
def s3(servers) -> Emulator:
    """moto's server."""
    return servers.of(emulators.moto)


@pytest.fixture
def bucket(s3, monkeypatch) -> Bucket:
    """A bucket with versioning."""
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    return versioned_bucket(s3, "versions")


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ({"lifecycle": ""}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ({"prefix": "J", "max-keys": "2"}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signatures_are_those_of_the_documentation(query, signature):
    """AWS's own examples of Signature Version 4."""
    access = Access("", key_id="AKIAIOSFODNN7EXAMPLE", secret="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    url, at = "https://examplebucket.s3.amazonaws.com/", datetime(2013, 5, 24, tzinfo=UTC)
    headers = signed("GET", url, query, access, "us-east-1", at)
    assert headers["authorization"].rpartition("=")[2] == signature


def test_what_was_removed_or_replaced_is_an_older_version(bucket):
    """Each with its bytes, below the place only, whatever its name; a removed version is gone for good."""
    place, other = open_place(bucket.place("a folder")), open_place(bucket.place("another"))
    for content in (b"first", b"second"):
        place.write("objects/é & +/1", [content])
    place.write("objects/2", [b"kept"])
    other.write("objects/3", [b"elsewhere"])
    place.delete("objects/é & +/1")
    other.delete("objects/3")
    assert place.versions is not None
    found = place.versions.entries("objects/")
    assert [each.name for each in found] == ["objects/é & +/1"] * 2
    assert {b"".join(place.versions.read(each)) for each in found} == {b"first", b"second"}
    for each in found * 2:
        place.versions.delete(each)
    assert place.versions.entries("objects/") == []
    with pytest.raises(FileNotFoundError):
        list(place.versions.read(found[0]))
    assert b"".join(place.read("objects/2")) == b"kept"


def test_all_pages_of_a_list_are_read(bucket, monkeypatch):
    """A server answers with a limited number of versions."""
    place = open_place(bucket.place("pages"))
    for _ in range(7):
        place.write("objects/1", [b"x"])
    assert place.versions is not None
    asked = place.versions._request
    monkeypatch.setattr(
        place.versions, "_request", lambda method, name, query: asked(method, name, {**query, "max-keys": "2"})
    )
    found = place.versions.entries("objects/")
    assert len(set(found)) == 6


def test_a_lock_is_shown_with_its_end(s3, bucket):
    """And a hold without one; what no lock keeps has none."""
    locked = locked_bucket(s3, "locks", days=3)
    place = open_place(locked.place("copies"))
    place.write("objects/1", [b"x"])
    locked.lock(days=3, mode="COMPLIANCE")
    place.delete("objects/1")
    assert place.versions is not None
    [older] = place.versions.entries("objects/")
    lock = place.versions.lock(*older)
    assert lock is not None
    assert lock.until is not None
    assert lock.mode == "compliance"
    assert abs(datetime.fromisoformat(lock.until) - datetime.now(UTC) - timedelta(days=3)) < timedelta(minutes=5)
    with pytest.raises(BackupTargetError):
        place.versions.delete(older)
    assert place.versions.entries("objects/") == [older]
    free = open_place(bucket.place("free"))
    free.write("objects/1", [b"x"])
    assert free.versions is not None
    assert free.versions.lock("objects/1") is None
    locked.hold("copies/objects/1", older.version)
    held = place.versions.lock(*older)
    assert held is not None
    assert (held.until, held.mode) == (None, "legal hold")


def test_a_bucket_that_keeps_no_versions_has_none(s3, bucket):
    """Nor does one that was never asked to."""
    place = open_place(s3.place("plain"))
    place.write("objects/1", [b"x"])
    place.delete("objects/1")
    assert place.versions is not None
    assert place.versions.entries("objects/") == []
    place.versions.delete(OlderVersion("objects/1", "null"))


class Broken(BaseHTTPRequestHandler):
    """A server whose list of versions never ends, and whose objects end too early."""

    def do_GET(self) -> None:
        """Answer a list, or half an object."""
        if "elsewhere" in self.path:
            self.send_response(307)
            self.send_header("location", "/stolen")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        assert "stolen" not in self.path
        page = b"<R><IsTruncated>true</IsTruncated><NextKeyMarker>a</NextKeyMarker></R>"
        if "prefix=place%2Fgenerations%2F" in self.path:
            page = b"<R><Version><Key>place/generations/1</Key><IsLatest>false</IsLatest></Version></R>"
        is_list = "versionId" not in self.path
        self.send_response(200)
        self.send_header("content-length", str(len(page) if is_list else 10))
        self.end_headers()
        self.wfile.write(page if is_list else b"half ")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def broken() -> Iterator[BucketVersions]:
    """The versions of a bucket at that server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        access = Access("", endpoint=f"http://127.0.0.1:{server.server_port}", key_id="key", secret="secret")
        yield BucketVersions("bucket", "place", access, Failures(BackupTargetError, "place"), 10.0)
        server.shutdown()
        thread.join(10)


def test_a_list_that_does_not_end_is_an_error(broken):
    """No server that answers makes the command wait for ever."""
    with pytest.raises(BackupTargetError, match="does not come to an end"):
        broken.entries("objects/")


def test_a_redirection_is_not_followed(broken):
    """A request that is signed for one server is sent to no other."""
    with pytest.raises(BackupTargetError, match="307"):
        broken.entries("elsewhere/")


def test_versions_without_ids_are_an_error(broken):
    """A server that names them in another way cannot be asked for one, nor to remove one."""
    with pytest.raises(BackupTargetError, match="without their ids"):
        broken.entries("generations/")


def test_half_a_version_is_an_error(broken):
    """It is not taken for a version without the key."""
    with pytest.raises(BackupTargetError, match="5 bytes are missing"):
        list(broken.read(OlderVersion("drills/1.json", "v")))


def test_a_bucket_that_is_not_there_is_an_error(s3, bucket):
    """With what the service says, and without a secret."""
    place = open_place(s3.place("x").replace(emulators.BUCKET, "no-such-bucket"))
    assert place.versions is not None
    with pytest.raises(BackupTargetError, match="NoSuchBucket"):
        place.versions.entries("objects/")
