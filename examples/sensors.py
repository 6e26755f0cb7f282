"""Odd readings of sensors, in Arrow and NumPy: a vectorised step, and declared aggregates behind it.

    python examples/sensors.py readings.csv 1                  # write some readings
    python -m recovery init db/ 2
    python -m recovery run examples/sensors.py -r db/
    python examples/sensors.py readings.csv 2                  # append more, one of them odd
    python -m recovery run examples/sensors.py -r db/

Step "mean" keeps count and mean of every sensor, and says of each reading how far it is from the mean of the readings
before; its function is called for all sensors of some ten thousand readings at once. Step "figures" is declared: what
each sensor read, and which of it was odd.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery import Flow, aggregate, stateful_arrow
from recovery.aggregates import count, last, max_, mean, top_k


def make(path: str = "readings.csv") -> Flow:
    """The flow over a growing file of lines like "cellar,12.5"."""

    def build(spark: SparkSession) -> DataFrame:
        lines = spark.readStream.format("appended").load(path)
        parts = F.split("value", ",")
        readings = lines.select(parts[0].alias("sensor"), parts[1].cast("double").alias("degrees"), "offset")
        differences = readings.transform(
            stateful_arrow(
                "mean",
                key="sensor",
                update=compare,
                state_schema="n bigint, mean double",
                output="sensor string, degrees double, difference double, offset bigint",
            )
        )
        odd = F.when(F.abs("difference") > 10, F.col("degrees"))
        return differences.transform(
            aggregate(
                "figures",
                key="sensor",
                n=count(),
                mean=mean("degrees"),
                highest=max_("degrees"),
                latest=last("degrees", by="offset"),
                odd=top_k(odd, 3, by="offset"),
            )
        )

    return Flow("sensors", build, sink=show)


def compare(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The difference of each reading from its sensor's mean so far, and the new means."""
    degrees = rows["degrees"].to_numpy()
    before = states["mean"].take(rows["_group"])  # of each row's sensor; NULL for a new one
    output = pa.table({
        "sensor": rows["sensor"],
        "degrees": degrees,
        "difference": pa.array(degrees - before.to_numpy(), from_pandas=True),
        "offset": rows["offset"],
    })  # fmt: skip
    held = states["n"].fill_null(0).to_numpy()
    n = held + states["_rows"].to_numpy()
    total = held * states["mean"].fill_null(0.0).to_numpy() + np.add.reduceat(degrees, states["_start"])
    return pa.table({"sensor": states["sensor"], "n": n, "mean": total / n}), output


def show(batch: DataFrame, batch_id: int) -> None:
    """The figures of the sensors that had readings."""
    for row in batch.orderBy("sensor").collect():
        odd = ", ".join(map(str, row.odd or [])) or "none"
        print(f"{row.sensor}: {row.n} readings, mean {row['mean']:.1f}, latest {row.latest}, odd: {odd}")


def write_readings(path: Path, part: int) -> None:
    """Append readings of two sensors."""
    readings = {1: "cellar,12.0\nattic,30.0\ncellar,13.0\n", 2: "attic,31.0\ncellar,40.0\n"}[part]
    with path.open("a") as file:
        file.write(readings)


flow = make()

if __name__ == "__main__":
    write_readings(Path(sys.argv[1]), int(sys.argv[2]))
