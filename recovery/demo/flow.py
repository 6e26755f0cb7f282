"""The demo's flow: flights, cancellations and minutes of delay per carrier and airplane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from recovery import DiscardSink, Flow, GroupState, stateful

BYTES_PER_BATCH = "512k"


@dataclass
class Delays:
    """The state of one airplane."""

    flights: int = 0
    cancelled: int = 0
    minutes_late: int = 0


def add_flights(key: tuple[str, str], rows: list[Any], state: GroupState) -> Iterator[tuple[Any, ...]]:
    """Add a micro-batch's flights of one airplane to its state."""
    delays = state.get if state.exists else Delays()
    for row in rows:
        delays.flights += 1
        if row.arr_delay is None:
            delays.cancelled += 1
        else:
            delays.minutes_late += max(0, row.arr_delay)
    state.update(delays)
    yield (*key, delays.flights, delays.cancelled, delays.minutes_late)


def make(path: str) -> Flow:
    """Return the flow over a growing CSV file of flights without header; see `recovery.demo.flights` for its
    columns."""

    def build(spark: SparkSession) -> DataFrame:
        lines = spark.readStream.format("appended").schema("value string").option("path", path)
        flights = (
            lines.option("maxBytesPerTrigger", BYTES_PER_BATCH)
            .load()
            .selectExpr("split(value, ',') AS f")
            .selectExpr("f[0] AS carrier", "f[1] AS tailnum", "try_cast(f[2] AS int) AS arr_delay")
        )
        step = stateful(
            "delays",
            key=["carrier", "tailnum"],
            update=add_flights,
            state=Delays,
            output="carrier string, tailnum string, flights long, cancelled long, minutes_late long",
        )
        return flights.transform(step)

    return Flow("flight-delays", build, sink=DiscardSink())
