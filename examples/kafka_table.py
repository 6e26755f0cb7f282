"""A compacted topic as a table: keys that are bytes, a header that says whose record it is, and tombstones.

    python -m recovery init db/ 2
    python -m recovery run "examples/kafka_table.py:make('127.0.0.1:9092')" -r db/ --jars 'jars/*.jar'

The state has the newest value of each key of each tenant. A record without a value, Kafka's tombstone, removes its key.
A record without the header goes to the tenant "nobody". A value that is not JSON changes no state: the flow says
"unreadable", with the place of the record. See docs/kafka.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from recovery import Flow, GroupState, stateful


def make(servers: str, topic: str = "users") -> Flow:
    """The flow over a topic. servers: the brokers, as HOST:PORT."""

    def build(spark: SparkSession) -> DataFrame:
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .load()
        )
        # get(…, 0) is NULL where there is no such header; […][0] would end the run.
        tenant = "coalesce(cast(get(filter(headers, each -> each.key = 'tenant'), 0).value AS string), 'nobody')"
        rows = records.selectExpr(f"{tenant} AS tenant", "key", "cast(value AS string) AS value", "partition", "offset")
        # Kafka keeps the records of a key in one partition, in the order of their offsets.
        newest = stateful(
            "newest", key=["tenant", "key"], update=update, order_by=["partition", "offset"],
            output="tenant string, key binary, change string, partition int, offset long",
        )  # fmt: skip
        return rows.transform(newest)

    return Flow("users", build, sink=show)


def update(key: tuple[str, bytes], rows: list[Any], state: GroupState) -> Iterator[tuple[Any, ...]]:
    """Keep the newest readable value of a key, and say what each record has changed."""
    for row in rows:
        if row.value is None:
            change = "removed" if state.exists else "nothing to remove"
            state.remove()
        elif not is_json(row.value):
            change = "unreadable"
        else:
            change = "changed" if state.exists else "new"
            state.update(row.value)
        yield *key, change, row.partition, row.offset


def is_json(text: str) -> bool:
    """Whether a text is JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def show(batch: DataFrame, batch_id: int) -> None:
    """An ordinary foreachBatch function: what the records of this micro-batch have changed."""
    for row in batch.orderBy("partition", "offset").collect():
        key = "no key" if row.key is None else bytes(row.key).hex()
        print(f"{row.tenant} {key}: {row.change}", flush=True)
