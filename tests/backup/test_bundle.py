"""The bundle of manifests: a listing asks a bucket a few times, and says what it says without a bundle."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from recovery.backup import bundle
from recovery.backup.bundle import NAME, Manifests
from recovery.backup.catalog import Catalog
from recovery.backup.heads import Heads, NamedHead
from recovery.backup.manifest import MANIFESTS
from recovery.backup.repository import Listing, list_backups, prune
from recovery.base.clock import SystemClock
from recovery.errors import BackupTargetError
from recovery.places.directory import DirectoryPlace
from recovery.places.protocol import PlaceEntry
from recovery.planning.backups import KeepRule
from tests.backup.support import back_up, work
from tests.shares import seeds

BACKUPS = 12


class Bucket:
    """The objects of a directory, as a place that is none: counts requests."""

    versions = None
    unseen = ""

    def __init__(self, root: Path, *, writable: bool = True) -> None:
        self._inner, self._writable = DirectoryPlace(root), writable
        self.root, self.shown = root, str(root)
        self.asked: Counter[str] = Counter()

    def read(self, name: str) -> Iterator[bytes]:
        self.asked["read"] += 1
        return self._inner.read(name)

    def write(self, name: str, chunks: Iterable[bytes]) -> int:
        if not self._writable:
            raise BackupTargetError("access denied", path=self.shown)
        self.asked["write"] += 1
        return self._inner.write(name, chunks)

    def entries(self, prefix: str) -> list[PlaceEntry]:
        return self._inner.entries(prefix)

    def delete(self, name: str) -> None:
        self._inner.delete(name)

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        return self._inner.read_range(name, offset, size)


@pytest.fixture(scope="module", autouse=True)
def _few():
    """A place with four manifests has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "FEW", 4)
        yield


@pytest.fixture(scope="module")
def made(store_maker, tmp_path_factory) -> Path:
    """A dozen backups of a directory, most of them in chains, of which the heads are objects."""
    directory, place = store_maker(2), tmp_path_factory.mktemp("made") / "bucket"
    for _ in range(BACKUPS):
        work(directory, 1)
        back_up(directory, Bucket(place), incremental=True)
    return place


@pytest.fixture
def bucket(made, tmp_path) -> Bucket:
    return Bucket(Path(shutil.copytree(made, tmp_path / "bucket")))


def afresh(bucket: Bucket) -> Listing:
    """What a listing without a bundle finds."""
    return list_backups(bucket, bundled=False)


def test_a_listing_reads_the_bundle_and_what_it_lacks(bucket):
    """A request for each manifest, once; then one for all."""
    (bucket.root / NAME).unlink(missing_ok=True)
    bucket.asked.clear()
    assert len(list_backups(bucket).manifests) == BACKUPS
    assert bucket.asked["read"] >= BACKUPS
    assert bucket.asked["write"] == 0, "who only looks writes nothing"
    catalog = Catalog(bucket)
    catalog.look()
    catalog.keep_bundle()
    bucket.asked.clear()
    found = list_backups(bucket)
    assert bucket.asked == {"read": 1}
    assert found == afresh(bucket)
    assert Catalog(bucket).look() == Catalog(DirectoryPlace(bucket.root)).look()


def test_a_backup_writes_the_bundle_now_and_then(bucket, make_store):
    """Not each time: its size is that of all manifests together."""
    assert (bucket.root / NAME).exists()
    directory = make_store(1)
    place = Bucket(bucket.root.parent / "other")
    for _ in range(3 * bundle.FEW):
        work(directory, 1)
        back_up(directory, place)
    written = (place.root / NAME).stat().st_mtime_ns
    back_up(directory, place)
    assert (place.root / NAME).stat().st_mtime_ns == written


def test_who_may_only_read_lists_all_the_same(bucket):
    """No bundle can be written, and no error comes of it."""
    (bucket.root / NAME).unlink(missing_ok=True)
    place = Bucket(bucket.root, writable=False)
    catalog = Catalog(place)
    assert len(catalog.look().backups) == BACKUPS
    catalog.keep_bundle()
    assert not (bucket.root / NAME).exists()


def test_who_has_no_right_to_the_bundle_lists_all_the_same(bucket):
    """A user may have a right to manifests and objects only."""

    class Narrow(Bucket):
        def read(self, name: str) -> Iterator[bytes]:
            if name == NAME:
                raise BackupTargetError("access denied", path=self.shown)
            return super().read(name)

    assert (bucket.root / NAME).exists()
    assert list_backups(Narrow(bucket.root)) == afresh(bucket)
    assert len(Catalog(Narrow(bucket.root)).look().backups) == BACKUPS


def changed(bucket: Bucket, generator: random.Random, step: int) -> str:
    """Do one thing that happens to places, and return what."""
    path = bucket.root / NAME
    names = [entry.name for entry in bucket.entries(MANIFESTS)]
    named = bucket.root / generator.choice(names)
    content = path.read_bytes() if path.exists() else b""
    what = generator.choice(["cut", "flipped", "gone", "empty", "old", "removed", "altered", "kept", "junk", "pruned"])
    if what == "cut":
        path.write_bytes(content[: generator.randrange(len(content) + 1)])
    elif what == "flipped" and content:
        at = generator.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    elif what == "gone":
        path.unlink(missing_ok=True)
    elif what in ("empty", "junk"):
        path.write_bytes(b"" if what == "empty" else os.urandom(100))
    elif what == "removed" and len(names) > 3:
        named.unlink()
    elif what == "altered":
        # Another object of the same name and size, written later.
        named.write_bytes(bytes(reversed(named.read_bytes())))
        os.utime(named, (10_000 + step, 10_000 + step))
    elif what == "pruned":
        prune(bucket, [KeepRule(count=generator.randint(3, 12))], SystemClock().wall_ms())
    elif what == "kept":
        catalog = Catalog(bucket)
        catalog.look()
        catalog.keep_bundle()
    return what


@pytest.mark.parametrize("seed", seeds(40))
def test_whatever_becomes_of_the_bundle_a_listing_is_right(bucket, seed):
    """A bundle that is cut off, altered, lost or of another time; manifests that go, or are others: what is listed is
    what the manifests say."""
    generator = random.Random(seed)
    done = []
    for step in range(15):
        done.append(changed(bucket, generator, step))
        assert list_backups(bucket) == afresh(bucket), (seed, done)
        assert Catalog(bucket).look() == Catalog(DirectoryPlace(bucket.root)).look(), (seed, done)


def test_of_two_who_write_at_the_same_time_the_last_counts(bucket):
    """What its bundle lacks is read."""
    first, second = Catalog(bucket), Catalog(bucket)
    names = sorted(entry.name for entry in bucket.entries(MANIFESTS))
    (bucket.root / NAME).unlink(missing_ok=True)
    first.look()
    (bucket.root / names[0]).unlink()
    second.look()
    second.keep_bundle()
    first.keep_bundle()
    assert list_backups(bucket) == afresh(bucket)
    assert len(list_backups(bucket).manifests) == BACKUPS - 1


def test_a_directory_has_no_bundle(make_store, tmp_path):
    """There a manifest costs no request."""
    directory = make_store(1)
    for _ in range(2 * bundle.FEW):
        work(directory, 1)
        back_up(directory, tmp_path / "place")
    prune(DirectoryPlace(tmp_path / "place"), [KeepRule(count=5)], SystemClock().wall_ms())
    assert not (tmp_path / "place" / NAME).exists()


def test_a_bundle_that_would_be_too_large_is_not_written_and_not_read(bucket, monkeypatch):
    """Memory is bounded, whatever lies at the place."""
    written = (bucket.root / NAME).read_bytes()
    monkeypatch.setattr(bundle, "LARGEST", 100)
    bucket.asked.clear()
    assert len(list_backups(bucket).manifests) == BACKUPS
    catalog = Catalog(bucket)
    catalog.look()
    catalog.keep_bundle()
    assert (bucket.root / NAME).read_bytes() == written


def test_a_head_in_a_bundle_is_compared_with_its_digest(bucket):
    """As a head at the place is."""
    (bucket.root / NAME).unlink(missing_ok=True)
    catalog = Catalog(bucket)
    newest = catalog.newest()
    assert newest is not None
    assert newest.head is not None
    catalog.keep_bundle()
    stored = Manifests(bucket)
    path = bucket.root / newest.head.object
    path.write_bytes(b"another")
    bucket.asked.clear()
    with stored.expecting(bucket.entries(MANIFESTS)):
        assert Heads(stored).read(NamedHead(newest.head.object, newest.head.sha256)) == newest.head
        assert bucket.asked == {"read": 1}
        with pytest.raises(ValueError, match="differs from what was stored"):
            Heads(stored).read(NamedHead(newest.head.object, "0" * 64))
    with pytest.raises(ValueError, match="differs from what was stored"):
        Heads(stored).read(NamedHead(newest.head.object, newest.head.sha256))
