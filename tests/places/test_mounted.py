"""A directory whose disk stops answering: whoever serves others gives up, and goes on when it is back."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from recovery.backup import share
from recovery.backup.conditional import open_documents
from recovery.backup.share import OwnerDirectories, Sharing, WantedShare
from recovery.base.clock import SystemClock
from recovery.errors import BackupTargetError
from recovery.host.durable import PRIVATE
from recovery.places import mounted
from recovery.places.directory import DirectoryPlace
from recovery.places.mounted import limited
from recovery.places.opening import open_place
from recovery.replication.shipper import PASSING, Shipper
from recovery.storage.scan import scan
from tests.backup.support import bring_back, random_id, states, work


@pytest.fixture
def store(make_store) -> Path:
    """Two partitions with state."""
    directory = make_store(2)
    work(directory, 2)
    return directory


@pytest.fixture
def hanging(tmp_path, monkeypatch) -> Iterator[Callable[[], None]]:
    """The disk of `tmp_path / "dest"` answers to nothing, and a call may be silent for 0.05 s, until this is called."""
    back, place = threading.Event(), f"{tmp_path / 'dest'}"
    monkeypatch.setattr(mounted, "SILENT_S", 0.05)
    for name in ("mkdir", "open", "scandir", "stat", "unlink"):
        original = getattr(os, name)

        def call(path, *arguments, original=original, **options):
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(place):
                assert back.wait(30)
            return original(path, *arguments, **options)

        monkeypatch.setattr(os, name, call)

    def comes_back() -> None:
        monkeypatch.setattr(mounted, "SILENT_S", 60.0)
        back.set()

    yield comes_back
    back.set()


def wanted(store: Path, place: Path) -> bytes:
    """What a run asks an owner for that has all partitions."""
    found = scan(store)
    asked = WantedShare(f"{place}", "running/one", random_id(), SystemClock().wall_ms(), False, True,
                        found[0].description.store_id, len(found), [each.description.index for each in found],
                        [])  # fmt: skip
    return msgspec.json.encode(asked)


def test_every_call_ends(hanging, tmp_path):
    """With an error that says what to look at."""
    target = limited(DirectoryPlace(tmp_path / "dest"))
    documents = open_documents(f"{tmp_path / 'dest'}")
    calls = {
        "write": lambda: target.write("objects/a", [b"x"]),
        "read": lambda: list(target.read("objects/a")),
        "read_range": lambda: target.read_range("objects/a", 0, 1),
        "entries": lambda: target.entries("objects/"),
        "delete": lambda: target.delete("objects/a"),
        "get": lambda: documents.get("lease.json"),
        "put": lambda: documents.put("lease.json", b"{}", None),
        "make": lambda: open_documents(f"{tmp_path / 'dest'}", PRIVATE),
    }
    for call in calls.values():
        with pytest.raises(BackupTargetError, match="no answer for 0 s") as error:
            call()
        assert "mount the directory again" in error.value.remedy
    hanging()
    target.write("objects/b", [b"x", b"y"])
    assert b"".join(target.read("objects/b")) == b"xy"


def test_a_slow_disk_is_waited_for(tmp_path, monkeypatch):
    """As long as it takes one chunk after the other."""
    monkeypatch.setattr(mounted, "SILENT_S", 2.0)

    def chunks() -> Iterator[bytes]:
        for _ in range(4):
            time.sleep(0.6)
            yield b"x"

    assert limited(DirectoryPlace(tmp_path)).write("objects/a", chunks()) == 4


def test_a_shipping_is_repeated_when_it_is_back(store, hanging, tmp_path):
    """The error passes, and the same epochs are shipped."""
    target = limited(open_place(f"{tmp_path / 'dest'}"))
    at = Shipper(store, target, clock=SystemClock(), random_id=random_id)
    for _ in range(2):
        with pytest.raises(PASSING, match="no answer"):
            at.ship()
    hanging()
    assert at.ship().newest.epoch == 2
    bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
    assert states(tmp_path / "new") == states(store)


def test_an_owner_answers_nevertheless(store, hanging, tmp_path, monkeypatch):
    """So the next run gets its turn. The place is opened once, and again after an error."""
    opened = []
    monkeypatch.setattr(share, "open_place", lambda place: opened.append(place) or open_place(place))
    sharing = Sharing(OwnerDirectories(f"{store}", f"{tmp_path / 'scratch'}"))
    answer = sharing.answer(wanted(store, tmp_path / "dest"))
    assert (answer.refusal.error, answer.refusal.found) == ("BackupTargetError", "no answer for 0 s")
    hanging()
    DirectoryPlace(tmp_path / "dest").write("running/one", [b"{}"])
    for _ in range(2):
        answer = sharing.answer(wanted(store, tmp_path / "dest"))
        assert (answer.refusal, len(answer.copies)) == (None, 2)
    assert len(opened) == 2
