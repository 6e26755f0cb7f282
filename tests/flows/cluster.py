"""Flows for a cluster, and the plain loop that gives what they must. Their input is made by the tasks themselves: row
number i has the key of `key_of(i)`, so no host needs a file."""

import json
import os
import signal
import time
from collections import Counter
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from recovery import (
    AllKeysSink,
    DiscardSink,
    FileSink,
    Flow,
    Node,
    Pipeline,
    aggregate,
    incremental,
    stateful,
    stateful_arrow,
)
from recovery.aggregates import count as number_of

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


_ended = []


def end_run():
    """End this run by SIGTERM. A second one, in a micro-batch that had begun, would end it immediately."""
    if not _ended:
        _ended.append(True)
        os.kill(os.getpid(), signal.SIGTERM)


def ending(last, pause_s=0.0, read=True):
    """A sink that reads every micro-batch twice, and ends the run after number `last`."""

    def write(batch, batch_id):
        if read:
            batch.count()
            time.sleep(pause_s)
            batch.count()
        print(f"batch {batch_id}", flush=True)
        if batch_id >= last:
            end_run()

    return write


def counts(rows_per_batch=2000, last=5, pause_s=0.0):
    """A word count."""

    def build(spark):
        step = stateful("counts", key="key", update=count, output="key string, n long")
        return rows(spark, rows_per_batch).transform(step)

    return Flow("counts", build, sink=ending(last, pause_s))


def paced(rows_per_batch=2000, last=5, pause_s=0.0):
    """The same with rows that take a while: each key's first call of a micro-batch waits."""

    def slowly(key, rows, state):
        if key in ("k1", "k2", "k3", "k4"):
            time.sleep(pause_s)
        return count(key, rows, state)

    def build(spark):
        return rows(spark, rows_per_batch).transform(
            stateful("counts", key="key", update=slowly, output="key string, n long")
        )

    return Flow("counts", build, sink=ending(last))


def kinds(rows_per_batch=2000, last=5):
    """A step per key, then one on Arrow tables, then one with timeouts; each counts the rows of a key."""

    def add(rows, states):
        totals = rows.group_by("_group").aggregate([("_group", "count")])
        order = pc.sort_indices(totals, sort_keys=[("_group", "ascending")])
        added = totals.take(order)["_group_count"]
        n = pc.add(pc.fill_null(states["n"], 0), added)
        table = pa.table({"key": states["key"], "n": n})
        # A row for each row, so that the next step counts the same.
        return table, rows.select(["key"])

    def waiting(key, rows, state):
        if state.hasTimedOut:
            yield key, -1
            return
        state.update((state.get if state.exists else 0) + len(rows))
        state.setTimeoutDuration(3_600_000)
        yield key, state.get

    def each(key, rows, state):
        state.update((state.get if state.exists else 0) + len(rows))
        for _ in rows:
            yield (key,)

    def build(spark):
        return (
            rows(spark, rows_per_batch)
            .transform(stateful("each", key="key", update=each, output="key string"))
            .transform(stateful_arrow("arrow", key="key", update=add, state_schema="n long", output="key string"))
            .transform(stateful("waiting", key="key", update=waiting, output="key string, n long"))
        )

    return Flow("kinds", build, sink=ending(last))


def totals(rows_per_batch=2000, last=5):
    """A declared aggregate, which the driver merges where it can."""

    def build(spark):
        return rows(spark, rows_per_batch).transform(aggregate("totals", key="key", n=number_of()))

    return Flow("totals", build, sink=ending(last))


def expiring(last=30):
    """Each key has rows in the first micro-batches alone; its state ends two seconds later."""

    def until(key, rows, state):
        if state.hasTimedOut:
            state.remove()
            yield key, "ended"
            return
        state.update(len(rows))
        state.setTimeoutDuration(2000)
        yield key, "seen"

    def build(spark):
        source = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
        keys = source.selectExpr("concat('k', value % 3) AS key", "value").where("value < 15")
        return keys.transform(stateful("until", key="key", update=until, output="key string, what string"))

    def write(batch, batch_id):
        found = sorted(row.key for row in batch.where("what = 'ended'").collect())
        print(f"batch {batch_id} ended {' '.join(found)}", flush=True)
        if found:
            end_run()

    return Flow("expiring", build, sink=write)


def lines(path, shared):
    """A word count over growing files."""

    def build(spark):
        source = spark.readStream.format("appended").option("sharedFiles", shared).load(path)
        return source.transform(stateful("counts", key="value", update=count, output="value string, n long"))

    return Flow("lines", build, sink=DiscardSink())


def refused(what, path):
    """What executors would write or read on disks of their own."""

    def build(spark):
        frame = rows(spark, 10).transform(stateful("counts", key="key", update=count, output="key string, n long"))
        if what == "native":
            return rows(spark, 10).groupBy("key").count()
        return frame

    sink = FileSink(path) if what == "files" else DiscardSink()
    return Flow("refused", build, sink=sink, output_mode="update" if what == "native" else "append")


def table(kind, share, rows_per_batch=500, last=3, pause_s=0.0):
    """The numbers of rows as a table on a share, until micro-batch number `last`. kind: "delta", "iceberg" or "files".
    share: a path, or an address. pause_s: between two reads of a micro-batch by the sink."""
    from recovery import DeltaSink, IcebergSink

    def build(spark):
        return rows(spark, rows_per_batch).transform(
            stateful("counts", key="key", update=count, output="key string, n long")
        )

    place = share if "://" in share else f"file://{share}"
    catalog = {"type": "sql", "uri": f"sqlite:///{share}/catalog.db", "warehouse": place}
    sinks = {
        "delta": lambda: DeltaSink(f"{place}/table"),
        "iceberg": lambda: IcebergSink("db.t", properties=catalog),
        "files": lambda: FileSink(f"{place}/table"),
    }
    sink = sinks[kind]()
    write = sink.write

    def ending(batch, batch_id):
        if pause_s:
            batch.count()
            print(f"reading {batch_id}", flush=True)
            time.sleep(pause_s)
        write(batch, batch_id)
        print(f"batch {batch_id}", flush=True)
        if batch_id >= last:
            end_run()

    sink.write = ending
    return Flow("counts", build, sink=sink)


def loading(last=2):
    """Each micro-batch also loads ten more rows of a batch source, those above a mark, and prints their ids."""
    end = ending(last)

    def write(batch, batch_id):
        found = incremental(lambda spark: spark.range(10 * (batch_id + 1)), column="id", key="ids")
        print(f"loaded {json.dumps([row.id for row in found.orderBy('id').collect()])}", flush=True)
        end(batch, batch_id)

    return Flow("loading", lambda spark: rows(spark, 100), sink=write)


def every_key(path, last=3):
    """The number of rows of every key, whenever an epoch is closed, until epoch number `last` or a little later."""
    step = aggregate("totals", key="key", n=number_of())

    def write(frame, epoch):
        counts = {row.key: row.n for row in frame.collect()}
        print(f"epoch {epoch} {json.dumps(counts, sort_keys=True)}", flush=True)
        if epoch == last:
            end_run()

    return Flow("every_key", lambda spark: rows(spark, 2000).transform(step), sink=AllKeysSink(step, path, write))


def joined(path, last=2):
    """Rows joined with the states of a step of another directory, and counted."""

    def build(spark):
        states = spark.read.format("recovery").option("step", "counts").load(path)
        known = rows(spark, 2000).join(states.select("key", "state"), "key").where("state % 2 = 0")
        return known.transform(stateful("counts", key="key", update=count, output="key string, n long"))

    return Flow("joined", build, sink=ending(last))


def native(rows_per_batch=500, last=5, pause_s=0.0):
    """The rows of each key, counted by Spark's own operator, which puts out all counts after every micro-batch."""

    def build(spark):
        return rows(spark, rows_per_batch).groupBy("key").count()

    def write(batch, batch_id):
        found = {row["key"]: row["count"] for row in batch.collect()}
        print(f"counts {batch_id} {json.dumps(found)}", flush=True)
        print(f"batch {batch_id}", flush=True)
        time.sleep(pause_s)
        if batch_id >= last:
            end_run()

    return Flow("native", build, sink=write, output_mode="complete")


def helped(last=2):
    """A step that uses a module beside the flow."""
    import cluster_helper

    def helping(key, rows, state):
        state.update(cluster_helper.more(state.get if state.exists else 0, len(rows)))
        yield key, state.get

    def build(spark):
        return rows(spark, 100).transform(stateful("counts", key="key", update=helping, output="key string, n long"))

    return Flow("helped", build, sink=ending(last))


def load():
    """A pipeline of two nodes, which needs no owner."""

    def write(frame):
        print(f"rows {frame.count()}", flush=True)

    first = Node("load", read=lambda spark: spark.range(0, 1000, 1, 8), write=write)
    return Pipeline("nightly", [first, Node("report", read=lambda spark: spark.range(7), write=write, needs=["load"])])
