"""Records of Kafka topics, counted by key, and each of them put out once: what tests of Kafka run, and kill."""

import time

from recovery import FileSink, Flow, stateful


def count(key, rows, state):
    """Count the records of a key, and give each of them by its place."""
    state.update((state.getOption or 0) + len(rows))
    for row in rows:
        yield key, row.topic, row.partition, row.offset


def records(spark, servers, **options):
    """The stream of a topic's records, from the first one on."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    return reader.options(**{"startingOffsets": "earliest", **options}).load()


def counted(frame, step="counts"):
    """The step on records, by their key as text."""
    places = frame.selectExpr("cast(key AS string) AS key", "topic", "partition", "offset")
    output = "key string, topic string, partition int, offset long"
    return places.transform(stateful(step, key="key", update=count, output=output))


class SlowFiles(FileSink):
    """Prints a line for each micro-batch, and takes a while."""

    pause_s = 0.0

    def write(self, batch, batch_id):
        print(f"batch {batch_id}", flush=True)
        super().write(batch, batch_id)
        time.sleep(self.pause_s)


def make(servers, topics, output, pause_s=0.0, records_per_batch=200):
    def build(spark):
        return counted(records(spark, servers, subscribe=topics, maxOffsetsPerTrigger=records_per_batch))

    sink = SlowFiles(output)
    sink.pause_s = pause_s
    return Flow("records", build, sink=sink)
