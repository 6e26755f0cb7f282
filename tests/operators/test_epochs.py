"""The checkpoints from which Spark reads an operator at every held epoch. Nothing here starts Spark."""

from __future__ import annotations

import pytest

from recovery import CorruptPartitionError
from recovery.base.reserved import CHECKPOINT_STEP
from recovery.checkpoint.rows import CHUNK_BYTES
from recovery.operators.epochs import held_snapshots, write_epochs
from recovery.storage.snapshot import snapshot_at
from tests.stores import Driver, alter, paths_of

BIG = bytes(range(256)) * (CHUNK_BYTES // 256)


def closed(directory, *epochs):
    """Close epochs with these files of a checkpoint, besides their positions; None removes one."""
    with Driver(directory) as run:
        for batch, files in enumerate(epochs):
            position = {"metadata": "{}"} if not batch else {f"offsets/{batch - 1}": None, f"commits/{batch - 1}": None}
            position |= {f"offsets/{batch}": "v1", f"commits/{batch}": "v1"}
            run.apply(batch, {"key": str(batch)})
            run.close(batch, driver_rows={CHECKPOINT_STEP: {**position, **files}})
    return snapshot_at(directory)


def written(found):
    """What was written: for each checkpoint its epochs, and its files with their content."""
    return [
        (
            [at.epoch for at in each.snapshots],
            {str(file.relative_to(each.path)): file.read_bytes() for file in each.path.rglob("*") if file.is_file()},
        )
        for each in found
    ]


def test_the_files_of_all_epochs_are_in_one_checkpoint(make_store, tmp_path):
    """Each once, also those in parts, and those that later epochs do not need; of the other operators none."""
    at = closed(
        make_store(3),
        {},
        {"state/0/0/1.delta": "one", "state/1/0/1.delta": "other"},
        {"state/0/0/2.snapshot#00001": BIG, "state/0/0/2.snapshot#00002": b"\xff", "state/0/0/1.delta": None},
        {},
    )
    assert [each.epoch for each in held_snapshots(at)] == [0, 1, 2, 3, 4]
    [(epochs, files)] = written(write_epochs(at, 0, tmp_path))
    assert epochs == [2, 3, 4]
    position = {f"{log}/{batch}": b"v1" for log in ("offsets", "commits") for batch in range(4)}
    assert files == {
        "metadata": b"{}", **position, "state/0/0/1.delta": b"one", "state/0/0/2.snapshot": BIG + b"\xff",
    }  # fmt: skip


def test_another_content_begins_another_checkpoint(make_store, tmp_path):
    """A path that has other content at a later epoch: Spark never does that, but the file says so."""
    at = closed(make_store(2), {"state/0/0/1.delta": "a"}, {"state/0/0/2.delta": "b"}, {"state/0/0/1.delta": "c"})
    found = written(write_epochs(at, 0, tmp_path))
    assert [epochs for epochs, _ in found] == [[1, 2], [3]]
    assert [files["state/0/0/1.delta"] for _, files in found] == [b"a", b"c"]
    assert all(files["state/0/0/2.delta"] == b"b" for _, files in found)


def test_no_state_and_damaged_state(make_store, tmp_path):
    """Nothing for an operator without state; a row that was altered or is missing is an error."""
    directory = make_store(1)
    at = closed(directory, {"state/0/0/1.delta": "a"}, {"state/0/0/2.delta": "b"})
    assert write_epochs(at, 7, tmp_path) == []
    alter(paths_of(directory)[0], "DELETE FROM snaps WHERE state_key = 'state/0/0/2.delta'")
    (tmp_path / "new").mkdir()
    with pytest.raises(CorruptPartitionError):
        write_epochs(at, 0, tmp_path / "new")
