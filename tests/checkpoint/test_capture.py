"""Taking a checkpoint while its query runs, and restoring it."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from recovery.base.ids import BatchId
from recovery.checkpoint.capture import Capture
from recovery.checkpoint.home import LocalHome
from recovery.checkpoint.restore import restore
from recovery.checkpoint.rows import CHUNK_BYTES, HeldFile, file_of, held_file, row_keys
from recovery.errors import CorruptPartitionError, SparkCheckpointError, UnsupportedPlanError
from tests.checkpoint.support import files, log, snapshot_zip, write


class Query:
    """A checkpoint, and the rows that partitions would hold of it."""

    def __init__(self, root: Path) -> None:
        self.checkpoint = root / "checkpoint"
        self.staging = root / "staging"
        self.rows: dict[str, str | bytes] = {}
        self.capture = Capture(LocalHome(self.checkpoint), {}, staging=self.staging)

    def close(self, batch: int) -> dict[str, str | bytes | None]:
        """An epoch as of `batch`; what it changed."""
        captured = self.capture.take(BatchId(batch))
        self.capture.saved(captured)
        changes = dict(captured)
        captured.release()
        for key, content in changes.items():
            if content is None:
                del self.rows[key]
            else:
                self.rows[key] = content
        return changes

    def restored(self, directory: Path) -> set[str]:
        """The files of a checkpoint made from the rows; their content is that of the original."""
        rows = list(self.rows.items())
        random.Random(0).shuffle(rows)
        made = restore(rows, directory)
        found = files(directory)
        found.pop(f"offsets/{(made.batch or 0) - 1}", None)
        assert set(found) == set(made.held)
        return set(found)


@pytest.fixture
def query(tmp_path):
    """A query without a file yet."""
    return Query(tmp_path)


def delta(query, version, content="d", store="state/0/0"):
    """The changes of one version."""
    write(query.checkpoint, f"{store}/{version}.delta", content)
    write(query.checkpoint, f"{store}/.{version}.delta.crc", "crc")


def test_what_a_connector_writes_again_is_taken_again(query, tmp_path):
    """Its own files need not be written once, and get shorter as well; also in the first epoch after a resume."""
    long = "x" * (2 * CHUNK_BYTES + 1)
    write(query.checkpoint, "sources/0/progress/fixed", "as ever")
    for batch, content in enumerate(("first", "second", long, "short")):
        log(query.checkpoint, batch)
        write(query.checkpoint, "sources/0/progress/current", content)
        changes = query.close(batch)
        assert ("sources/0/progress/fixed" in changes) == (batch == 0)
        query.restored(tmp_path / str(batch))
        assert (tmp_path / str(batch) / "sources/0/progress/current").read_text() == content
    made = restore(query.rows.items(), tmp_path / "again")
    query.checkpoint, query.capture = tmp_path / "again", Capture(LocalHome(tmp_path / "again"), made.held, made.stale)
    write(query.checkpoint, "sources/0/progress/current", "after it")
    log(query.checkpoint, 4)
    changes = query.close(4)
    assert changes["sources/0/progress/current"] == "after it"
    assert "sources/0/progress/fixed" not in changes


def test_what_a_connector_writes_again_while_an_epoch_is_written(query):
    """A long file of its own is copied, so that it may."""
    log(query.checkpoint, 0)
    write(query.checkpoint, "sources/0/progress/current", "x" * CHUNK_BYTES)
    captured = query.capture.take(BatchId(0))
    with (query.checkpoint / "sources/0/progress/current").open("a") as file:
        file.write("of the next micro-batch")
    assert captured["sources/0/progress/current"] == "x" * CHUNK_BYTES
    query.capture.saved(captured)
    captured.release()
    log(query.checkpoint, 1)
    changes = query.capture.take(BatchId(1))
    assert {key for key in changes if "current" in key} == {
        "sources/0/progress/current", "sources/0/progress/current#00001", "sources/0/progress/current#00002"
    }  # fmt: skip
    assert changes["sources/0/progress/current"] is None


def test_what_a_connector_wrote_is_taken_by_the_look_that_succeeds(query, monkeypatch):
    """Spark's maintenance removes files of state: then it is looked at again."""
    write(query.checkpoint, "sources/0/progress/current", "one")
    for batch in range(2):
        log(query.checkpoint, batch)
        delta(query, batch + 1)
        if batch:
            write(query.checkpoint, "sources/0/progress/current", "two")
            take_hold, looks = query.capture._take_hold, []

            def gone(paths, home, take_hold=take_hold, looks=looks):
                looks.append(take_hold(paths, home))
                if len(looks) == 1:
                    raise FileNotFoundError(errno.ENOENT, "gone", "state/0/0/1.delta")
                return looks[-1]

            monkeypatch.setattr(query.capture, "_take_hold", gone)
        query.close(batch)
    assert query.rows["sources/0/progress/current"] == "two"


def test_a_name_that_would_be_taken_for_a_part_of_a_file(query):
    log(query.checkpoint, 0)
    write(query.checkpoint, "sources/0/shards/shard#00012", "at 17")
    with pytest.raises(UnsupportedPlanError, match="ends like the name of a file part"):
        query.close(0)


def test_an_epoch_takes_what_is_new_and_gives_up_what_is_old(query, tmp_path):
    """Position and state as of the micro-batch: nothing of the next one, which Spark has begun."""
    write(query.checkpoint, "state/0/_metadata/metadata", "layout")
    write(query.checkpoint, "state/0/0/_metadata/schema", "schema")
    for batch in range(3):
        log(query.checkpoint, batch)
        delta(query, batch + 1, f"d{batch}")
    delta(query, 4, "of the next micro-batch")
    assert query.close(2).keys() == {
        "metadata", "offsets/2", "commits/2", "sources/0/0", "sources/0/1", "sources/0/2",
        "state/0/_metadata/metadata", "state/0/0/_metadata/schema",
        "state/0/0/1.delta", "state/0/0/2.delta", "state/0/0/3.delta",
    }  # fmt: skip
    log(query.checkpoint, 3)
    write(query.checkpoint, "state/0/0/4.snapshot", "s")
    assert query.close(3) == {
        "offsets/3": "v1\n{}\n3", "commits/3": "v1\n{}", "sources/0/3": "0", "state/0/0/4.snapshot": "s",
        "offsets/2": None, "commits/2": None,
        "state/0/0/1.delta": None, "state/0/0/2.delta": None, "state/0/0/3.delta": None,
    }  # fmt: skip
    assert "state/0/0/4.snapshot" in query.restored(tmp_path / "anew")


def test_a_join_has_several_stores_in_a_partition(query, tmp_path):
    """Each is a chain of its own."""
    for batch in range(2):
        log(query.checkpoint, batch)
        for store in ("left-keyToNumValues", "right-keyWithIndexToValue"):
            delta(query, batch + 1, store=f"state/0/1/{store}")
    query.close(1)
    assert {path for path in query.restored(tmp_path / "anew") if path.startswith("state/")} == {
        f"state/0/1/{store}/{version}.delta"
        for store in ("left-keyToNumValues", "right-keyWithIndexToValue")
        for version in (1, 2)
    }


def test_rocksdb_snapshots_bring_the_files_they_name(query, tmp_path):
    """And no others: what older snapshots named goes with them."""
    store = "state/0/0"
    for name in ("SSTs/1-a.sst", "SSTs/2-b.sst", "SSTs/3-unfinished.sst", "logs/4-c.log"):
        write(query.checkpoint, f"{store}/{name}", name)
    log(query.checkpoint, 0)
    write(query.checkpoint, f"{store}/1.zip", snapshot_zip(("1-a.sst",)))
    query.close(0)
    assert {name for name in query.rows if "/0/0/" in name} == {f"{store}/1.zip", f"{store}/SSTs/1-a.sst"}
    log(query.checkpoint, 1)
    write(query.checkpoint, f"{store}/2.zip", snapshot_zip(("1-a.sst", "2-b.sst"), ("4-c.log",)))
    changes = query.close(1)
    assert changes.keys() & {f"{store}/SSTs/1-a.sst"} == set(), "it is held already"
    assert query.restored(tmp_path / "anew") >= {f"{store}/SSTs/2-b.sst", f"{store}/logs/4-c.log"}
    (query.checkpoint / store / "SSTs/2-b.sst").unlink()
    log(query.checkpoint, 2)
    write(query.checkpoint, f"{store}/3.zip", snapshot_zip(("1-a.sst", "5-lost.sst")))
    with pytest.raises(SparkCheckpointError, match=r"5-lost\.sst"):
        query.capture.take(BatchId(2))


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_long_files_are_rows_of_one_chunk_each(query, tmp_path, size):
    """Up to a chunk it is one row; a longer one is put together again from any order."""
    content = random.Random(size).randbytes(size)
    log(query.checkpoint, 0)
    delta(query, 1, content)
    query.close(0)
    rows = [key for key in query.rows if key.startswith("state")]
    assert rows == row_keys("state/0/0/1.delta", held_file(size))
    assert len(rows) == max(1, -(-size // CHUNK_BYTES))
    assert {file_of(key)[0] for key in rows} == {"state/0/0/1.delta"}
    query.restored(tmp_path / "anew")
    assert (tmp_path / "anew/state/0/0/1.delta").read_bytes() == content
    if len(rows) > 1:
        del query.rows[rows[0]]
        with pytest.raises(CorruptPartitionError, match=r"1\.delta"):
            restore(query.rows.items(), tmp_path / "again")


def test_what_spark_removes_meanwhile_is_still_read(query):
    """Its content is there until the epoch is written; and then nothing is left of it."""
    for batch in range(2):
        log(query.checkpoint, batch)
        delta(query, batch + 1, f"d{batch}")
    captured = query.capture.take(BatchId(1))
    shutil.rmtree(query.checkpoint)
    assert captured["state/0/0/2.delta"] == "d1"
    assert captured["offsets/1"] == "v1\n{}\n1"
    captured.release()
    assert list(query.staging.iterdir()) == []


def test_without_links_files_are_copied(query, monkeypatch):
    """On a file system that has none."""

    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    log(query.checkpoint, 0)
    delta(query, 1, "content")
    assert query.close(0)["state/0/0/1.delta"] == "content"
    log(query.checkpoint, 1)
    delta(query, 2)
    assert "state/0/0/1.delta" not in query.close(1)


def test_a_file_that_vanishes_while_listing_is_not_needed(query, monkeypatch):
    """Spark removed it, so a newer snapshot makes it superfluous: the next look finds that."""
    for batch in range(3):
        log(query.checkpoint, batch)
        delta(query, batch + 1)
    link = os.link

    def vanish(source, target):
        if not (query.checkpoint / "state/0/0/3.snapshot").exists():
            write(query.checkpoint, "state/0/0/3.snapshot", "s")
            (query.checkpoint / "state/0/0/1.delta").unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", vanish)
    assert [key for key in query.close(2) if key.startswith("state")] == ["state/0/0/3.snapshot"]


def test_a_file_that_changes_is_an_error(query):
    """After it was taken, and between the cut and the reading."""
    log(query.checkpoint, 0)
    delta(query, 1, "first")
    captured = query.capture.take(BatchId(0))
    with (query.checkpoint / "state/0/0/1.delta").open("a") as file:
        file.write("more")
    with pytest.raises(SparkCheckpointError, match=r"state/0/0/1\.delta"):
        captured["state/0/0/1.delta"]
    query.capture.saved(captured)
    log(query.checkpoint, 1)
    delta(query, 2)
    with pytest.raises(SparkCheckpointError, match=r"state/0/0/1\.delta"):
        query.capture.take(BatchId(1))


def test_a_snapshot_that_is_held_may_be_removed(query, tmp_path):
    """Spark's maintenance removes it and what it names; an epoch that still needs it takes the changes after it."""
    store = "state/0/0"
    log(query.checkpoint, 0)
    write(query.checkpoint, f"{store}/SSTs/1-a.sst", "a")
    write(query.checkpoint, f"{store}/1.zip", snapshot_zip(("1-a.sst",)))
    query.close(0)
    made = restore(query.rows.items(), tmp_path / "anew")
    query.checkpoint = tmp_path / "anew"
    query.capture = Capture(LocalHome(query.checkpoint), made.held, staging=query.staging)
    for batch in (1, 2):
        log(query.checkpoint, batch)
        write(query.checkpoint, f"{store}/{batch + 1}.changelog", "c")
        shutil.rmtree(query.checkpoint / store / "SSTs", ignore_errors=True)
        (query.checkpoint / store / "1.zip").unlink(missing_ok=True)
        changes = query.close(batch)
        assert {key for key in changes if key.startswith(store)} == {f"{store}/{batch + 1}.changelog"}
    assert query.restored(tmp_path / "again") >= {f"{store}/1.zip", f"{store}/SSTs/1-a.sst", f"{store}/3.changelog"}


def test_a_share_that_shows_a_store_late(query):
    """The first look lacks a store that a task on another host has made: the next look takes it."""

    class Share(LocalHome):
        shared = True
        looks = 0

        def listing(self, directory):
            directories, names = super().listing(directory)
            if directory == "state/0/1":
                self.looks += 1
                return [name for name in directories if name != "right" or self.looks > 1], names
            return directories, names

    query.capture = Capture(Share(query.checkpoint), {}, staging=query.staging)
    log(query.checkpoint, 0)
    stores = [f"state/0/{partition}/{side}" for partition in range(2) for side in ("left", "right")]
    for store in stores:
        delta(query, 1, store=store)
    assert {f"{store}/1.delta" for store in stores} <= query.close(0).keys()


def test_state_that_disappears_is_an_error(query):
    """It is not taken for state that is not needed any more."""
    log(query.checkpoint, 0)
    for partition in range(2):
        delta(query, 1, store=f"state/0/{partition}")
    query.close(0)
    shutil.rmtree(query.checkpoint / "state/0/1")
    log(query.checkpoint, 1)
    delta(query, 2)
    with pytest.raises(SparkCheckpointError, match=r"state/0/1: the directory that holds the state is missing"):
        query.close(1)


def test_a_missing_file_is_reported_when_a_checkpoint_is_made(query, tmp_path):
    """Better now than by Spark in the middle of a micro-batch."""
    for batch in range(3):
        log(query.checkpoint, batch)
        delta(query, batch + 1)
    query.close(2)
    del query.rows["state/0/0/2.delta"]
    with pytest.raises(SparkCheckpointError, match=r"2\.delta"):
        restore(query.rows.items(), tmp_path / "anew")


def test_a_restored_checkpoint_is_continued(query, tmp_path):
    """The run on it takes only what it adds, and knows how the rows of before are cut."""
    log(query.checkpoint, 0)
    delta(query, 1, b"\xff" * (2 * CHUNK_BYTES))
    query.close(0)
    made = restore(query.rows.items(), tmp_path / "anew")
    assert made.batch == 0
    assert made.held["state/0/0/1.delta"] == HeldFile(2 * CHUNK_BYTES, 2)
    query.checkpoint = tmp_path / "anew"
    query.capture = Capture(LocalHome(query.checkpoint), made.held, staging=query.staging)
    log(query.checkpoint, 1)
    delta(query, 2)
    assert {key for key in query.close(1) if key.startswith("state")} == {"state/0/0/2.delta"}
    log(query.checkpoint, 2)
    write(query.checkpoint, "state/0/0/3.snapshot", "s")
    assert {key for key, content in query.close(2).items() if content is None and key.startswith("state")} == {
        "state/0/0/1.delta#00001", "state/0/0/1.delta#00002", "state/0/0/2.delta"
    }  # fmt: skip


def test_absolute_paths_are_those_of_the_new_place(query, tmp_path):
    """What `transformWithState` notes of its schemas names its checkpoint."""
    named = '{"stateStoreInfo":[{"stateSchemaFilePaths":["file:/old/state/0/_stateSchema/default/0_a"]}]}'
    write(query.checkpoint, "state/0/_metadata/v2/0", f"v2\n{named}")
    write(query.checkpoint, "state/0/_metadata/v2/1", "of the micro-batch that has begun")
    write(query.checkpoint, "state/0/_stateSchema/default/0_a", "v3")
    log(query.checkpoint, 0)
    delta(query, 1)
    query.close(0)
    restore(query.rows.items(), tmp_path / "anew")
    text = (tmp_path / "anew/state/0/_metadata/v2/0").read_text()
    assert text == "v2\n" + named.replace("file:/old", f"file:{tmp_path}/anew")
    assert not (tmp_path / "anew/state/0/_metadata/v2/1").exists()


def test_other_state_stores_are_refused(query):
    """State that would be left out is not left out silently."""
    log(query.checkpoint, 0)
    write(query.checkpoint, "state/0/0/00001.ldb", "x")
    with pytest.raises(UnsupportedPlanError, match=r"state/0/0/00001\.ldb"):
        query.capture.take(BatchId(0))


def test_nothing_saved_is_a_fresh_checkpoint(tmp_path):
    """Spark begins at the start of its input."""
    assert restore([], tmp_path / "new").batch is None
    assert files(tmp_path / "new") == {}
