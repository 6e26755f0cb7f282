"""The rows of a step as record batches, and the process that sends them: no more at a time than fits."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest

from recovery.base.ids import ExecutionNumber, Lease, PartitionIndex, StepId
from recovery.errors import ConfigurationError, EpochNotHeldError, OwnerRefusedError
from recovery.metrics.memory import resident_bytes
from recovery.owner import step_rows as module
from recovery.owner.process import OwnerProcess
from recovery.owner.step_rows import step_rows
from recovery.storage.reach import reach
from recovery.storage.snapshot import snapshot_at, snapshots_at
from recovery.wire.address import OwnerAddress
from recovery.wire.messages import Rows
from recovery.wire.rows import read_rows
from tests.stores import KEY, STEP, Driver

READER = Lease(ExecutionNumber(0), "reader")


@pytest.fixture
def db(make_store) -> Path:
    """Two partitions with three epochs; the states of epoch n have the text n, and key 0 has none since epoch 2."""
    directory = make_store(2)
    with Driver(directory) as run:
        for batch in range(3):
            gone = {"k0": None} if batch == 2 else {}
            run.apply(batch, {f"k{i}": (str(batch), 1000 + i) for i in range(batch, 20)} | gone)
            run.close(batch, backup_interval_s=3600)
    return directory


def read_all(directory: Path, epoch: int | None = None, since: int | None = None) -> list[dict]:
    now, before = snapshots_at(directory, epoch, since)
    found = [step_rows(path, STEP, now.cut, before and before.cut) for path in now.paths]
    return [row for batches in found for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("most", [1, 3, 10_000])
def test_states_and_changes(db, monkeypatch, most):
    """Whatever fits into a record batch, all rows are there, of the epoch that is asked for."""
    monkeypatch.setattr(module, "MOST_ROWS", most)
    for epoch in (1, 2, 3):
        wanted = {f"k{i}": str(min(i, epoch - 1)) for i in range(20)}
        if epoch == 3:
            del wanted["k0"]
        assert {row["key"]: row["state"] for row in read_all(db, epoch)} == wanted
    changed = {row["key"]: (row["change"], row["before"], row["after"]) for row in read_all(db, 3, 1)}
    assert changed.pop("k0") == ("removed", "0", None)
    assert changed == {f"k{i}": ("changed", "0", str(min(i, 2))) for i in range(1, 20)}
    assert read_all(db, 1)[0]["timeout"].timestamp() >= 1


def test_a_record_batch_has_a_limit_in_size(db, monkeypatch):
    """Large values make small batches; one that is larger than the limit has a batch of its own."""
    monkeypatch.setattr(module, "MOST_CHARS", 8)
    now = snapshot_at(db)
    sizes = [batch.num_rows for path in now.paths for batch in step_rows(path, STEP, now.cut)]
    assert max(sizes) < 4
    assert sum(sizes) == 19
    monkeypatch.setattr(module, "MOST_CHARS", 1)
    assert {batch.num_rows for path in now.paths for batch in step_rows(path, STEP, now.cut)} == {1}


def test_an_older_moment_that_is_newer(db):
    """The epochs are the wrong way round."""
    with pytest.raises(ConfigurationError, match="epoch 3 is newer than epoch 1"):
        snapshots_at(db, 1, 3)


@pytest.fixture
def reader(db, tmp_path):
    """A process that only sends rows of the directory, and its address."""
    owner = OwnerProcess("", tmp_path, KEY, READER, 2, reads=snapshot_at(db).paths)
    yield owner
    owner.stop()


def test_a_process_that_sends_rows(db, reader):
    """They are those of the files; an epoch that is gone is named; nothing can be written through it."""
    address = reader.address("127.0.0.1")
    parsed = OwnerAddress.parsed(json.loads(address))

    def sent(index: int, cut, since=None) -> list[dict]:
        call = Rows(StepId(STEP), PartitionIndex(index), cut, since)
        streams = [pyarrow.ipc.open_stream(body) for body in read_rows(parsed, KEY, call)]
        return [row for stream in streams for row in stream.read_all().to_pylist()]

    for epoch, since in ((None, None), (2, None), (3, 1)):
        now, before = snapshots_at(db, epoch, since)
        rows = [row for index in range(2) for row in sent(index, now.cut, before and before.cut)]
        assert rows == read_all(db, epoch, since)
    with pytest.raises(EpochNotHeldError):
        sent(0, (9, "other", 9))
    with pytest.raises(OwnerRefusedError, match="only reads rows"):
        reach(address, task_key=KEY)[0].read(StepId(STEP), 3, {PartitionIndex(0): ("k1",)})


@pytest.mark.long
def test_memory_does_not_depend_on_the_rows(make_store, tmp_path):
    """Neither side holds more than a few pages, here of 200 MB in one partition."""
    directory = make_store(1)
    with Driver(directory) as run:
        run.apply(0, {f"k{i}": f"{i}" + "x" * 20_000 for i in range(10_000)})
        run.close(0)
    now = snapshot_at(directory)
    owner = OwnerProcess("", tmp_path, KEY, READER, 1, reads=now.paths)
    try:
        parsed = OwnerAddress.parsed(json.loads(owner.address("127.0.0.1")))
        call = Rows(StepId(STEP), PartitionIndex(0), now.cut)
        most, size = 0, 0
        for body in read_rows(parsed, KEY, call):
            size += len(body)
            most = max(most, resident_bytes(owner.pid) or 0)
        assert size > 200_000_000
        assert most < 200_000_000
    finally:
        owner.stop()
