"""Where the input begins: the same row in every partition, whole in each."""

from __future__ import annotations

import shutil

import pytest

from recovery.errors import CorruptPartitionError, LeaseLostError
from recovery.storage.copies import pin
from recovery.storage.sqlite.store import FilePartitions
from tests.stores import Driver, alter, paths_of, problems, query, state_at, window


def test_it_outlives_the_run_and_rewinds(store_dir):
    """Neither epochs nor collecting, nor going back before them, touch it."""
    with Driver(store_dir) as run:
        assert run.store.beginning() is None
        run.store.begin_input(run.lease, "here")
        run.store.begin_input(run.lease, "here")
        run.apply(0, {"a": "1"})
        run.close(0, floor=0)
    with Driver(store_dir, resume_epoch=1) as run:
        assert run.store.beginning() == "here"
        assert state_at(store_dir, 0) == {}
        run.apply(0, {"a": "1"})
        run.close(0)
        run.apply(1, {"a": "2"})
        run.close(1, floor=1)
        assert run.store.beginning() == "here"
    assert window(store_dir) == (1, 2)
    assert problems(store_dir) == []


def test_one_partition_is_enough_and_the_newest_counts(store_dir, tmp_path):
    """After a kill between two partitions, and with an older copy of one of them."""
    first, second = paths_of(store_dir)
    with Driver(store_dir):
        pass
    shutil.copy(second, tmp_path / "before")
    with Driver(store_dir) as run:
        run.store.begin_input(run.lease, "zz")
    shutil.copy(first, tmp_path / "older")
    shutil.copy(tmp_path / "before", second)
    with Driver(store_dir) as run:
        assert run.store.beginning() == "zz"
        run.store.begin_input(run.lease, "aa")
    shutil.copy(tmp_path / "older", first)
    with Driver(store_dir) as run:
        assert run.store.beginning() == "aa", "of the later execution"


def test_a_fenced_run_does_not_write_it(store_dir):
    with Driver(store_dir) as old:
        with Driver(store_dir) as new:
            new.store.begin_input(new.lease, "new")
        with pytest.raises(LeaseLostError):
            old.store.begin_input(old.lease, "old")
        assert old.store.beginning() == "new"


@pytest.mark.parametrize(
    "change", ["UPDATE beginning SET content = 'there'", "INSERT INTO beginning VALUES (1, 1, 'x', 'y', 2)"]
)
def test_damage_is_found(store_dir, change):
    """By a check, and by the run that would begin there."""
    with Driver(store_dir) as run:
        run.store.begin_input(run.lease, "here")
    path = paths_of(store_dir)[1]
    alter(path, change)
    assert len(problems(store_dir)) == 1
    store = FilePartitions(paths_of(store_dir), store_dir / "scratch")
    try:
        with pytest.raises(CorruptPartitionError, match="beginning") as error:
            store.beginning()
        assert error.value.path == str(path)
    finally:
        store.release()


def test_a_copy_holds_it_and_differs_by_it(store_dir, tmp_path):
    """So a backup taken after it does not take the copy from before for the same."""
    with Driver(store_dir) as run:
        [before, *others] = pin(paths_of(store_dir))
        for each in (before, *others):
            each.release()
        run.store.begin_input(run.lease, "here")
        [after, *others] = pin(paths_of(store_dir))
        try:
            assert after.description == before.description
            assert after.operational != before.operational
            after.copy_to(tmp_path / "copy")
        finally:
            for each in (after, *others):
                each.release()
    assert query(tmp_path / "copy", "SELECT content FROM beginning") == [("here",)]
