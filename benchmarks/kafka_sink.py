"""KafkaSink beside Spark's own Kafka sink: the same rows into topics of one broker, in turn.

    python -m benchmarks.kafka_sink --rows 2_000_000 --rounds 3

Each run reads the same Parquet files as a stream with available-now, in a few micro-batches, and writes key and value.
Spark's sink is plain `writeStream.format("kafka")`, at least once; KafkaSink stages, closes epochs and produces in
transactions. Broker and runs share this machine. Needs the jars of `.ci/kafka` and the extra `test`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.processes import spent
from recovery import KafkaSink, RecoveryConfig, init_partitions, start
from recovery.spark.jvm.session import create_session, prepare_environment
from tests.kafka import CONNECTOR, broker


def make_rows(spark: Any, path: Path, rows: int, files: int) -> None:
    """Write the input: keys of a thousand, values of some 60 bytes."""
    frame = spark.range(0, rows, 1, files).selectExpr(
        "cast(id % 1000 AS string) AS key", "concat('{\"n\":', id, ',\"text\":\"', repeat('x', 40), '\"}') AS value"
    )
    frame.write.parquet(str(path))


def read(spark: Any, path: Path, files: int) -> Any:
    """The rows as a stream of four micro-batches."""
    schema = "key string, value string"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files // 4).parquet(str(path))


def run_spark(frame: Any, servers: str, topic: str, work: Path) -> None:
    """Spark's own sink."""
    writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic)
    writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start().awaitTermination()


def run_recovery(frame: Any, servers: str, topic: str, work: Path) -> None:
    """KafkaSink, an epoch for each micro-batch."""
    init_partitions(work / "db", 2)
    sink = KafkaSink(topic, servers=servers, staging=work / "staged")
    query = start(
        frame, RecoveryConfig(work / "db", snapshot_interval=0), sink=sink, name="pass", trigger="available-now"
    )
    query.await_termination()


def main() -> None:
    """Run the rounds, and print records per second and processor time of this process for each sink."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    prepare_environment(str(Path.cwd()))
    conf = {"spark.jars": ",".join(map(str, CONNECTOR)), "spark.sql.shuffle.partitions": "2"}
    spark = create_session("kafka_sink", master="local[2]", conf=conf)
    place = Path(tempfile.mkdtemp(prefix="kafka-sink-"))
    (place / "broker").mkdir()
    try:
        make_rows(spark, place / "in", arguments.rows, 8)
        with broker(place / "broker") as kafka:
            rates: dict[str, list[float]] = {"Spark's sink": [], "KafkaSink": []}
            for number in range(arguments.rounds + 1):
                for name, run in (("Spark's sink", run_spark), ("KafkaSink", run_recovery)):
                    topic = kafka.create(f"{run.__name__.replace('_', '-')}-{number}", 2)
                    work = place / topic
                    work.mkdir()
                    began_s, before = time.monotonic(), spent()
                    run(read(spark, place / "in", 8), kafka.servers, topic, work)
                    took_s = time.monotonic() - began_s
                    used_s = (spent() - before).cpu_s
                    print(
                        f"{name}: {arguments.rows / took_s:,.0f} records/s, {took_s:.1f} s; processor time of all "
                        f"processes {used_s:.1f} s, load {os.getloadavg()[0]:.1f}, round {number}",
                        flush=True,
                    )
                    if number:
                        rates[name].append(arguments.rows / took_s)
                    kafka.delete(topic)
        ours, theirs = median(rates["KafkaSink"]), median(rates["Spark's sink"])
        print(f"medians: {ours:,.0f} and {theirs:,.0f} records/s, {ours / theirs:.2f} of Spark's sink")
    finally:
        spark.stop()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
