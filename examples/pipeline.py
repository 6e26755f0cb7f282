"""A pipeline of two nodes: orders are loaded above a high-water mark, then summed up per customer.

    python -m recovery init db 1
    echo id,customer,amount > orders.csv; echo 1,ann,10 >> orders.csv; echo 2,bob,5 >> orders.csv
    python -m recovery run examples/pipeline.py:pipeline -r db --master 'local[1]'
    python -m recovery hwm get db orders
    echo 3,ann,7 >> orders.csv
    python -m recovery run examples/pipeline.py:pipeline -r db --master 'local[1]'
    python -m recovery runs db --node load

The first run loads two orders, the second one only the third: the mark moved when the first had written. Each load
writes its rows under their own ids, so that a load that is repeated after a crash changes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery import Node, Pipeline, incremental

SCHEMA = "id long, customer string, amount long"
LOADED = Path("loaded")


def read_orders(spark: SparkSession) -> DataFrame:
    """All orders that there are."""
    return spark.read.csv("orders.csv", schema=SCHEMA, header=True)


def write_orders(orders: DataFrame) -> None:
    """A file for each order, named by its id: written again, it is the same file."""
    LOADED.mkdir(exist_ok=True)
    for row in orders.collect():
        (LOADED / f"{row.id}.json").write_text(json.dumps(row.asDict()))
        print(f"loaded order {row.id}", flush=True)


def read_loaded(spark: SparkSession) -> DataFrame:
    """The orders that were loaded so far."""
    return spark.read.json(str(LOADED), schema=SCHEMA)


def sum_up(orders: DataFrame) -> DataFrame:
    """What each customer has ordered."""
    return orders.groupBy("customer").agg(F.sum("amount").alias("total")).orderBy("customer")


def print_totals(totals: DataFrame) -> None:
    """The report."""
    for row in totals.collect():
        print(f"{row.customer}: {row.total}", flush=True)


pipeline = Pipeline(
    "orders",
    [
        Node("load", read=incremental(read_orders, column="id", key="orders"), write=write_orders),
        Node("report", read=read_loaded, transform=sum_up, write=print_totals, needs=["load"]),
    ],
)
