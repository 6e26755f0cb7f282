"""A program: the jobs of test_operator_keys.py over an input, up to its end, under whichever PySpark runs it.

python -m tests.spark.job_of_another_version INPUT CHECKPOINTS NAME…
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import GroupedData, SparkSession

from tests.flows.operators import STORES
from tests.spark.support import set_to, stream_of
from tests.spark.test_operator_keys import JOBS, of_rows, written


def main() -> None:
    """Each job has a checkpoint of its name."""
    given, checkpoints, *names = sys.argv[1:]
    settings = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for name in names:
        job, store, *_ = JOBS[name]
        if job is of_rows and not hasattr(GroupedData, "transformWithState"):
            # PySpark 4.0 has it for pandas only.
            continue
        with set_to(spark, STORES[store]):
            written(job(stream_of(spark, Path(given))), Path(checkpoints, name))
    spark.stop()


if __name__ == "__main__":
    main()
