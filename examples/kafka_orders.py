"""Orders from a Kafka topic, as JSON: how many each user gave, and their total, each record counted once.

    python -m recovery init db/ 2
    python -m recovery run "examples/kafka_orders.py:make('127.0.0.1:9092')" -r db/ --jars 'jars/*.jar'

The second run of the same command reads what has come since, and goes on from the totals of the first. `jars/` holds
Spark's Kafka connector; where Maven Central can be reached, Spark fetches it: `--packages
org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION`. Add `--trigger 1s` to go on for ever. See docs/kafka.md.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery import Flow, aggregate
from recovery.aggregates import count, sum_


def make(servers: str, topic: str = "orders") -> Flow:
    """The flow over a topic. servers: the brokers, as HOST:PORT."""

    def build(spark: SparkSession) -> DataFrame:
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 500_000)
            .load()
        )
        order = F.from_json(F.col("value").cast("string"), "user string, amount double")
        orders = records.select(order.alias("order")).select("order.*").where("user IS NOT NULL")
        return orders.transform(aggregate("spent", key="user", n=count(), total=sum_("amount")))

    return Flow("orders", build, sink=show)


def show(batch: DataFrame, batch_id: int) -> None:
    """An ordinary foreachBatch function: the users of this micro-batch."""
    for row in batch.orderBy("user").collect():
        print(f"micro-batch {batch_id}: {row.user} has {row.n} orders of {row.total:.2f}", flush=True)
