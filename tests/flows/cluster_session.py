"""A program that makes a session of a cluster by itself: MASTER DRIVER DIRECTORY, then what it does there."""

import json
import sys

from pyspark.sql import SparkSession

from recovery import RecoveryConfig, native_operators, native_state, register, start, stateful
from tests.flows.cluster import rows


def main(master, driver, directory, what, *arguments):
    builder = SparkSession.builder.master(master).config("spark.driver.host", driver)
    # A bar of progress would share lines with what is printed.
    few = {"executor.memory": "512m", "driver.memory": "1g", "ui.enabled": "false", "ui.showConsoleProgress": "false"}
    for name, value in few.items():
        builder = builder.config(f"spark.{name}", value)
    spark = builder.getOrCreate()
    try:
        globals()[what](spark, directory, *arguments)
    finally:
        spark.stop()


def count(key, rows, state):
    """Here, where Spark sends it by value: executors do not have the tests."""
    state.update((state.get if state.exists else 0) + len(rows))
    yield key, state.get


def counts(spark, directory, last):
    """A word count of a frame, by `start`, until micro-batch number `last`."""
    step = stateful("counts", key="key", update=count, output="key string, n long")
    frame = rows(spark, 2000).transform(step)
    done = []

    def sink(batch, batch_id):
        done.append((batch_id, batch.count()))
        print(f"batch {batch_id}", flush=True)
        if batch_id >= int(last):
            query.stop()

    config = RecoveryConfig(directory, snapshot_interval=0, backup_interval="1h")
    query = start(frame, config, spark=spark, sink=sink, name="counts")
    query.await_termination()


def read(spark, directory, epoch, since, *tls):
    """The states of a step at an epoch, and what changed since another one. tls: certificate and key."""
    register(spark, RecoveryConfig(tls_cert=tls[0], tls_key=tls[1]) if tls else None)
    reader = spark.read.format("recovery").option("step", "counts").option("epoch", epoch)
    states = reader.load(directory)
    print(f"partitions {states.rdd.getNumPartitions()}")
    for row in states.collect():
        print(f"state {row.key} {row.state}")
    for row in reader.option("sinceEpoch", since).load(directory).collect():
        print(f"changed {row.key} {row.before} {row.after}")


def read_unregistered(spark, directory):
    """The same without `register`."""
    print(spark.read.format("recovery").option("step", "counts").load(directory).count())


def native(spark, directory, place):
    """The state of Spark's own operator at two epochs, and without a place that all hosts reach."""
    older = native_state(spark, directory, epoch=2, scratch_directory=place)
    newest = native_state(spark, directory, scratch_directory=place)
    for name, frame in (("older", older), ("newest", newest)):
        counts = {row.key.key: row.value["count"] for row in frame.collect()}
        print(f"{name} {json.dumps(counts)}", flush=True)
    print(f"operators {native_operators(spark, directory, scratch_directory=place).count()}")
    register(spark)
    try:
        spark.read.format("recovery").option("operator", 0).load(directory)
    except Exception as error:
        print(" ".join(str(error).split()))


if __name__ == "__main__":
    main(*sys.argv[1:])
