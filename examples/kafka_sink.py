"""Orders of a Kafka topic, and each user's total after every order in another topic, exactly once.

    python -m recovery init db/ 2
    python -m recovery run "examples/kafka_sink.py:make('127.0.0.1:9092')" -r db/ --jars 'jars/*.jar'

Kill it at any moment and run the same command again: a reader of `totals` with isolation.level=read_committed sees each
total once, in the order of its user. Needs `pip install 'confluent-kafka>=2.16'`; `jars/` has Spark's Kafka connector,
which reads the orders; KafkaSink itself needs no jar. See docs/sinks.md#kafkasink.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery import Flow, GroupState, KafkaSink, stateful


def make(servers: str, orders: str = "orders", totals: str = "totals") -> Flow:
    """The flow from one topic to the other. servers: the brokers, as HOST:PORT."""

    def build(spark: SparkSession) -> DataFrame:
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", orders)
            .option("startingOffsets", "earliest")
            .load()
        )
        order = F.from_json(F.col("value").cast("string"), "user string, amount double")
        known = records.select(order.alias("order")).select("order.*").where("user IS NOT NULL")
        return known.transform(stateful("spent", key="user", update=add_up, output="user string, n long, total double"))

    sink = KafkaSink(totals, servers=servers, staging="staged/", key="user", value="to_json(struct(*))")
    return Flow("totals", build, sink=sink)


def add_up(user: str, orders: Iterable[Any], state: GroupState) -> Iterator[tuple[str, int, float]]:
    """Add the orders of a user to the state; put out the total after each."""
    count, total = state.getOption or (0, 0.0)
    for order in orders:
        count, total = count + 1, total + order.amount
        yield user, count, total
    state.update([count, total])
