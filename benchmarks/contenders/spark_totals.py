"""Spark's own totals per key: `groupBy().agg()` in update mode, on the RocksDB or the HDFS-backed state store; or
`transformWithState` with a function in Java, on RocksDB.

Everything in these queries is compiled code; no Python runs in them.
"""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Counting rows costs a look-up for each write.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}
CONF = {
    # Spark starts fewer processes for the files of its checkpoint then, as in runs on recovery partitions.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    # A file is shared by the tasks in equal parts, as in runs on recovery partitions.
    "spark.sql.files.openCostInBytes": str(256 << 10),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "localhost",
    "spark.driver.bindAddress": "127.0.0.1",
}


def totals(events: Any) -> Any:
    """Count and sum of `value` for each `key`."""
    from pyspark.sql import functions as F

    return events.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))


def write_states(spark: Any, checkpoint: str, target: Path) -> None:
    """The newest totals in a checkpoint, as CSV into a directory."""
    from pyspark.sql import functions as F

    found = spark.read.format("statestore").load(checkpoint).select("key.key", "value.*")
    count, total = found.columns[1:]
    written = found.select("key", F.col(count), F.col(total)).write
    written.mode("overwrite").option("header", "false").csv(f"file:{target.absolute()}")


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """Runs the query over all files; seconds from a ready session to the end of the query."""
    import pyspark
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from benchmarks.contenders import spark_java

    java = arguments["java"]
    builder = SparkSession.builder.master(arguments["master"]).appName("keyed")
    if java:
        if arguments["classes"] is None:
            raise RuntimeError("no javac: this contender needs a JDK, not only a JRE")
        builder = builder.config("spark.driver.extraClassPath", arguments["classes"])
    conf = {**CONF, **(ROCKSDB if arguments["rocksdb"] else {}), **arguments["conf"]}
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    checkpoint = Path("checkpoint").absolute()
    checkpoint_uri = f"file:{checkpoint}"

    started_s = time.perf_counter()
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(arguments["files"])
    events = lines.select(
        F.substring_index("value", ",", 1).alias("key"), F.substring_index("value", ",", -1).cast("long").alias("value")
    )
    counted = spark_java.totals(spark, events) if java else totals(events)
    writer = counted.writeStream.outputMode("update").format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", checkpoint_uri).start()
    query.awaitTermination()
    seconds = time.perf_counter() - started_s

    batches = query.lastProgress["batchId"] + 1
    read = spark_java.write_states if java else write_states
    read(spark, checkpoint_uri, Path(arguments["totals"]))
    version = spark._jvm.java.lang.System.getProperty("java.version")
    spark.stop()
    return {
        "seconds": seconds,
        "batches": batches,
        "versions": {"python": platform.python_version(), "pyspark": pyspark.__version__, "java": version},
        "state_bytes": sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file()),
    }
