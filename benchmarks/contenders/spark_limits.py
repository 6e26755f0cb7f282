"""What a keyed query on Spark takes before anything is kept: the limit of every step that is given all rows.

The same lines in a session like ours, exchanged by key and then dropped, by Spark itself or by a Python function that
only counts the Arrow batches' rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.contenders.recovery_totals import events, versions
from recovery.spark.jvm.session import create_session


def count_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads all and keeps nothing."""
    rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch({"rows": pa.array([rows], pa.int64())})


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """Runs the query over all files; seconds from a ready session to the end of the query."""
    spark = create_session("keyed", master=arguments["master"], conf=arguments["conf"])

    started_s = time.perf_counter()
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(arguments["files"])
    kept = events(lines).repartition(arguments["workers"], "key")
    if arguments["python"]:
        kept = kept.mapInArrow(count_rows, "rows long")
    checkpoint = f"file:{Path('checkpoint').absolute()}"
    writer = kept.writeStream.format("noop").trigger(availableNow=True).option("checkpointLocation", checkpoint)
    query = writer.start()
    query.awaitTermination()
    seconds = time.perf_counter() - started_s

    read = sum(progress["numInputRows"] for progress in query.recentProgress)
    batches, found = query.lastProgress["batchId"] + 1, versions(spark)
    spark.stop()
    return {
        "wrong": None if read == arguments["events"] else f"read {read} of {arguments['events']} lines",
        "seconds": seconds,
        "batches": batches,
        "versions": found,
        "state_bytes": 0,
    }
