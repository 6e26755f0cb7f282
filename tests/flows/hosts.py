"""A flow whose first attempts are slow, so that Spark starts second ones on the other host; each notes where it ran."""

import time
import uuid
from pathlib import Path

from recovery import DiscardSink, Flow, stateful


def make(path, notes):
    def add_up(key, rows, state):
        from pyspark import TaskContext

        context = TaskContext.get()
        mark = Path(notes, f"{context.getLocalProperty('streaming.sql.batchId')}-{key}-{context.attemptNumber()}")
        mark.with_suffix(f".{uuid.uuid4().hex}").touch()
        if context.attemptNumber() == 0 and key in ("k1", "k2", "k3"):
            time.sleep(4)
        count, total = state.get if state.exists else (0, 0)
        state.update([count + len(rows), total + sum(row.value for row in rows)])

    def build(spark):
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(path)
        pairs = lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")
        return pairs.transform(stateful("totals", key="key", update=add_up, output="key string, n long, total long"))

    return Flow("totals", build, sink=DiscardSink())
