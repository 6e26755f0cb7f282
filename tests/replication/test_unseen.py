"""What a directory held when it began to replicate, until the place was looked at."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from recovery.backup.lease import read_term
from recovery.base.clock import SystemClock
from recovery.errors import StaleDirectoryError, StorageError
from recovery.places.directory import DirectoryPlace
from recovery.planning.resume import plan_resume
from recovery.replication.process import Replication
from recovery.replication.unseen import NAME, Unseen, begin_unseen, end_unseen, read_unseen
from recovery.storage.scan import scan
from tests.backup.test_incremental import fill
from tests.backup.test_incremental_faults import change
from tests.stores import Driver


def test_the_first_note_stays_until_the_place_was_looked_at(tmp_path):
    """Another place has another one."""
    assert read_unseen(tmp_path) is None
    begin_unseen(tmp_path, Unseen("dest", 1, 5))
    begin_unseen(tmp_path, Unseen("dest", 2, 9))
    assert read_unseen(tmp_path) == Unseen("dest", 1, 5)
    begin_unseen(tmp_path, Unseen("other", 2, 9))
    assert read_unseen(tmp_path) == Unseen("other", 2, 9)
    for _ in range(2):
        end_unseen(tmp_path)
        assert read_unseen(tmp_path) is None
    (tmp_path / NAME).write_text('{"place": "dest"}')
    with pytest.raises(StorageError, match=NAME):
        begin_unseen(tmp_path, Unseen("dest", 1, 5))


def test_an_older_copy_that_went_on_while_the_place_was_away(make_store, tmp_path):
    """By itself it looks like a directory that went back. It is refused when the place is reached, and again by the
    next runs: a service may start it again. The place is not disturbed, and the other directory goes on."""
    store = make_store(1)
    fill(store)
    logged: list[str] = []

    def begin(directory: Path, **options: object) -> Replication:
        [partition] = plan_resume(scan(directory)).partitions
        began = [each.id for each in partition.executions]
        return Replication(
            directory, partition.store_id, str(tmp_path / "dest"), tmp_path, clock=SystemClock(), began=began,
            epoch=partition.newest_epoch, execution=len(began) + 1, log=logged.append, **options,
        )  # fmt: skip

    ours = begin(store)
    ours.ready(60)
    with Driver(store) as run:
        for batch in (1, 2):
            run.apply(batch, {"old1": f"{batch}"})
            run.close(batch)
            if batch == 1:
                copy = Path(shutil.copytree(store, tmp_path / "copy"))
    ours.closed()
    ours.end()
    assert (ours.state.shipped.epoch, read_unseen(store)) == (3, None)
    (tmp_path / "dest").rename(tmp_path / "moved")
    (tmp_path / "dest").write_text("away")
    for _ in range(2):
        theirs = begin(copy)
        theirs.ready(60)
        change(copy)
        theirs.stop()
    (tmp_path / "dest").unlink()
    (tmp_path / "moved").rename(tmp_path / "dest")
    writer = read_term(DirectoryPlace(tmp_path / "dest"))
    for _ in range(2):
        theirs = begin(copy)
        with pytest.raises(StaleDirectoryError, match=r"it has epoch 3, .* ended at epoch 2 before it went on"):
            theirs.ready(60)
        theirs.stop()
    assert read_term(DirectoryPlace(tmp_path / "dest")) == writer
    theirs = begin(copy, lose_epochs=True)
    theirs.closed(0)
    theirs.end()
    assert (theirs.state.shipped.epoch, read_unseen(copy)) == (4, None)
    assert "epochs that only this place has are lost" in logged[-1]
