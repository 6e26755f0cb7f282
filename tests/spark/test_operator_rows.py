"""How many rows Spark's own operators have: known without Spark, of the epoch's own micro-batch, or not at all."""

from __future__ import annotations

import json

from click.testing import CliRunner
from pyspark.sql import functions as F

import recovery
from recovery.cli import main
from tests.flows.native import STORES, events, join, tumbling, write_events
from tests.spark.support import run_to_end, set_to

UNTRACKED = {**STORES["rocksdb"], "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false"}


def rows(directory):
    """What `status` says, by operator."""
    told = json.loads(CliRunner().invoke(main, ["status", str(directory), "--json"]).output)
    return {each["operator"]: each["rows"] for each in told["operators"]}


def by_value(spark, path):
    return events(spark, path).groupBy("key").agg(F.sum("value").alias("total")).orderBy("total")


def test_of_a_join_and_what_spark_does_not_count(spark, tmp_path):
    """The rows that wait on both sides. RocksDB that is set not to count says 0, and a plan that is sorted is computed
    twice and counted twice: both are shown as unknown."""
    write_events(tmp_path / "input", 0, 1)
    run_to_end(join(spark, tmp_path / "input"), tmp_path / "join")
    waiting = [recovery.native_state(spark, tmp_path / "join", store=side).count() for side in ("left", "right")]
    assert rows(tmp_path / "join") == {0: sum(waiting)}
    assert min(waiting) > 0
    with set_to(spark, UNTRACKED):
        run_to_end(tumbling(spark, tmp_path / "input"), tmp_path / "untracked")
    run_to_end(by_value(spark, tmp_path / "input"), tmp_path / "sorted", output_mode="complete")
    for name in ("untracked", "sorted"):
        assert rows(tmp_path / name) == {0: None}
        assert recovery.native_state(spark, tmp_path / name).count() > 0
    assert "unknown" in CliRunner().invoke(main, ["status", str(tmp_path / "sorted")]).output
