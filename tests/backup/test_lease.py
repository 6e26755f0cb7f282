"""The lease of a store: one writer at a time, on a disk and in buckets, whoever is late, killed or copied."""

from __future__ import annotations

import itertools
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.backup import lease
from recovery.backup.conditional import Documents, open_documents
from recovery.backup.lease import Claimant, PublishingLease, claim, read_term
from recovery.base.clock import SystemClock
from recovery.errors import (
    BackupDamagedError,
    BackupTargetError,
    ConfigurationError,
    ForeignPartitionError,
    TakenOverError,
)
from recovery.places.directory import DirectoryDocuments, DirectoryPlace
from recovery.places.protocol import Conflict, FoundObject
from tests.backup.support import random_id
from tests.operational.emulators import store

KINDS = ("file", "s3", "azure", "gs")
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=KINDS)
def stores(request, tmp_path_factory, servers):
    """Each kind of store, for all tests of the module."""
    with store(request.param, tmp_path_factory.mktemp("place"), servers) as found:
        yield found


@pytest.fixture
def documents(stores) -> Documents:
    """A place of the test's own."""
    return open_documents(stores.place(f"lease-{next(_numbers)}"))


def run(directory: Path, number: int = 1, store_id: str = "s", *, sync: bool = False) -> Claimant:
    """A run that starts on a directory."""
    directory.mkdir(exist_ok=True)
    return Claimant(directory, store_id, "flow x", 1, number, sync)


def promotion(directory: Path) -> Claimant:
    directory.mkdir(exist_ok=True)
    return Claimant(directory, "s", "promotion", 1)


def claimed(documents: Documents, claimant: Claimant, **options) -> PublishingLease:
    return claim(documents, claimant, SystemClock(), random_id, **options)


def test_one_directory_writes_and_another_takes_over(documents, tmp_path):
    """A directory goes on, run after run. After a promotion elsewhere its run is refused, and its next run as well."""
    first = claimed(documents, run(tmp_path / "a"))
    second = claimed(documents, run(tmp_path / "a", 2))
    second.check()
    assert (first.term.term, second.term.term) == (1, 2)
    with pytest.raises(TakenOverError, match="execution 2"):
        first.check()
    over = claimed(documents, promotion(tmp_path / "b"), seen=second.term.nonce)
    assert over.before == second.term
    for refused in (second.check, lambda: second.end(3), lambda: claimed(documents, run(tmp_path / "a", 3))):
        with pytest.raises(TakenOverError, match=r"a promotion on .* with term 3"):
            refused()
    with pytest.raises(TakenOverError):
        claimed(documents, run(tmp_path / "a", 3), takeover=True)
    over.check()
    third = claimed(documents, run(tmp_path / "b", 3, sync=True))
    assert (third.term.term, third.term.sync) == (4, True)


def test_a_promotion_ends_only_the_writer_that_it_saw(documents, tmp_path):
    """One of two standbys wins; none takes over from a run that began since."""
    first = claimed(documents, run(tmp_path / "a"))
    claimed(documents, promotion(tmp_path / "b"), seen=first.term.nonce)
    with pytest.raises(TakenOverError, match="a promotion"):
        claimed(documents, promotion(tmp_path / "c"), seen=first.term.nonce)
    with pytest.raises(TakenOverError):
        claimed(documents, promotion(tmp_path / "c"), seen="")


def test_another_directory_takes_over_only_on_request(documents, tmp_path):
    """A restored one says so; a copy of the directory goes on, and takes the store away from the original."""
    first = claimed(documents, run(tmp_path / "a"))
    with pytest.raises(TakenOverError, match="not the one that it used"):
        claimed(documents, run(tmp_path / "restored", 2))
    with pytest.raises(ForeignPartitionError):
        claimed(documents, run(tmp_path / "other", 2, "another store"), takeover=True)
    second = claimed(documents, run(tmp_path / "restored", 2), takeover=True)
    with pytest.raises(TakenOverError):
        first.check()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / lease.NAME).write_bytes((tmp_path / "restored" / lease.NAME).read_bytes())
    claimed(documents, run(tmp_path / "copy", 3))
    with pytest.raises(TakenOverError):
        second.check()
    with pytest.raises(TakenOverError):
        claimed(documents, run(tmp_path / "restored", 3))


def test_a_place_has_one_name(tmp_path):
    """However it is written: a directory that was taken over gets nothing by another spelling of the place."""
    (tmp_path / "place").mkdir()
    (tmp_path / "link").symlink_to("place")
    documents = open_documents(str(tmp_path / "place"))
    first = claimed(documents, run(tmp_path / "a"))
    claimed(documents, promotion(tmp_path / "b"), seen=first.term.nonce)
    for spelled in ("link", "link/../place", "place/"):
        with pytest.raises(TakenOverError):
            claimed(open_documents(f"{tmp_path}/{spelled}"), run(tmp_path / "a", 2), takeover=True)
    claimed(open_documents(f"{tmp_path}/link"), run(tmp_path / "b", 2))


def test_a_directory_notes_how_its_place_is_found_again(tmp_path, documents, stores):
    """A bucket by its whole address, with the settings after the `?`, but never with credentials; and a document that
    an older version wrote, without an address, is read."""
    claimed(documents, run(tmp_path / "a"))
    [place] = lease.places_of(tmp_path / "a")
    assert open_documents(place).get(lease.NAME) == documents.get(lease.NAME)
    held = tmp_path / "a" / lease.NAME
    older = {name: value for name, value in json.loads(held.read_bytes()).items() if name != "address"}
    held.write_text(json.dumps(older))
    assert lease.places_of(tmp_path / "a") == [older["place"].removeprefix("file://")]
    assert lease.look_at_term(documents, tmp_path / "a")[1]


def test_an_address_with_credentials_is_not_noted(tmp_path):
    """Whoever reads the directory must not get the key of the bucket."""
    address = "s3://name:password@bucket/path?endpoint=http://127.0.0.1:9"
    assert open_documents(address).address == ""
    assert open_documents("s3://bucket/path?region=eu-west-1").address == "s3://bucket/path?region=eu-west-1"
    assert open_documents(str(tmp_path)).address == ""


@pytest.mark.parametrize(("directory", "file"), [(0o700, 0o600), (0o750, 0o640), (0o755, 0o644)])
def test_who_may_read_the_place_may_read_the_lease(tmp_path, directory, file):
    """A standby may be another user's of the group, as for the backups themselves."""
    (tmp_path / "place").mkdir()
    (tmp_path / "place").chmod(directory)
    before = os.umask(0o022)
    try:
        claimed(open_documents(str(tmp_path / "place")), run(tmp_path / "a")).end(1)
        DirectoryPlace(tmp_path / "place").write("object", [b""])
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "place").iterdir()} == {file}


def test_an_ended_run_says_after_which_epoch(documents, tmp_path):
    """A successor knows that nothing is lost; the directory goes on."""
    first = claimed(documents, run(tmp_path / "a"))
    first.end(7)
    over = claimed(documents, run(tmp_path / "a", 2))
    assert over.before == replace(first.term, ended=7)


def test_of_many_that_claim_at_once_one_gets_each_term(documents, tmp_path):
    """Promotions that saw the same writer: exactly one wins, and it alone may write."""
    first = claimed(documents, run(tmp_path / "a"))
    won, refused = [], []
    gate = threading.Barrier(6)

    def attempt(number: int) -> None:
        gate.wait()
        try:
            won.append(claimed(documents, promotion(tmp_path / f"b{number}"), seen=first.term.nonce))
        except TakenOverError as error:
            refused.append(error)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (len(won), len(refused)) == (1, 5)
    won[0].check()


class CutOff(DirectoryDocuments):
    """Files behind a connection that is cut at the k-th call: before it, or after its work is done."""

    def __init__(self, root: Path, at: int, done: bool) -> None:
        super().__init__(root, 5.0)
        self.calls = 0
        self._at, self._done = at, done

    def get(self, path: str) -> FoundObject | None:
        return self._call(lambda: super(CutOff, self).get(path))

    def put(self, path: str, content: bytes, expected: object) -> object:
        return self._call(lambda: super(CutOff, self).put(path, content, expected))

    def _call(self, work):
        self.calls += 1
        if self.calls == self._at and not self._done:
            raise BackupTargetError("cut", path=self.location)
        found = work()
        if self.calls == self._at:
            raise BackupTargetError("cut", path=self.location)
        return found


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_claim_that_is_cut_off_can_be_repeated(tmp_path, done):
    """Whether or not the store got it: the directory goes on, for a run and for a promotion."""
    for make, options in ((run, {}), (promotion, {"seen": "first"})):
        for at in itertools.count(1):
            place = tmp_path / f"{make.__name__}-{done}-{at}"
            place.mkdir()
            whole = Documents(DirectoryDocuments(place, 5.0), "place")
            before = claimed(whole, run(tmp_path / f"a-{place.name}"))
            directory = tmp_path / (f"a-{place.name}" if make is run else f"b-{place.name}")
            seen = {"seen": before.term.nonce} if options else {}
            cut = CutOff(place, at, done)
            try:
                claimed(Documents(cut, "place"), make(directory), **seen)
            except BackupTargetError:
                held = claimed(whole, make(directory), **seen)
                held.check()
                assert held.before is not None
                if make is promotion:
                    assert held.before == before.term
            if cut.calls < at:
                break
        assert at > 2


class Careless(DirectoryDocuments):
    """A service that writes whatever the condition is."""

    def put(self, path: str, content: bytes, expected: object) -> object:
        found = super().get(path)
        return super().put(path, content, None if found is None else found.token)


class Unknowing(DirectoryDocuments):
    """A service that does not know conditions."""

    def put(self, path: str, content: bytes, expected: object) -> object:
        raise BackupTargetError("A header you provided implies functionality: NotImplemented", path="place")


@pytest.mark.parametrize("kind", [Careless, Unknowing])
def test_a_store_without_conditional_writes_is_refused_by_name(tmp_path, monkeypatch, kind):
    """Before anything is claimed."""
    monkeypatch.setattr("recovery.backup.conditional.DirectoryDocuments", int)
    documents = Documents(kind(tmp_path, 5.0), "s3://old/place")
    with pytest.raises(ConfigurationError, match=r"s3://old/place: .*condition"):
        claimed(documents, run(tmp_path / "a"))
    assert not (tmp_path / lease.NAME).exists()


def test_a_lease_that_cannot_be_read_is_damage(tmp_path):
    """It is never taken for missing; a newer format is refused as such."""
    documents, target = open_documents(str(tmp_path)), DirectoryPlace(tmp_path)
    assert read_term(target) is None
    held = claimed(documents, run(tmp_path / "a"))
    assert read_term(target) == held.term
    content = (tmp_path / lease.NAME).read_bytes()
    for bad in (b"", content[:-9], b"[]", json.dumps({"format": 1, "lease": {"term": -1}}).encode()):
        (tmp_path / lease.NAME).write_bytes(bad)
        for work in (held.check, lambda: read_term(target), lambda: claimed(documents, run(tmp_path / "a", 2))):
            with pytest.raises(BackupDamagedError, match=r"lease\.json cannot be read"):
                work()
    (tmp_path / lease.NAME).unlink()
    with pytest.raises(TakenOverError, match="gone"):
        held.check()


def test_a_repeated_write_does_not_conflict_with_itself(tmp_path):
    """A client may repeat a write whose answer was lost, and then be refused by its own first write."""

    class Twice(DirectoryDocuments):
        def put(self, path: str, content: bytes, expected: object) -> object:
            super().put(path, content, expected)
            raise Conflict(path)

    documents = Documents(Twice(tmp_path, 5.0), "place")
    claimed(documents, run(tmp_path / "a")).check()
