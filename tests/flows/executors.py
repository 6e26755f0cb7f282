"""Flows whose executors do what theirs do on a bad day: large states, a hot key, too little memory, clocks that are
wrong. Their rows are those of cluster.py."""

import hashlib
import os
import signal
import time
from collections import Counter
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from recovery import Flow, aggregate, stateful, stateful_arrow
from recovery.aggregates import count as number_of
from tests.flows.cluster import end_run, ending, rows

HOT_KEYS = 300_000


def large(rows_per_batch=2000, last=5, size=50_000):
    """A word count whose states are texts of some `size` characters, which no compression makes much shorter."""

    def count(key, rows, state):
        n = int((state.get if state.exists else "0").split()[0]) + len(rows)
        digest = hashlib.shake_256(f"{key} {n}".encode()).hexdigest(size // 2)
        state.update(f"{n} {digest}")
        yield key, n

    def build(spark):
        step = stateful("counts", key="key", update=count, output="key string, n long")
        return rows(spark, rows_per_batch).transform(step)

    return Flow("counts", build, sink=ending(last))


def hot_key_of(row):
    """What `hot` computes for a row, in Python: half of the rows have the same key."""
    return "hot" if row % 2 == 0 else f"k{crc32(str(row).encode()) % HOT_KEYS}"


def hot_truth(rows):
    """The number of rows of each key, by a plain loop."""
    return Counter(map(hot_key_of, range(rows)))


def hot(kind, rows_per_batch=600_000, last=2):
    """A word count with 300,000 keys, one of which has half of the rows. kind: that of the step."""

    def update(key, rows, state):
        n = (state.get if state.exists else 0) + sum(1 for _ in rows)
        state.update(n)
        yield key, n

    def add(rows, states):
        totals = rows.group_by("_group").aggregate([("_group", "count")]).sort_by("_group")
        n = pc.add(pc.fill_null(states["n"], 0), totals["_group_count"])
        table = pa.table({"key": states["key"], "n": n})
        return table, table

    steps = {
        "stateful": lambda: stateful("counts", key="key", update=update, output="key string, n long"),
        "stateful_arrow": lambda: stateful_arrow(
            "counts", key="key", update=add, state_schema="n long", output="key string, n long"
        ),
        "aggregate": lambda: aggregate("counts", key="key", n=number_of()),
    }

    def build(spark):
        numbers = rows(spark, rows_per_batch).select("value")
        text = f"concat('k', crc32(cast(cast(value AS string) AS binary)) % {HOT_KEYS})"
        return numbers.selectExpr(f"if(value % 2 = 0, 'hot', {text}) AS key").transform(steps[kind]())

    return Flow("hot", build, sink=ending(last, read=False))


def hungry(who="", at=2, last=4, note="/tmp/was-killed"):
    """A word count during which memory runs out in micro-batch `at`, as `who` says: "step": its function needs too
    much; "worker": the kernel ends each Python worker; "once": it ends one; "jvm": an expression needs too much."""

    def count(key, rows, state):
        if key == "k7" and any(row.value // 2000 == at for row in rows):
            if who == "step":
                bytearray(4 << 30)
            if who == "worker" or (who == "once" and not Path(note).exists()):
                Path(note).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        state.update((state.get if state.exists else 0) + len(rows))
        yield key, state.get

    def build(spark):
        found = rows(spark, 2000)
        if who == "jvm":
            needs_too_much = f"value = {2000 * at + 7} AND length(repeat(key, 300000000)) = 0"
            found = found.withColumn("key", F.expr(f"if({needs_too_much}, 'none', key)"))
        return found.transform(stateful("counts", key="key", update=count, output="key string, n long"))

    return Flow("counts", build, sink=ending(last))


def expiring(seconds=3):
    """Each of 15 keys has a row in one micro-batch; its state ends some seconds later. The sink prints the time of the
    micro-batch of both, and how many seconds the clock of the executor is ahead of that time."""

    def until(key, rows, state):
        ended = state.hasTimedOut
        if ended:
            state.remove()
        else:
            state.update(len(rows))
            state.setTimeoutDuration(1000 * seconds)
        yield key, ended, int(time.time())

    def build(spark):
        source = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
        keys = source.selectExpr("concat('k', value) AS key", "value").where("value < 15")
        step = stateful("until", key="key", update=until, output="key string, ended boolean, clock_s long")
        return keys.transform(step).selectExpr("*", "unix_millis(current_timestamp()) AS now_ms")

    ends = set()

    def write(batch, batch_id):
        for row in batch.collect():
            print(f"{'ended' if row.ended else 'began'} {row.key} {row.now_ms}", flush=True)
            print(f"clock {row.clock_s - row.now_ms // 1000}", flush=True)
            if row.ended:
                ends.add(row.key)
        if len(ends) == 15:
            end_run()

    return Flow("expiring", build, sink=write)
