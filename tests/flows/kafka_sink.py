"""Records of one topic, passed on to another one exactly once: what a test kills."""

from recovery import Flow, KafkaSink
from tests.flows.kafka_records import records


def make(servers, source, output, staging, compensate=False):
    def build(spark):
        return records(spark, servers, subscribe=source, maxOffsetsPerTrigger=20).select("key", "value")

    sink = KafkaSink(
        output,
        servers=servers,
        staging=staging,
        records_per_transaction=7 if not compensate else 3,
        compensate=compensate,
    )
    return Flow("pass", build, sink=sink)


def lines(path, servers, output, staging):
    """A flow that reads lines "key,value" from files and produces them as records."""

    def build(spark):
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(path)
        return lines.selectExpr("split(value, ',')[0] AS key", "split(value, ',')[1] AS value")

    return Flow("pass", build, sink=KafkaSink(output, servers=servers, staging=staging, records_per_transaction=7))
