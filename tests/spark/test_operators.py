"""Queries whose state Spark's own operators keep: stopped, killed, resumed and rewound, their output is that of plain
Spark on one checkpoint, micro-batch by micro-batch."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from recovery import (
    ConfigurationError,
    Flow,
    RecoveryConfig,
    StepChangedError,
    UnsupportedPlanError,
    init_partitions,
    start,
)
from recovery.spark.planner.bind import FORMAT_SETTING
from recovery.spark.planner.state_store import PROVIDER_SETTING
from recovery.storage.scan import scan
from tests.flows.operators import (
    EVENTS,
    STORES,
    TTL_MS,
    events,
    remembered,
    tumbling,
    write_events,
)
from tests.spark.support import run_to_end, set_to
from tests.stores import problems


class Outputs:
    """A sink that keeps the rows of each micro-batch, and can be waited for."""

    def __init__(self) -> None:
        self.batches: dict[int, Counter] = {}
        self.stop_at: int | None = None
        self.query = None

    def __call__(self, batch, batch_id):
        rows = batch.select(F.to_json(F.struct("*")).alias("row")).collect()
        self.batches[batch_id] = Counter(row.row for row in rows)

    def merged(self) -> Counter:
        """All rows of all micro-batches."""
        return sum(self.batches.values(), Counter())


def plainly(frame, checkpoint: Path, mode: str = "append") -> Outputs:
    """What plain Spark gives for a query."""
    query, outputs = start_plainly(frame, checkpoint, mode)
    query.awaitTermination()
    return outputs


def start_plainly(frame, checkpoint: Path, mode: str = "append"):
    """Spark's own handle, and what will have come out when it ends."""
    outputs = Outputs()
    writer = frame.writeStream.foreachBatch(outputs).outputMode(mode)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(), outputs


def windows_without_duplicates(spark, path):
    """Two operators with state and a watermark."""
    unique = events(spark, path).dropDuplicatesWithinWatermark(["key", "value"])
    return unique.groupBy(F.window("t", "20 seconds"), "key").agg(F.count("*").alias("n"))


@pytest.mark.parametrize("store", ["hdfs", pytest.param("changelog", marks=pytest.mark.long)])
def test_stopped_and_rewound_it_is_as_plain_spark(spark, tmp_path, store, capfd):
    """Every micro-batch gives the rows that it gives on one checkpoint, late ones dropped; stopping leaves no error."""
    path, directory = tmp_path / "events", tmp_path / "db"
    write_events(path, 1, 9)
    init_partitions(directory, 3)
    values = {**STORES[store], "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3"}
    with set_to(spark, values):
        truth = plainly(windows_without_duplicates(spark, path), tmp_path / "plain").batches
        assert len(truth) >= 9
        assert sum(sum(rows.values()) for rows in truth.values()) > 20
        seen = Outputs()
        for until in (3, 6):
            run_until(windows_without_duplicates(spark, path), directory, seen, until)
        assert seen.batches.keys() == set(range(6))
        run_to_end(windows_without_duplicates(spark, path), directory, seen, backup_interval="1h")
        assert seen.batches == truth
        again = Outputs()
        run_to_end(windows_without_duplicates(spark, path), directory, again, backup_interval="1h", resume_epoch=3)
        assert again.batches == {batch: rows for batch, rows in truth.items() if batch >= 2}
    assert "Traceback" not in capfd.readouterr().err


def run_until(frame, directory, outputs, count) -> None:
    """Run until `count` micro-batches were seen in all, then stop: the next one is parked, or under way."""

    begun = threading.Event()

    def sink(batch, batch_id):
        assert begun.wait(60)
        if len(outputs.batches) < count:
            outputs(batch, batch_id)
            if len(outputs.batches) == count:
                query._status.parked.set()

    config = RecoveryConfig(directory, snapshot_interval=0, backup_interval="1h")
    query = start(frame, config, sink=sink, name="test", trigger="available-now")
    begun.set()
    deadline = time.monotonic() + 180
    while len(outputs.batches) < count:
        assert query.is_active or query.await_termination()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    query.stop()
    assert query.streaming_query.exception() is None


@pytest.mark.long
def test_state_that_expires(spark, tmp_path):
    """transformWithState with a time to live: a run that comes back in time finds the state, one that comes too late
    does not, and one that goes back finds it as it was and as old as it is."""
    path, directory, held = tmp_path / "events", tmp_path / "db", {}
    init_partitions(directory, 3)

    def run_on(files: int, new: int, **config: object) -> list[bool]:
        """Run until `new` more files are read; whether state was found, for each key of each file."""
        write_events(path, 7, files)
        batches, complete = [], threading.Event()

        def sink(batch, _):
            batches.extend(filter(None, [batch.collect()]))
            if len(batches) == new:
                complete.set()

        query = start(
            remembered(spark, path), RecoveryConfig(directory, snapshot_interval=0, backup_interval="1h", **config),
            sink=sink, name="test", output_mode="update", trigger=0.2,
        )  # fmt: skip
        assert complete.wait(180)
        query.stop()
        found = []
        for file, rows in zip(sorted(path.iterdir())[files - new :], batches, strict=True):
            counts = Counter(line.split(",")[0] for line in file.read_text().splitlines())
            assert {row.key for row in rows} == counts.keys()
            for key, count, at_ms in rows:
                before, before_ms = held.get(key, (0, at_ms - TTL_MS))
                found.append(at_ms < before_ms + TTL_MS)
                assert count == counts[key] + (before if found[-1] else 0)
                held[key] = count, at_ms
        return found

    with set_to(spark, {**STORES["changelog"], "spark.sql.shuffle.partitions": "2"}):
        assert not any(run_on(1, 1))
        first, after_first = dict(held), scan(directory)[0].description.newest_epoch + 1
        assert any(run_on(2, 1)), "the machine took longer than the time to live"
        time.sleep(TTL_MS / 1000)
        assert not any(run_on(3, 1))
        held = first
        assert any(run_on(3, 2, resume_epoch=after_first))
    assert problems(directory) == []


@pytest.mark.long
def test_output_modes(spark, tmp_path):
    """Spark's own check decides what a mode allows, with a step in the plan as without; other words are refused."""
    path = tmp_path / "events"
    write_events(path, 2, 3)
    counts = lambda: events(spark, path).groupBy("key").count()  # noqa: E731
    truth = Counter(line.split(",")[0] for file in path.iterdir() for line in file.read_text().splitlines())
    for mode in ("update", "complete"):
        seen = Outputs()
        run_to_end(counts(), tmp_path / mode, seen, output_mode=mode)
        batches = [[json.loads(row) for row in seen.batches[batch]] for batch in range(3)]
        rows = [*batches[0], *batches[1], *batches[2]] if mode == "update" else batches[2]
        assert {row["key"]: row["count"] for row in rows} == truth
    with pytest.raises(Exception, match="watermark"):
        run_to_end(spark.readStream.schema(EVENTS).csv(str(path)).groupBy("key").count(), tmp_path / "append")
    with pytest.raises(ConfigurationError, match="'merge' is not an output mode"):
        run_to_end(counts(), tmp_path / "other", output_mode="merge")
    with pytest.raises(ConfigurationError, match="'Complete' is not"):
        Flow("counts", lambda _: counts(), output_mode="Complete")


def test_the_other_checkpoint_format_is_refused(spark, tmp_path):
    """Before anything is written, where there is native state; without, the setting means nothing."""
    path = tmp_path / "events"
    write_events(path, 2, 1)
    with set_to(spark, {FORMAT_SETTING: "2"}):
        with pytest.raises(UnsupportedPlanError, match="checkpointFormatVersion=2"):
            run_to_end(tumbling(spark, path), tmp_path / "db")
        run_to_end(events(spark, path), tmp_path / "db")


@pytest.mark.parametrize("name", ["no.such.Provider", "java.lang.String"])
def test_an_unknown_state_store_is_refused(spark, tmp_path, name):
    """With the reason, before anything is written; Spark itself would fail in a task."""
    path = tmp_path / "events"
    write_events(path, 2, 1)
    with set_to(spark, {PROVIDER_SETTING: name}), pytest.raises(UnsupportedPlanError, match=name):
        run_to_end(tumbling(spark, path), tmp_path / "db")
    assert all(not file.description.epochs for file in scan(tmp_path / "db"))


def test_changed_operators_are_reported(spark, tmp_path):
    """An operator added or removed: Spark's own check, in our words, and nothing is lost."""
    path, directory = tmp_path / "events", tmp_path / "db"
    write_events(path, 3, 2)
    run_to_end(tumbling(spark, path), directory)
    write_events(path, 3, 4)
    for changed in (windows_without_duplicates(spark, path), events(spark, path)):
        with pytest.raises(StepChangedError, match="do not fit the state"):
            run_to_end(changed, directory)
    seen = Outputs()
    run_to_end(tumbling(spark, path), directory, seen)
    assert seen.batches
