"""Connectors of Spark for Delta and Iceberg, for tests.

`.ci/run` fetches the jars. Without them, or on another version of Spark than theirs, what needs them is skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.spark.jvm.versions import VERSION

ROOT = Path(__file__).parents[1]


def connector_jars(kind: str) -> list[Path]:
    """The jars of a connector, for whatever Spark it is made; none if they were not fetched."""
    return sorted(
        Path(os.environ.get(f"RECOVERY_TEST_{kind.upper()}_JARS", ROOT / ".ci" / f"{kind}-jars")).glob("*.jar")
    )


def _jars(kind: str, connector: str) -> tuple[list[Path], pytest.MarkDecorator]:
    """The jars of a connector, none if it is made for another Spark, and the mark of tests that need them."""
    made_for = connector.format(*VERSION)
    jars = connector_jars(kind)
    jars = jars if any(jar.match(made_for) for jar in jars) else []
    return jars, pytest.mark.skipif(
        not jars, reason=f"no jars {made_for}: mvn -f .ci/{kind}/pom.xml, as .ci/run does, for its step on that Spark"
    )


DELTA, needs_delta = _jars("delta", "delta-spark_{}.{}_*.jar")
ICEBERG, needs_iceberg = _jars("iceberg", "iceberg-spark-runtime-{}.{}_*.jar")
JARS = [*DELTA, *ICEBERG]
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
"""Delta as its guide sets it up; the last two make it quick, and let tests remove files that are new."""
SETTINGS = DELTA_SETTINGS if DELTA else {}


def iceberg_catalog(name: str, directory: Path, kind: str = "jdbc") -> dict[str, str]:
    """The settings of a catalog whose tables are in `warehouse`. kind: "jdbc" for a catalog in a SQLite file, which
    `tests.flows.tables.properties` describes to pyiceberg; "hadoop" for one that is the directory itself."""
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": kind,
        ".warehouse": f"file://{directory}/warehouse",
        ".cache-enabled": "false",
    }
    if kind == "jdbc":
        settings[".uri"] = f"jdbc:sqlite:{directory}/catalog.db"
    return {f"spark.sql.catalog.{name}{key}": value for key, value in settings.items()}
