"""A directory that follows the backups of another one is as of the latest of them, whatever happened in between."""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.backup.fork import fork
from recovery.backup.manifest import OBJECTS, encode, manifest_name
from recovery.backup.repository import list_backups, prune
from recovery.backup.standby.follow import Follower
from recovery.base.clock import SystemClock
from recovery.errors import (
    AlreadyInitializedError,
    ConfigurationError,
    DirectoryLockedError,
    ForeignPartitionError,
    NoBackupError,
    StandbyDirectoryError,
)
from recovery.places.directory import DirectoryPlace
from recovery.planning.backups import KeepRule
from recovery.storage.documents import change_states
from recovery.storage.initialize import init_partitions
from recovery.storage.lock import DirectoryLock
from tests.backup.standby.support import assert_follows, followed, newest_state
from tests.backup.support import back_up, bring_back
from tests.backup.test_incremental import History, fill, whole
from tests.backup.test_incremental_faults import change, flip
from tests.shares import seeds
from tests.stores import Driver, alter, paths_of, problems


@pytest.mark.parametrize("seed", seeds(30))
def test_a_random_history_is_followed(make_store, tmp_path, monkeypatch, seed):
    """Runs, crashes, rewinds, folding, collecting, edits, operational state; chains merge, begin again; pruning."""
    monkeypatch.setattr("recovery.planning.chains.FANOUT", 3)
    chance = random.Random(seed)
    directory = make_store(2, fill)
    history = History(directory, chance)
    place, standby = tmp_path / "place", tmp_path / "standby"
    linked = looks = 0
    for _ in range(25):
        history.go_on()
        back_up(directory, place, incremental=chance.random() < 0.9)
        expected, wanted = newest_state(directory), whole(directory)
        if chance.random() < 0.3:
            prune(
                DirectoryPlace(place), [KeepRule(count=chance.randint(1, 3))], int(time.time() * 1000) + 3 * 86_400_000
            )
        if chance.random() < 0.6:
            look = followed(place, standby)
            assert (look.missed, look.problems) == ((), ())
            assert newest_state(standby) == expected
            assert problems(standby) == []
            measures = "part-0.sqlite3", "measures"
            found = whole(standby)
            assert set(found.pop(measures)) <= set(wanted.pop(measures))
            assert found == wanted
            looks += 1
            linked += look.followed.linked if look.followed else 0
    assert looks > 5
    assert linked > 5


def test_only_what_changed_is_fetched(store, tmp_path):
    """A link costs its object; nothing changed costs nothing; a partition alone is fetched alone."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    first = back_up(store, place, incremental=True)
    look = followed(place, standby)
    assert look.followed.whole_because.keys() == {"part-0.sqlite3", "part-1.sqlite3"}
    assert look.followed.stored_bytes == first.stored_bytes
    assert followed(place, standby).followed is None
    for _ in range(7):
        change(store)
        made = back_up(store, place, incremental=True)
        look = followed(place, standby)
        assert (look.followed.linked, look.followed.whole_because) == (2, {})
        assert look.followed.objects == 2
        assert look.followed.stored_bytes == made.stored_bytes
        assert_follows(standby, store)
    with Driver(store) as run:
        run.apply(run.epoch, {"old1": "x"})
        run.close(run.epoch)
    back_up(store, place, incremental=True)
    with_one = followed(place, standby).followed
    assert with_one.linked == 2
    change_states(paths_of(store)[0], {"doc": lambda _: "{}"}, 10, busy_ms=1000)
    back_up(store, place, incremental=True)
    assert followed(place, standby).followed.linked == 1
    assert_follows(standby, store)


def test_links_that_were_merged_since_are_applied_once(store, tmp_path):
    """The file that holds the next link holds earlier ones too."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    back_up(store, place, incremental=True)
    followed(place, standby)
    for number in range(1, 10):
        change(store)
        back_up(store, place, incremental=True)
        if number in (2, 4):
            followed(place, standby)
    look = followed(place, standby)
    assert (look.followed.linked, look.followed.whole_because) == (2, {})
    assert whole(standby) == whole(store)


def test_a_new_chain_is_fetched_whole(store, tmp_path):
    """A whole copy takes the place of the partition; what lay beside the old one goes."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    back_up(store, place)
    followed(place, standby)
    change(store)
    back_up(store, place)
    look = followed(place, standby)
    assert set(look.followed.whole_because.values()) == {"the backups began a new chain"}
    assert_follows(standby, store)


def test_a_partition_that_is_a_link_stays_one(store, tmp_path, tmp_path_factory):
    """A whole copy takes the place of the file that it leads to, also on another disk."""
    place, standby, disk = tmp_path / "place", tmp_path / "standby", tmp_path_factory.mktemp("disk")
    back_up(store, place)
    followed(place, standby)
    shutil.move(standby / "part-1.sqlite3", disk / "part-1.sqlite3")
    (standby / "part-1.sqlite3").symlink_to(disk / "part-1.sqlite3")
    for incremental in (False, True):
        change(store)
        back_up(store, place, incremental=incremental)
        followed(place, standby)
        assert (standby / "part-1.sqlite3").is_symlink()
        assert_follows(standby, store)
    assert sorted(path.name for path in disk.iterdir() if not path.name.startswith("part-1.sqlite3-")) == [
        "part-1.sqlite3", "recovery-part-1.sqlite3.lock", "recovery.lock"
    ]  # fmt: skip


def test_a_chain_that_branched_is_fetched_whole(store, tmp_path):
    """Two backups at a time, each with a link of the same number: the standby is at one, the chain goes on from the
    other."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    back_up(store, place, incremental=True)
    change(store)
    before = Path(shutil.copytree(place, tmp_path / "before"))
    back_up(store, place, incremental=True)
    followed(place, standby)
    # The other one was as fast, and did not see that link.
    change_states(paths_of(store)[0], {"doc": lambda _: '{"n":1}'}, 10, busy_ms=1000)
    other = back_up(store, before, incremental=True).manifest
    shutil.rmtree(place)
    before.rename(place)
    look = followed(place, standby)
    assert look.followed.backup == other.id
    assert set(look.followed.whole_because) == {"part-0.sqlite3"}
    assert_follows(standby, store)
    assert whole(standby) == whole(store)


def test_a_later_backup_with_an_earlier_time_is_later(store, tmp_path):
    """The store went on on a host whose clock is behind."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    ahead = back_up(store, place, incremental=True).manifest
    fast = f"29991231T000000.000Z-{ahead.id[-8:]}"
    target = DirectoryPlace(place)
    target.write(manifest_name(fast), [encode(replace(ahead, id=fast, started_ms=32_000_000_000_000))])
    target.delete(manifest_name(ahead.id))
    assert followed(place, standby).followed.backup == fast
    change(store)
    made = back_up(store, place, incremental=True).manifest
    assert followed(place, standby).followed.backup == made.id
    assert followed(place, standby).followed is None
    assert_follows(standby, store)
    assert followed(place, tmp_path / "another").followed.backup == made.id


def test_a_damaged_object_is_named_and_the_backup_before_is_reached(store, tmp_path):
    """Torn, changed or missing; a later backup that does not need it is followed again."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    back_up(store, place, incremental=True)
    followed(place, standby)
    change(store)
    good = back_up(store, place, incremental=True).manifest
    expected = newest_state(store)
    change(store)
    bad = back_up(store, place, incremental=True).manifest
    name = bad.copies[1].origin
    for spoil in (flip, lambda path: path.write_bytes(path.read_bytes()[:-9]), Path.unlink):
        here = Path(shutil.copytree(place, tmp_path / "here"))
        there = Path(shutil.copytree(standby, tmp_path / "there"))
        spoil(here / name)
        look = followed(here, there)
        assert look.followed.backup == good.id
        [missed] = look.missed
        assert (missed.backup, missed.epoch) == (bad.id, 3)
        assert name in missed.why
        assert newest_state(there) == expected
        change(store)
        back_up(store, here, incremental=True)
        assert followed(here, there).missed == ()
        assert_follows(there, store)
        shutil.rmtree(here)
        shutil.rmtree(there)


def test_a_damaged_manifest_is_named(store, tmp_path):
    """If it is later than what the directory is as of."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    back_up(store, place, incremental=True)
    change(store)
    made = back_up(store, place, incremental=True).manifest
    flip(place / manifest_name(made.id))
    look = followed(place, standby)
    assert look.missed[0].why == f"{manifest_name(made.id)} is damaged"
    change(store)
    back_up(store, place, incremental=True)
    assert followed(place, standby).missed == ()


def test_backups_that_are_pruned_beneath_it_do_not_matter(store, tmp_path, monkeypatch):
    """Also while it fetches one of them: the next one is taken."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    back_up(store, place, incremental=True)
    followed(place, standby)
    change(store)
    back_up(store, place)
    target = DirectoryPlace(place)

    def read(self, name: str):
        if name.startswith(OBJECTS):
            monkeypatch.undo()
            change(store)
            back_up(store, place)
            prune(target, [KeepRule(count=1)], 4_000_000_000_000)
        return original(self, name)

    original = DirectoryPlace.read
    monkeypatch.setattr("recovery.backup.standby.follow.AT_ONCE", 1)
    monkeypatch.setattr(DirectoryPlace, "read", read)
    look = followed(place, standby)
    assert look.missed == ()
    assert look.followed.backup == list_backups(target).manifests[-1].id
    assert_follows(standby, store)


@pytest.mark.parametrize(
    "harm",
    [
        Path.unlink,
        lambda path: path.write_bytes(b"not a database" * 400),
        lambda path: alter(path, "DELETE FROM epochs"),
        lambda path: change_row(path.parent),
    ],
    ids=["removed", "garbage", "altered", "changed"],
)
def test_a_partition_that_something_changed_is_fetched_again(store, tmp_path, harm):
    """It is named. What only a full check notices, the next run notices."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    back_up(store, place, incremental=True)
    followed(place, standby)
    harm(standby / "part-1.sqlite3")
    look = followed(place, standby)
    assert list(look.problems) == ["part-1.sqlite3 is not as this standby left it, so it is fetched again"]
    assert list(look.followed.whole_because) == ["part-1.sqlite3"]
    assert_follows(standby, store)


def change_row(directory: Path) -> None:
    """An epoch that a run would close, of which one partition stays."""
    first = (directory / "part-0.sqlite3").read_bytes()
    (directory / "standby.json").rename(directory / "aside")
    change(directory)
    (directory / "aside").rename(directory / "standby.json")
    for suffix in ("-wal", "-shm"):
        (directory / f"part-0.sqlite3{suffix}").unlink(missing_ok=True)
    (directory / "part-0.sqlite3").write_bytes(first)


def test_nothing_else_writes_to_a_standby(store, tmp_path):
    """Each way to write refuses it by name; readers read it."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    back_up(store, place)
    followed(place, standby)

    def refused(work) -> None:
        with pytest.raises(StandbyDirectoryError, match=f"it follows {place}"):
            work()

    refused(lambda: DirectoryLock(standby, SystemClock(), "a run").acquire())
    refused(lambda: fork(standby, tmp_path / "fork"))
    refused(lambda: change_states(standby / "part-0.sqlite3", {"doc": lambda _: "{}"}, 1, busy_ms=10))
    refused(lambda: init_partitions(standby, 2))
    refused(lambda: bring_back(place, standby, tmp_path))
    assert back_up(standby, tmp_path / "backup of the standby").stored == 2


def test_one_follower_at_a_time(store, tmp_path):
    """The lock of the directory is its."""
    back_up(store, tmp_path / "place")
    with Follower(tmp_path / "standby", str(tmp_path / "place"), SystemClock()) as one:
        one.look()
        with pytest.raises(DirectoryLockedError, match="follow"), Follower(tmp_path / "standby", None, SystemClock()):
            pass


def test_what_cannot_be_followed(store, tmp_path):
    """An empty place, another store's backups, a directory with partitions of its own, an address with a password."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    place.mkdir()
    with pytest.raises(NoBackupError):
        followed(place, standby)
    back_up(store, place)
    followed(place, standby)
    with pytest.raises(AlreadyInitializedError, match="is not a standby"):
        followed(place, store)
    init_partitions(tmp_path / "db", 2)
    back_up(tmp_path / "db", tmp_path / "other")
    with pytest.raises(ForeignPartitionError):
        followed(tmp_path / "other", standby)
    with pytest.raises(ConfigurationError, match="credentials"):
        followed("s3://key:secret@bucket/place", tmp_path / "new")
    with pytest.raises(ConfigurationError, match="not a standby"), Follower(tmp_path / "none", None, SystemClock()):
        pass
    assert not os.path.lexists(tmp_path / "none")
