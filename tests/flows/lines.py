"""A flow over growing files, read by a source in Python, whose sink takes a while: it has all kinds of processes."""

import time

from recovery import Flow, Node, Pipeline, stateful


def count(key, rows, state):
    n = (state.get if state.exists else 0) + len(rows)
    state.update(n)
    yield key, n


def make(path, pause_s=0.0):
    def build(spark):
        lines = spark.readStream.format("appended").option("maxBytesPerTrigger", 20).load(path)
        return lines.transform(stateful("counts", key="value", update=count, output="value string, n long"))

    def slow(batch, batch_id):
        print(f"batch {batch_id}", flush=True)
        time.sleep(pause_s)
        # Here it needs its workers still.
        batch.count()

    return Flow("lines", build, sink=slow)


def pipeline(pause_s):
    def write(frame):
        print(f"rows {frame.count()}", flush=True)
        time.sleep(pause_s)

    nodes = [Node("load", read=lambda spark: spark.range(3), write=write)]
    return Pipeline("nightly", [*nodes, Node("report", read=lambda spark: spark.range(1), write=write, needs=["load"])])
