"""The copies of places of backups that a session keeps for `format("recovery")`. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.errors import NoBackupError
from recovery.spark.sources.restored_places import KEPT, RestoredPlaces
from tests.backup.support import back_up, states, work


def test_each_backup_is_restored_once_and_the_newest_are_kept(make_store, tmp_path):
    """Another look at the same backup gives the same copy; older copies are removed, and all in the end."""
    store, place = make_store(2), tmp_path / "dest"
    dropped: list[Path] = []
    places = RestoredPlaces(tmp_path, dropped.append)
    found = []
    for _ in range(KEPT + 2):
        work(store, 1)
        back_up(store, place)
        found.append(places.restored(str(place)))
        assert places.restored(str(place)) == found[-1]
        assert states(found[-1]) == states(store)
    assert dropped == found[:2]
    assert [path.exists() for path in found] == [False, False, True, True]
    places.close()
    assert dropped == found
    assert list(tmp_path.glob("recovery-read-*")) == []


def test_a_damaged_backup_is_reported(make_store, tmp_path):
    """The one before is read, as `restore` does, with a warning that names what is not used."""
    store, place = make_store(1), tmp_path / "dest"
    work(store, 1)
    back_up(store, place)
    work(store, 1)
    [copy] = back_up(store, place).manifest.copies
    (place / copy.object_name).write_bytes(b"")
    places = RestoredPlaces(tmp_path, lambda _: None)
    with pytest.warns(RuntimeWarning, match=copy.object_name):
        assert max(states(places.restored(str(place)))) == 1
    places.close()


def test_a_place_without_backups(tmp_path):
    """It is an error, and nothing is left."""
    (tmp_path / "dest" / "manifests").mkdir(parents=True)
    with pytest.raises(NoBackupError):
        RestoredPlaces(tmp_path, lambda _: None).restored(str(tmp_path / "dest"))
    assert list(tmp_path.glob("recovery-read-*")) == []
