"""The contract of reading: a snapshot gives one result wherever its partitions are, and one error for one damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from recovery import CorruptPartitionError, EpochNotHeldError
from recovery.base.reserved import CHECKPOINT_STEP
from recovery.errors import OwnerUnreachableError, StorageError
from recovery.storage import owner_reader
from recovery.storage.hydration import hydrating
from recovery.storage.owner_reader import CHUNK_BYTES, OwnerReader, in_chunks
from recovery.storage.seam import KeyToErase
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import Store
from tests.backup.support import back_up, bring_back
from tests.shares import some
from tests.stores import Driver, SpreadDirectory, alter, state_at, window

STEPS = ("count", "other")
SMALL_CHUNK_BYTES = 1 << 14
"""What owners send together in these tests."""
LARGE = "x" * (SMALL_CHUNK_BYTES + 1)
SOME = ["k0", "", "🙂", "larger"]
KEYS = [*SOME, *(f"k{number}" for number in range(1, 20)), "key with spaces", "large"]
LAZY = "files that are still being fetched"
TOGETHER = "here and in two directories of one owner"
WHERE = {
    "files": None,
    LAZY: None,
    "owners": ((), (0, 2), (1,)),
    "here and at owners": ((1,), (0,), (2,)),
    TOGETHER: ((1,), (0,), (2,)),
    "here and at an owner with all others": ((0,), (1, 2)),
}
"""The partitions of each place: the own directory, then each owner."""


class Place(NamedTuple):
    """One store somewhere, and the same store as files of one directory."""

    store: Store
    files: Path
    spread: SpreadDirectory | None

    def path(self, index: int) -> Path:
        if self.store.directory != self.files and self.spread is None:
            pytest.skip("SQLite without this package does not fetch pages")
        if self.spread is None:
            return self.files / f"part-{index}.sqlite3"
        return next(path for path in self.spread.paths() if path.name == f"part-{index}.sqlite3")


def fill(directory: Path) -> None:
    """Four held epochs, of which the last is only logged."""
    with Driver(directory, STEPS) as run:
        for batch in range(1, 5):
            changes: dict[str, Any] = {key: f'"{key} {batch}"' for key in KEYS[batch:]}
            changes |= {KEYS[0]: None if batch == 3 else ("[]", batch)}
            if batch < 3:
                changes |= {"large": LARGE, "larger": LARGE + str(batch)}
            run.apply(batch, changes, "count")
            run.apply(batch, {key: str(batch) for key in KEYS[:batch]}, "other")
            rows = {CHECKPOINT_STEP: {f"offsets/{batch}": f"v1\n{batch}", f"state/{batch}": b"\x00\xff" * batch}}
            run.close(batch, driver_rows=rows, logged=batch == 4)


@pytest.fixture(params=some(WHERE, "files", LAZY, "here and at owners"))
def place(request, make_store, tmp_path, monkeypatch) -> Iterator[Place]:
    """Three partitions with four held epochs, of which the last is only logged."""
    monkeypatch.setattr(owner_reader, "CHUNK_BYTES", SMALL_CHUNK_BYTES)
    made = make_store(3, fill)
    spread = None
    files = Path(shutil.copytree(made, tmp_path / "files"))
    if WHERE[request.param] is not None:
        spread = SpreadDirectory(made, WHERE[request.param], together=request.param == TOGETHER)
        store = spread.locations()
    elif request.param == LAZY:
        back_up(made, tmp_path / "backups")
        bring_back(tmp_path / "backups", tmp_path / "lazy", tmp_path, lazy_from=str(tmp_path / "backups"))
        store = Store(tmp_path / "lazy")
        assert hydrating(store.directory)
    else:
        store = Store(files)
    yield Place(store, files, spread)
    store.release()
    if spread is not None:
        spread.close()


READS: dict[str, Callable[[Snapshot, Snapshot], Any]] = {
    "states": lambda at, _: {step: sorted(at.states(step), key=lambda state: state.key) for step in STEPS},
    "states in order": lambda at, _: list(at.states_in_order("count")),
    "some": lambda at, _: at.some("count", [*KEYS, "none"]),
    "values": lambda at, _: (at.values(CHECKPOINT_STEP), at.values("count", KEYS[:3])),
    "page": lambda at, _: [
        reader.page("count", at.cut, begin, end, limit, most_bytes)
        for reader in at.readers
        for begin, end, limit, most_bytes in (("", None, 99, 1 << 30), ("k1", "k2", 3, 1 << 30), ("", None, 99, 1))
    ],
    "sizes": lambda at, _: sorted(at.sizes("count")),
    "ending": lambda at, _: [
        sorted(at.ending(step, ending), key=lambda state: state.key)
        for step in STEPS
        for ending in ("1", "k1", "🙂", "spaces", "none")
    ],
    "count": lambda at, _: [at.count(step) for step in (*STEPS, "none")],
    "versions": lambda at, _: [at.versions("count", key) for key in SOME],
    "versions since": lambda at, _: [
        (reader.version_spans("count", key, at.cut), reader.versions("count", key, at.cut, since))
        for reader in at.readers
        for key in SOME
        for since in (2, 9)
    ],
    "newest versions": lambda at, _: [
        at.newest_versions("count", key, most) for key in SOME for most in (1, 20, 1 << 30)
    ],
    "due": lambda at, _: [reader.due(step, [0, 2, 9]) for reader in at.readers for step in (*STEPS, "none")],
    "changes": lambda at, since: sorted(at.changes("count", since), key=lambda change: change.key),
    "changes in order": lambda at, since: list(at.changes_in_order("count", since)),
    "steps": lambda at, _: (at.steps(), at.steps(reserved=True)),
    "measures": lambda at, _: at.measures(),
    "nothing lost": lambda at, _: [at.check_all_there("count", key) for key in SOME[:2]],
    "newest steps": lambda at, _: [reader.newest_steps() for reader in at.readers],
    "has step": lambda at, _: [reader.has_step(step) for reader in at.readers for step in (*STEPS, "none")],
    "largest": lambda at, _: [reader.largest(3) for reader in at.readers],
    "rows of keys": lambda at, _: [
        reader.rows_of([KeyToErase(step, key) for key in SOME]) for reader in at.readers for step in (None, *STEPS)
    ],
    "sizes of steps": lambda at, _: [reader.sizes() for reader in at.readers],
}


def answers(store: Store, epoch: int, oldest: int) -> dict[str, Any]:
    """What each call gives for an epoch."""
    at, since = store.at(epoch), store.at(oldest)
    return {name: read(at, since) for name, read in READS.items()}


@pytest.fixture(scope="module")
def of_files(store_maker) -> dict[int, dict[str, Any]]:
    """What each call gives for files of one directory, at each held epoch."""
    directory = store_maker(3, fill)
    held = window(directory)
    return {epoch: answers(Store(directory), epoch, held[0]) for epoch in held}


def test_reading(place, of_files):
    """At each held epoch, each call gives what it gives for files of one directory; and the states are those that a
    reader of the tests finds in the tables."""
    held = window(place.files)
    assert set(held) == set(of_files)
    for epoch in held:
        if place.store.directory != place.files:
            found = answers(place.store, epoch, held[0])
            assert {name: each for name, each in found.items() if each != of_files[epoch][name]} == {}, epoch
        at = place.store.at(epoch)
        states = {
            (step, state.key): (state.value, state.timeout_ms)
            for step in at.steps(reserved=True)
            for state in at.states(step)
        }
        assert states == state_at(place.files, epoch)


def test_an_epoch_that_is_not_held(place):
    """Before anything is read; and while it is read, if a run has collected it meanwhile."""
    with pytest.raises(EpochNotHeldError, match="epoch 9 is not held"):
        place.store.at(9)
    at = place.store.at(1)
    for index in range(3):
        alter(place.path(index), "DELETE FROM epochs WHERE epoch = 1")
    for read in ("states", "some", "page", "sizes", "count", "versions", "changes", "nothing lost"):
        with pytest.raises(EpochNotHeldError):
            READS[read](at, at)


def test_damage(place):
    """Of one row is the same typed error, which names the file."""
    at = place.store.at()
    for index in range(3):
        alter(place.path(index), "UPDATE snaps SET ser_change = 'other' WHERE step_id = 'count'")
    named = {(path.parts[0], path.name) for path in at.paths}
    for read in ("states", "states in order", "some", "versions"):
        with pytest.raises(CorruptPartitionError, match="does not match its digest") as error:
            READS[read](at, at)
        path = Path(error.value.path)
        assert (path.parts[0], path.name) in named
    for index in range(3):
        alter(place.path(index), "DELETE FROM snaps WHERE step_id = 'count' AND state_key < 'k2'")
    with pytest.raises(CorruptPartitionError, match="counted"):
        READS["nothing lost"](at, at)


def test_a_reading_that_ends_early(place):
    """Ends the transaction there; the next reading works."""
    at = place.store.at()
    for _ in range(3):
        reading = at.states("count")
        assert next(reading).key in KEYS
        reading.close()
    assert next(iter(at.sizes("count")))
    assert at.count("count") == len(list(at.states("count")))


def test_a_lost_owner_is_named(place):
    if place.spread is None:
        pytest.skip("files of this host have no owner")
    at = place.store.at()
    for service in place.spread.services:
        service.stop(0.1)
    with pytest.raises(OwnerUnreachableError, match=r"the owner at 127\.0\.0\.1:"):
        list(at.states("count"))


@pytest.mark.parametrize("size_bytes", [0, 1, CHUNK_BYTES // 3, CHUNK_BYTES, CHUNK_BYTES * 2])
def test_chunks(size_bytes):
    """Every row once and in order; none is larger than the limit, unless it has one row."""
    rows = list(range(10))
    found = list(in_chunks(rows, lambda _: size_bytes))
    assert [row for some in found for row in some] == rows
    assert all(len(some) == 1 or len(some) * size_bytes <= CHUNK_BYTES for some in found)
    assert list(in_chunks([], lambda _: size_bytes)) == []


@pytest.mark.parametrize("value", [None, 1, ["x"]])
def test_an_owner_that_sends_another_type(value):
    """Is a typed error that names the file."""

    class Sends:
        location = "h1:7337"

        def stream(self, *_: object) -> Iterator[list[tuple]]:
            yield [("k", 1, value, None)]

    with pytest.raises(StorageError, match="its owner sent a value of type") as error:
        list(OwnerReader(Sends(), "part-0.sqlite3").states("count", (1, "x", 1)))
    assert str(error.value.path) == "h1:7337/part-0.sqlite3"
