"""A run's numbers while it goes on: at the endpoint, in a listener, in the partitions."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request

import pytest

from recovery import ConfigurationError, MetricsListener, RecoveryConfig, init_partitions, query_metrics, start
from recovery.backup.note import LastBackup, note_backup
from recovery.metrics.endpoint import MetricsEndpoint
from recovery.storage.scan import read_measures
from tests.spark.support import totals_step
from tests.stores import problems

pytestmark = pytest.mark.any_spark


def test_metrics_of_a_run(spark, feed, tmp_path, monkeypatch):
    """What the endpoint, a listener and the partitions say of three micro-batches is what was done; the endpoint ends
    with the run, and a target that is missed is in the summary."""
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    note_backup(directory, LastBackup(int(time.time() * 1000) - 7_200_000, 0, "elsewhere"))
    # Workers may not be there yet when the run begins, and it may be over before they would be looked at again.
    monkeypatch.setattr("recovery.metrics.meter.MEMORY_EVERY_S", 0)
    for seed in range(3):
        feed.add_random(seed, count=200)
    scrapes, seen, begun, complete = [], [], threading.Event(), threading.Event()

    def observe(progress, metrics):
        seen.append((progress.batchId, progress.numInputRows, metrics))
        if progress.batchId == 2:
            complete.set()

    def sink(batch, batch_id):
        assert batch.count() == batch.select("key").distinct().count()
        assert begun.wait(60)
        with urllib.request.urlopen(query[0].metrics_url, timeout=30) as answer:
            scrapes.append(answer.read().decode())

    query, listener = [], MetricsListener(observe)
    spark.streams.addListener(listener)
    try:
        # The other targets may be missed too, by a slow machine or one with much memory in use.
        thresholds = {"snapshot-duration": (0.0, 1000), "update-latency": "off", "cleanup-time": "off", "memory": "off",
                      "backup-lag": "1h/1d"}  # fmt: skip
        config = RecoveryConfig(directory, snapshot_interval=0, metrics_port=0, thresholds=thresholds)
        frame = feed.frame(spark).transform(totals_step())
        query.append(start(frame, config, sink=sink, name="flow", trigger="available-now"))
        begun.set()
        query[0].await_termination()
        assert complete.wait(30)
        progress = query[0].streaming_query.lastProgress
    finally:
        spark.streams.removeListener(listener)

    assert "recovery_batches_total 2\n" in scrapes[-1]
    assert 'recovery_info{flow="flow",execution="1"' in scrapes[-1]
    assert "recovery_input_rows_total 400\n" in scrapes[-1]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(query[0].metrics_url, timeout=30)

    assert [(batch, rows, metrics["batch"]["rows"]) for batch, rows, metrics in seen] == [
        (0, 200, 200), (1, 200, 200), (2, 200, 200),
    ]  # fmt: skip
    assert query_metrics(progress)["batches"] == 3
    assert query_metrics({**dict(progress), "runId": "another"}) is None

    begun, *epochs = read_measures(directory / "part-0.sqlite3")
    assert (begun.epoch, begun.execution) == (0, 1)
    assert 0 < begun.resume_s < 60
    assert sum(epoch.batches for epoch in epochs) == 3
    assert sum(epoch.input_rows for epoch in epochs) == sum(epoch.rows for epoch in epochs) == 600
    keys = sum(len({key for key, _ in feed.rows[start : start + 200]}) for start in (0, 200, 400))
    assert sum(epoch.touched for epoch in epochs) == sum(epoch.looked_up for epoch in epochs) == keys
    last = epochs[-1]
    assert last.steps["totals"].rows == len(feed.counts())
    assert 0 < last.update_latency_s < 1
    assert last.memory_driver_bytes > 10_000_000
    assert last.memory_jvm_bytes > 10_000_000
    assert last.memory_workers_bytes > 10_000_000
    assert [each["target"] for each in query[0].summary.exceeded] == ["snapshot-duration", "backup-lag"]
    assert problems(directory) == []


def test_a_port_that_is_taken_stops_a_run_before_it_writes(spark, feed, tmp_path):
    """The directory is as it was, and free for the next run."""
    directory = tmp_path / "db"
    [path] = init_partitions(directory, 1)
    feed.add([("a", 1)])
    before = path.read_bytes()
    other = MetricsEndpoint("127.0.0.1", 0)
    try:
        port = int(other.url.rpartition(":")[2].partition("/")[0])
        frame = feed.frame(spark).transform(totals_step())
        with pytest.raises(ConfigurationError, match=str(port)):
            start(frame, RecoveryConfig(directory, metrics_port=port), name="flow", trigger="available-now")
    finally:
        other.close()
    assert path.read_bytes() == before
    start(frame, RecoveryConfig(directory, metrics_port=port), name="flow", trigger="available-now").await_termination()
