"""Which topics Kafka lacks. When Kafka lacks one of several that a source reads, its error names none."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from recovery.spark.clusters import Input

NO_TOPIC = "UnknownTopicOrPartitionException"
"""Kafka's error for a topic that it lacks."""
_ONCE = {"fetchOffset.numRetries": "1"}


def topics_lacking(spark: SparkSession, inputs: Iterable[Input], topics: Collection[str]) -> set[str]:
    """Return which of the topics the brokers lack that the flow's sources read them from; empty if they do not say.

    Spark plans a read of each topic by itself, which asks the broker and reads no record.
    """
    found = set()
    for each in inputs:
        read = {name.strip() for name in each.options.get("subscribe", "").split(",")} if each.format == "kafka" else ()
        options = {name: text for name, text in each.options.items() if name.startswith("kafka.")}
        for topic in sorted(set(read) & set(topics)):
            try:
                spark.read.format("kafka").options(**options, **_ONCE, subscribe=topic).load().rdd.getNumPartitions()
            except (PySparkException, Py4JError, Py4JNetworkError, ConnectionError) as error:
                if NO_TOPIC not in str(error):
                    return set()
                found.add(topic)
    return found
