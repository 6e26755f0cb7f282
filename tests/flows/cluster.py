"""Flows for a cluster, and the plain loop that gives what they must. Their input is made by the tasks themselves: row
number i has the key of `key_of(i)`, so no host needs a file."""

import os
import signal
import time
from collections import Counter
from zlib import crc32

from recovery import Flow, stateful

KEYS = 500


def key_of(row):
    """What `rows` computes for a row, in Python."""
    return f"k{crc32(str(row).encode()) % KEYS}"


def truth(rows):
    """The number of rows of each key, by a plain loop."""
    return Counter(map(key_of, range(rows)))


def rows(spark, rows_per_batch):
    """The stream: key string, value long, in micro-batches of a fixed size."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_batch)
    numbers = source.option("numPartitions", 4).option("startTimestamp", 1_700_000_000_000).load()
    return numbers.selectExpr(f"concat('k', crc32(cast(cast(value AS string) AS binary)) % {KEYS}) AS key", "value")


def count(key, rows, state):
    n = (state.get if state.exists else 0) + len(rows)
    state.update(n)
    yield key, n


def ending(last, pause_s=0.0, read=True):
    """A sink that reads every micro-batch twice, and ends the run after number `last`."""

    def write(batch, batch_id):
        if read:
            batch.count()
            time.sleep(pause_s)
            batch.count()
        print(f"batch {batch_id}", flush=True)
        if batch_id >= last:
            os.kill(os.getpid(), signal.SIGTERM)

    return write


def counts(rows_per_batch=2000, last=5, pause_s=0.0):
    """A word count."""

    def build(spark):
        step = stateful("counts", key="key", update=count, output="key string, n long")
        return rows(spark, rows_per_batch).transform(step)

    return Flow("counts", build, sink=ending(last, pause_s))
