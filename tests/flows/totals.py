"""The flow that tests kill: count and sum per key over a directory of files, one file a micro-batch."""

import time

from recovery import DiscardSink, FileSink, Flow, stateful


def add_up(key, rows, state):
    count, total = state.get if state.exists else (0, 0)
    count += len(rows)
    total += sum(row.value for row in rows)
    state.update([count, total])
    yield key, count, total


def make(path, pause_s=0.0, output=None):
    def build(spark):
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(path)
        pairs = lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")
        return pairs.transform(stateful("totals", key="key", update=add_up, output="key string, n long, total long"))

    def slow(batch, batch_id):
        batch.count()
        print(f"batch {batch_id}", flush=True)
        time.sleep(pause_s)

    sink = DiscardSink() if output is None else FileSink(output)
    return Flow("totals", build, sink=slow if pause_s else sink)
