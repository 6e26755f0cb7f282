"""A user's script: a SparkSession of their own, made before `recovery` is imported, with another query beside the flow.

Arguments: the input directory, an output directory, and what to do as JSON. Prints the rows of the output as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

PATH, PLACE, SETTINGS = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])


def add_up(key, rows, state):
    context = TaskContext.get()
    lot = random.Random(f"{key} {context.partitionId()} {rows[0].value}")
    if context.attemptNumber() == 0 and lot.random() < 0.02:
        if SETTINGS["first attempts"] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(2.0)
    count, total = state.get if state.exists else (0, 0)
    count, total = count + len(rows), total + sum(row.value for row in rows)
    state.update([count, total])
    yield key, count, total


def main():
    builder = SparkSession.builder.appName("mine")
    for key, value in SETTINGS["conf"].items():
        builder = builder.config(key, value)
    if SETTINGS.get("hive"):
        builder = builder.enableHiveSupport()
    mine = builder.getOrCreate()
    beside = (
        mine.readStream.format("rate").load().selectExpr("value % 3 AS k").groupBy("k").count()
        .writeStream.format("memory").queryName("beside").outputMode("complete").start()
    )  # fmt: skip

    import recovery
    from recovery.aggregates import count, max_

    def build(spark):
        assert spark is mine
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(PATH)
        return lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")

    def totals(spark):
        step = recovery.stateful("totals", key="key", update=add_up, output="key string, n long, total long")
        return build(spark).transform(step)

    def most(spark):
        return build(spark).transform(recovery.aggregate("most", key="key", n=count(), most=max_("value")))

    flow = recovery.Flow("totals", totals, sink=recovery.FileSink(PLACE / "out"))
    recovery.init_partitions(PLACE / "db", 3)
    recovery.init_partitions(PLACE / "db2", 2)
    config = recovery.RecoveryConfig(PLACE / "db", snapshot_interval=0, backup_interval="1h")
    first = recovery.start(flow, config, spark=mine, trigger="available-now")
    second = recovery.start(
        most(mine), recovery.RecoveryConfig(PLACE / "db2", snapshot_interval=0), name="most", trigger="available-now"
    )
    first.await_termination()
    second.await_termination()
    again = recovery.RecoveryConfig(PLACE / "db", snapshot_interval=0, backup_interval="1h", resume_after=1)
    assert recovery.run(flow, again, spark=mine).batches == first.summary.batches - 1
    assert beside.isActive, beside.exception()
    beside.stop()
    for key, value in SETTINGS["conf"].items():
        assert mine.conf.get(key) == value, key
    shown = [list(row) for row in mine.read.parquet(str(PLACE / "out")).collect()]
    mine.stop()
    print(json.dumps(sorted(shown)))


if __name__ == "__main__":
    main()
