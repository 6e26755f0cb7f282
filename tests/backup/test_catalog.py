"""One process reads each manifest of a place once, however many backups it makes and removes."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.backup.catalog import Catalog
from recovery.backup.make import Made, make_backup
from recovery.backup.manifest import MANIFESTS
from recovery.backup.repository import list_backups, prune
from recovery.base.clock import SystemClock
from recovery.errors import CorruptPartitionError
from recovery.places.directory import DirectoryPlace
from recovery.planning.backups import KeepRule
from tests.backup.support import assert_sound, back_up, bring_back, random_id, states, work
from tests.backup.test_incremental import fill
from tests.backup.test_incremental_faults import chain, change, cut, objects
from tests.stores import alter, paths_of

NOW_MS = 4_000_000_000_000


class CountingTarget(DirectoryPlace):
    """Counts what is asked of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: Counter[str] = Counter()
        self.listed: Counter[str] = Counter()

    def read(self, name: str) -> Iterator[bytes]:
        self.reads[name] += 1
        return super().read(name)

    def entries(self, prefix: str):
        self.listed[prefix] += 1
        return super().entries(prefix)

    def manifests_read(self) -> int:
        """How many manifests were read since the last call."""
        found = sum(count for name, count in self.reads.items() if name.startswith(MANIFESTS))
        self.reads.clear()
        return found


@pytest.fixture
def store(make_store) -> Path:
    """Two partitions with state."""
    return make_store(2, fill)


def test_a_later_backup_reads_no_earlier_manifest_again(store, tmp_path):
    """Making one and pruning, as `backup --every --keep` does: the number of backups at the place does not matter."""
    target = CountingTarget(tmp_path / "dest")
    catalog, rules, found = Catalog(target), [KeepRule(count=30)], []
    for _ in range(8):
        work(store, 1)
        back_up(store, target, incremental=True, catalog=catalog)
        prune(target, rules, NOW_MS, catalog)
        found.append(target.manifests_read())
    # That of the backup before, whose existence is checked, and the new one.
    assert set(found[2:]) <= {2, 3}


def test_a_process_that_begins_reads_each_once(store, tmp_path):
    """And one again, which it continues."""
    target = CountingTarget(tmp_path / "dest")
    for _ in range(6):
        work(store, 1)
        back_up(store, target, incremental=True)
    target.manifests_read()
    prune(target, [KeepRule(count=6)], NOW_MS)
    assert target.manifests_read() == 6


def test_what_others_add_and_remove_is_seen(store, tmp_path):
    """Backups that other processes make, prune, or leave half-written."""
    target = DirectoryPlace(tmp_path / "dest")
    catalog = Catalog(target)
    assert catalog.newest() is None
    first = back_up(store, target, incremental=True).manifest
    assert catalog.newest().id == first.id
    change(store)
    second = back_up(store, target, incremental=True).manifest
    assert [each.id for each in catalog.look().backups] == [first.id, second.id]
    assert set(catalog.look().backups[1].objects) == objects(second)
    assert catalog.newest().id == second.id
    [path] = (tmp_path / "dest" / MANIFESTS).glob(f"{second.id}*")
    cut(path)
    assert [entry.name for entry in catalog.look().unreadable] == [f"{MANIFESTS}{path.name}"]
    assert catalog.newest().id == first.id
    shutil.rmtree(tmp_path / "dest" / MANIFESTS)
    assert catalog.look().backups == ()
    assert catalog.newest() is None


class SlowClock(SystemClock):
    """The clock of a host, an hour behind."""

    def wall_ms(self) -> int:
        return super().wall_ms() - 3_600_000


def test_a_host_whose_clock_is_behind_makes_the_newest_backup(store, tmp_path):
    """A further process, on whatever host, continues that one, and not the last one of the host before."""
    target = DirectoryPlace(tmp_path / "dest")
    last = back_up(store, target, incremental=True).manifest
    for _ in range(2):
        change(store)
        made: Made = make_backup(store, target, clock=SlowClock(), random_id=random_id, incremental=True)
        assert made.manifest.started_ms == last.started_ms + 1
        assert made.manifest.id > last.id
        assert made.linked == 2
        assert objects(last) <= objects(made.manifest)
        assert Catalog(target).newest().id == made.manifest.id
        last = made.manifest
    assert [each.id for each in list_backups(target).manifests][-1] == last.id
    bring_back(target, tmp_path / "new", tmp_path)
    assert states(tmp_path / "new") == states(store)


class TestContinuing:
    """A backup after one of the same process."""

    def test_looks_at_that_one_alone(self, store, tmp_path):
        """Nothing is listed, and no other manifest read."""
        target = CountingTarget(tmp_path / "dest")
        catalog = Catalog(target)
        last = back_up(store, target, incremental=True, catalog=catalog).manifest
        for _ in range(3):
            change(store)
            target.listed.clear()
            target.manifests_read()
            made = back_up(store, target, incremental=True, catalog=catalog, base=last)
            assert made.linked == 2
            assert target.listed == {}
            assert target.manifests_read() == 1
            last = made.manifest
        bring_back(target, tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == states(store)

    def test_of_one_that_was_pruned_meanwhile_takes_another(self, store, tmp_path):
        """The newest that is left."""
        target = DirectoryPlace(tmp_path / "dest")
        first = back_up(store, target, incremental=True).manifest
        change(store)
        back_up(store, target, incremental=True)
        prune(target, [KeepRule(count=1)], NOW_MS)
        change(store)
        made = back_up(store, target, incremental=True, base=first)
        assert made.linked == 2
        stored = {entry.name for entry in target.entries("objects/")}
        assert all(objects(manifest) <= stored for manifest in list_backups(target).manifests)
        bring_back(target, tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == states(store)


class TestStaged:
    """Everything is written to a local directory before the target gets the first byte."""

    def test_the_partitions_are_let_go_before_the_first_write(self, store, tmp_path):
        """So that a slow target does not make their logs grow."""

        one_at_a_time = threading.Lock()

        class Slow(DirectoryPlace):
            def write(self, name, chunks):
                if name.startswith("objects/"):
                    # Several objects are written at the same time.
                    with one_at_a_time:
                        for path in paths_of(store):
                            # With a reader of an older state, SQLite could not begin the log again.
                            alter(path, "PRAGMA wal_checkpoint(TRUNCATE)")
                            log = path.with_name(f"{path.name}-wal")
                            assert not log.exists() or log.stat().st_size == 0
                return super().write(name, chunks)

        target = Slow(tmp_path / "dest")
        for _ in range(3):
            made = back_up(store, target, incremental=True, staged=True)
            change(store)
        assert made.linked == 2
        bring_back(target, tmp_path / "new", tmp_path)
        assert_sound(tmp_path / "new")

    def test_an_object_that_is_damaged_when_it_is_merged_begins_a_new_chain(self, store, tmp_path, monkeypatch):
        """The partition is read again, and the output names the object."""
        monkeypatch.setattr("recovery.planning.chains.FANOUT", 3)
        place = tmp_path / "dest"
        last = chain(store, place, 2)[-1]
        change(store)
        cut(place / last.copies[0].changes[0].object_name)
        made = back_up(store, place, incremental=True, staged=True, base=last)
        assert (made.stored, made.linked) == (1, 1)
        assert last.copies[0].changes[0].object_name in made.whole_because["part-0.sqlite3"]
        bring_back(place, tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == states(store)

    def test_a_backup_that_may_not_count_leaves_no_manifest(self, store, tmp_path):
        """The one before stays the newest, and what was written is removed by a pruning."""
        target = DirectoryPlace(tmp_path / "dest")
        first = back_up(store, target, incremental=True).manifest
        change(store)

        def refuse() -> None:
            raise CorruptPartitionError("it belongs to another run")

        with pytest.raises(CorruptPartitionError):
            back_up(store, target, incremental=True, staged=True, may_count=refuse)
        assert [each.id for each in list_backups(target).manifests] == [first.id]
        assert target.entries("running/") == []
        prune(target, [KeepRule(count=1)], NOW_MS)
        assert {entry.name for entry in target.entries("objects/")} == objects(first)
