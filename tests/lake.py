"""Delta's connector for Spark, for tests.

`.ci/run` fetches the jars. Without them, or on another version of Spark than theirs, what needs them is skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.spark.jvm.versions import VERSION

DIRECTORY = Path(os.environ.get("RECOVERY_TEST_DELTA_JARS", Path(__file__).parents[1] / ".ci" / "delta-jars"))
MADE_FOR = "delta-spark_{}.{}_*.jar".format(*VERSION)
JARS = sorted(DIRECTORY.glob("*.jar")) if any(DIRECTORY.glob(MADE_FOR)) else []
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
"""Delta as its guide sets it up; the last two make it quick, and let tests remove files that are new."""
needs_delta = pytest.mark.skipif(
    not JARS, reason=f"no jars {MADE_FOR}: mvn -f .ci/delta/pom.xml, as .ci/run does, for its step on that Spark"
)
