"""Orders from Kafka whose format changes: JSON that gets fields, Avro in Confluent's wire format, and Protobuf.

    python -m recovery init db/ 2
    python -m recovery run "examples/kafka_formats.py:make('json', '127.0.0.1:9092')" -r db/ --jars 'jars/*.jar'

`make('avro', …, schemas='schemas/')` reads records that begin with a zero byte and the id of their schema in four
bytes. `schemas/` has each schema under its id, as a registry gives it (`GET /schemas/ids/7` is `7.avsc`), and the one
to read with as `reader.avsc`. Avro needs Spark's jar `spark-avro`. `make('protobuf', …, schemas='orders.desc')` reads
messages `Order` of a descriptor set (`protoc --descriptor_set_out`), and needs the package `protobuf`.

A record that cannot be read, or whose schema is not there, is in no total: the step `unread` counts such records by
partition, with the last offset. See docs/kafka.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery import Flow, aggregate
from recovery.aggregates import count, max_, sum_

ORDER = "user string, amount double, currency string"


def make(form: str, servers: str, topic: str = "orders", schemas: str = "schemas") -> Flow:
    """The flow over a topic. form: json, avro or protobuf. servers: the brokers, as HOST:PORT."""

    def build(spark: SparkSession) -> DataFrame:
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        orders = records.select(READERS[form](schemas).alias("order"), "partition", "offset")
        # NULL: the record could not be read. Older records have no currency.
        spent = orders.where("order.user IS NOT NULL AND order.amount IS NOT NULL").selectExpr(
            "order.user", "order.amount", "coalesce(order.currency, 'EUR') AS currency"
        )
        unread = orders.where("order.user IS NULL OR order.amount IS NULL").select("partition", "offset")
        totals = spent.transform(aggregate("spent", key=["user", "currency"], n=count(), total=sum_("amount")))
        failed = unread.transform(aggregate("unread", key="partition", n=count(), last=max_("offset")))
        return totals.selectExpr("concat_ws(' ', user, currency, n, total) AS line").union(
            failed.selectExpr("concat_ws(' ', 'unread in partition', partition, n, 'last offset', last) AS line")
        )

    return Flow(f"orders-{form}", build, sink=show)


def from_json(_: str) -> Column:
    """A field that the schema lacks is passed over until the schema has it; one that a record lacks is NULL."""
    return F.from_json(F.col("value").cast("string"), ORDER, {"mode": "PERMISSIVE"})


def from_avro(directory: str) -> Column:
    """Each record is read with the schema that wrote it, as the reader's schema wants it: by Avro's rules."""
    from pyspark.sql.avro.functions import from_avro

    reader = {"avroSchema": (Path(directory) / "reader.avsc").read_text(), "mode": "PERMISSIVE"}
    writers = [path for path in sorted(Path(directory).glob("*.avsc")) if path.stem.isdecimal()]
    begins = "substring(value, 1, 1) = X'00' AND length(value) > 5"
    schema_id = F.expr(f"CASE WHEN {begins} THEN hex(substring(value, 2, 4)) END")
    order = F.lit(None)
    for path in writers:
        read = from_avro(F.expr("substring(value, 6)"), path.read_text(), reader)
        order = F.when(schema_id == f"{int(path.stem):08X}", read).otherwise(order)
    return order


def from_protobuf(descriptors: str) -> Column:
    """Protobuf passes over fields that the descriptor lacks; those that a message lacks have their defaults."""
    content = Path(descriptors).read_bytes()
    made: list[Any] = []

    def parse(value: bytes | None) -> tuple[Any, ...] | None:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

        if not made:
            pool = descriptor_pool.DescriptorPool()
            for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
                pool.Add(file)
            made.append(message_factory.GetMessageClass(pool.FindMessageTypeByName("Order")))
        try:
            order = made[0].FromString(bytes(value or b""))
        except message.DecodeError:
            return None
        return (order.user, order.amount, order.currency or None) if order.user else None

    return F.udf(parse, ORDER)("value")


READERS = {"json": from_json, "avro": from_avro, "protobuf": from_protobuf}


def show(batch: DataFrame, batch_id: int) -> None:
    """An ordinary foreachBatch function: the totals that this micro-batch has changed."""
    for row in batch.orderBy("line").collect():
        print(row.line, flush=True)
