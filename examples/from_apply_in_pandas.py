"""A stateful job moved over from applyInPandasWithState: before and after, run on the same input.

    python examples/from_apply_in_pandas.py

Both versions keep the count, the mean and the maximum of every sensor. What changes is the function (rows come as a
list of named tuples instead of data frames) and the line that starts the query. Sources, sinks and everything else in
the plan stay.

The new version alone, from the command line, on a directory of CSV files:

    mkdir readings && echo 'cellar,12.5' > readings/1.csv
    python -m recovery init db/ 2
    python -m recovery run "examples/from_apply_in_pandas.py:make('readings/')" -r db/
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupStateTimeout

from recovery import ConsoleSink, Flow, GroupState, RecoveryConfig, init_partitions, start, stateful

INPUT = "sensor string, degrees double"
OUTPUT = "sensor string, n long, mean double, highest double"

Write = Callable[[DataFrame, int], Any]


# ---- before: state in Spark's checkpoint


def update_before(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    n, total, highest = state.get if state.exists else (0, 0.0, float("-inf"))
    for frame in frames:
        n += len(frame)
        total += frame["degrees"].sum()
        highest = max(highest, frame["degrees"].max())
    state.update((n, float(total), float(highest)))
    yield pd.DataFrame({"sensor": [key[0]], "n": [n], "mean": [total / n], "highest": [highest]})


def start_before(readings: DataFrame, checkpoint: Path, write: Write) -> Any:
    averages = readings.groupBy("sensor").applyInPandasWithState(
        update_before, OUTPUT, "n long, total double, highest double", "update", GroupStateTimeout.NoTimeout
    )
    return (
        averages.writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


# ---- after: state in recovery partitions


def update_after(sensor: str, rows: list[Any], state: GroupState) -> Iterator[tuple[str, int, float, float]]:
    n, total, highest = state.get if state.exists else (0, 0.0, float("-inf"))
    degrees = [row.degrees for row in rows]
    n, total, highest = n + len(rows), total + sum(degrees), max(highest, *degrees)
    state.update((n, total, highest))
    yield sensor, n, total / n, highest


def averages_after(readings: DataFrame) -> DataFrame:
    step = stateful(
        "averages", key="sensor", update=update_after, output=OUTPUT, state=tuple[int, float, float], order_by="degrees"
    )
    return readings.transform(step)


# ---- what both share


def read(spark: SparkSession, path: str) -> DataFrame:
    return spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).csv(path)


def make(path: str = "readings/", sink: Write | None = None) -> Flow:
    """The new version as a flow, over a directory that CSV files are put into."""
    return Flow("readings", lambda spark: averages_after(read(spark, path)), sink=sink or ConsoleSink())


def main() -> None:
    """Run both on three files, and compare what they gave last for every sensor."""
    # Spark's worker for applyInPandasWithState warns of its own use of pandas.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
    with tempfile.TemporaryDirectory() as directory:
        readings = Path(directory, "readings")
        readings.mkdir()
        Path(readings, "1.csv").write_text("cellar,12.5\nattic,28.0\ncellar,13.0\n")
        Path(readings, "2.csv").write_text("attic,29.5\ngarden,4.0\n")
        Path(readings, "3.csv").write_text("garden,-2.5\ncellar,12.0\nattic,31.0\n")

        after: dict[str, tuple[Any, ...]] = {}
        init_partitions(Path(directory, "db"), 2)
        query = start(
            make(str(readings), sink=keep_in(after)), RecoveryConfig(Path(directory, "db")), trigger="available-now"
        )
        query.await_termination()

        before: dict[str, tuple[Any, ...]] = {}
        # The session that `start` made is still there; a job has its own and gives it: start(..., spark=spark).
        spark = SparkSession.active()
        start_before(read(spark, str(readings)), Path(directory, "checkpoint"), keep_in(before)).awaitTermination()
        spark.stop()

    print(f"{'sensor':<8} {'applyInPandasWithState':<24} stateful")
    for sensor in sorted(before | after):
        print(f"{sensor:<8} {text(before.get(sensor)):<24} {text(after.get(sensor))}")
    if before != after:
        raise SystemExit("they differ")
    print("the same")


def keep_in(results: dict[str, tuple[Any, ...]]) -> Write:
    """A foreachBatch function that keeps the newest row of every sensor."""

    def write(batch: DataFrame, batch_id: int) -> None:
        for row in batch.collect():
            results[row.sensor] = (row.n, row["mean"], row.highest)

    return write


def text(result: tuple[Any, ...] | None) -> str:
    return "-" if result is None else f"n={result[0]} mean={result[1]:.2f} max={result[2]:.1f}"


flow = make()

if __name__ == "__main__":
    main()
