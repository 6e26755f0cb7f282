"""Sessions of Spark Connect: what works there, and what is refused. A local server, in a process of its own."""

from __future__ import annotations

import json

import pytest

from tests.stores import run_python

REFUSED = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from recovery import *

home = Path(sys.argv[1])
init_partitions(home / "db", 2)
config = RecoveryConfig(home / "db")
spark = SparkSession.builder.remote("local[1]").config("spark.sql.shuffle.partitions", "1").getOrCreate()
step = stateful("n", key="value", update=lambda key, rows, state: [(1,)], output="n int")
flow = Flow("flow", lambda spark: spark.readStream.format("rate").load().transform(step))
refusals = {}
for name, function in {
    "start": lambda: start(flow, config, spark=spark),
    "start in the active session": lambda: start(flow, config),
    "start of a frame": lambda: start(spark.readStream.format("rate").load(), config, name="frame"),
    "run": lambda: run(flow, config, spark=spark),
    "a step": lambda: spark.readStream.format("rate").load().transform(step),
    "register": lambda: register(spark),
    "native_state": lambda: native_state(spark, home / "db"),
    "native_operators": lambda: native_operators(spark, home / "db"),
}.items():
    try:
        function()
    except RecoveryError as error:
        refusals[name] = [type(error).__name__, error.found]

(home / "in").mkdir()
for rows in ("1\\n2\\n", "3\\n"):
    (home / "in" / f"{len(rows)}.csv").write_text(rows)
    def read(spark):
        return spark.read.schema("id long").csv(str(home / "in"))
    def write(frame):
        frame.write.mode("append").parquet(str(home / "out"))
    run_pipeline(Pipeline("p", [Node("n", incremental(read, column="id", key="ids"), write)]), config, spark=spark)
refusals["loaded"] = sorted(row.id for row in spark.read.parquet(str(home / "out")).collect())
reader = spark.read.format("recovery").option("step", "$hwm")
refusals["schema"] = reader.load(str(home / "db")).schema.simpleString()
print(json.dumps(refusals))
"""


def test_flows_are_refused_and_pipelines_work(tmp_path):
    """Each refusal is the same typed error, in one sentence, before anything is written."""
    for package in ("grpc", "grpc_status", "zstandard"):
        pytest.importorskip(package, reason="pip install 'pyspark[connect]'")
    done = run_python(REFUSED, tmp_path, timeout_s=240)
    assert done.returncode == 0, done.stderr[-3000:]
    refusals = json.loads(done.stdout.splitlines()[-1])
    assert refusals.pop("loaded") == [1, 2, 3]
    assert refusals.pop("schema") == "struct<key:string,state:string,epoch:bigint,timeout:timestamp>"
    assert len(refusals) == 8
    refusal = ["ConfigurationError", "flows, native state and register cannot use a session of Spark Connect"]
    assert {name: found for name, found in refusals.items() if found != refusal} == {}
