"""KafkaSink beside Spark's own Kafka sink: the same rows into topics of one broker, in turn.

    python -m benchmarks.kafka_sink --rows 2_000_000 --rounds 3

Each run reads the same Parquet files as a stream with available-now, in a few micro-batches, and writes key and value.
Spark's sink is plain `writeStream.format("kafka")`, at least once; KafkaSink stages, closes epochs and produces in
transactions; in a third run it also keeps the last record of each key (`compensate=True`). Broker and runs share this
machine. Needs the jars of `.ci/kafka` and the extra `test`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.processes import spent
from recovery import KafkaSink, RecoveryConfig, init_partitions, start
from recovery.spark.jvm.session import create_session, prepare_environment
from tests.kafka import CONNECTOR, broker


def make_rows(spark: Any, path: Path, rows: int, files: int, keys: int) -> None:
    """Write the input: keys by turns, values of some 60 bytes."""
    frame = spark.range(0, rows, 1, files).selectExpr(
        f"cast(id % {keys} AS string) AS key", "concat('{\"n\":', id, ',\"text\":\"', repeat('x', 40), '\"}') AS value"
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


def run_recovery(frame: Any, servers: str, topic: str, work: Path, *, compensate: bool = False) -> None:
    """KafkaSink, an epoch for each micro-batch."""
    init_partitions(work / "db", 2)
    sink = KafkaSink(topic, servers=servers, staging=work / "staged", compensate=compensate)
    query = start(
        frame, RecoveryConfig(work / "db", snapshot_interval=0), sink=sink, name="pass", trigger="available-now"
    )
    query.await_termination()


RUNS: dict[str, Callable[[Any, str, str, Path], None]] = {
    "Spark's sink": run_spark,
    "KafkaSink": run_recovery,
    "KafkaSink, compensate": partial(run_recovery, compensate=True),
}


def main() -> None:
    """Run the rounds, and print records per second and processor time of this process for each sink."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, default=1000, help="different keys of the rows")
    arguments = parser.parse_args()
    prepare_environment(str(Path.cwd()))
    conf = {"spark.jars": ",".join(map(str, CONNECTOR)), "spark.sql.shuffle.partitions": "2"}
    spark = create_session("kafka_sink", master="local[2]", conf=conf)
    place = Path(tempfile.mkdtemp(prefix="kafka-sink-"))
    (place / "broker").mkdir()
    try:
        make_rows(spark, place / "in", arguments.rows, 8, arguments.keys)
        with broker(place / "broker") as kafka:
            rates: dict[str, list[float]] = {name: [] for name in RUNS}
            for number in range(arguments.rounds + 1):
                for place_of_run, (name, run) in enumerate(RUNS.items()):
                    topic = kafka.create(f"run-{place_of_run}-{number}", 2, cleanup_policy="compact")
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
        theirs = median(rates["Spark's sink"])
        for name, found in rates.items():
            print(f"{name}: median {median(found):,.0f} records/s, {median(found) / theirs:.2f} of Spark's sink")
    finally:
        spark.stop()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
