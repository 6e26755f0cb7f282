"""Spark's own ways to keep state with a Python function: `applyInPandasWithState`, `transformWithState`, and
`transformWithStateInPandas`.

All keep count and sum per key, on RocksDB with changelog checkpointing, and write what changed as CSV.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OUTPUT = "key string, n long, total long"


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """Runs the query over all files; seconds from a ready session to the end of the query."""
    import pyspark
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from benchmarks.contenders.changed_rows import Changes, keep_newest
    from benchmarks.contenders.spark_totals import CONF, ROCKSDB

    builder = SparkSession.builder.master(arguments["master"]).appName("keyed")
    for key, value in {**CONF, **ROCKSDB, **arguments["conf"]}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    started_s = time.perf_counter()
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(arguments["files"])
    events = lines.select(
        F.substring_index("value", ",", 1).alias("key"), F.substring_index("value", ",", -1).cast("long").alias("value")
    )
    variants = {"pandas": _in_pandas, "transform": _transformed, "transform-pandas": _transformed_in_pandas}
    totals = variants[arguments["variant"]](events.groupBy("key"))
    changes = Changes()
    writer = totals.writeStream.outputMode("update").foreachBatch(changes.write).trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"file:{Path('checkpoint').absolute()}").start()
    query.awaitTermination()
    seconds = time.perf_counter() - started_s
    steady = changes.steady()

    batches = query.lastProgress["batchId"] + 1
    java = spark._jvm.java.lang.System.getProperty("java.version")
    spark.stop()
    keep_newest(Path(arguments["totals"]))
    return {
        "seconds": seconds,
        **steady,
        "batches": batches,
        "versions": {"python": platform.python_version(), "pyspark": pyspark.__version__, "java": java},
    }


def _in_pandas(grouped: Any) -> Any:
    import pandas as pd

    def update(key: tuple[str], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        n, total = state.get if state.exists else (0, 0)
        for frame in frames:
            n += len(frame)
            total += int(frame["value"].sum())
        state.update((n, total))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})

    return grouped.applyInPandasWithState(update, OUTPUT, "n long, total long", "update", "NoTimeout")


def _transformed(grouped: Any) -> Any:
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Totals(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("totals", "n long, total long")

        def handleInputRows(self, key: tuple[str], rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:  # noqa: N802
            n, total = self.state.get() or (0, 0)
            for row in rows:
                n += 1
                total += row.value
            self.state.update((n, total))
            yield Row(key=key[0], n=n, total=total)

        def close(self) -> None:
            pass

    return grouped.transformWithState(
        statefulProcessor=Totals(), outputStructType=OUTPUT, outputMode="Update", timeMode="None"
    )


def _transformed_in_pandas(grouped: Any) -> Any:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Totals(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("totals", "n long, total long")

        def handleInputRows(self, key: tuple[str], rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:  # noqa: N802
            n, total = self.state.get() or (0, 0)
            for frame in rows:
                n += len(frame)
                total += int(frame["value"].sum())
            self.state.update((n, total))
            yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})

        def close(self) -> None:
            pass

    return grouped.transformWithStateInPandas(
        statefulProcessor=Totals(), outputStructType=OUTPUT, outputMode="Update", timeMode="None"
    )
