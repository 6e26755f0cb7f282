"""The settings for logs of a Delta stream's schemas. What they do is in tests/spark/test_delta_source.py."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from recovery.spark.jvm.delta_schemas import _SETTINGS
from tests.spark.support import ROOT

PREFIX = "spark.databricks.delta."


def test_delta_knows_the_settings():
    """A setting that Delta does not know does nothing, without a word. This needs Delta's jars, for whatever Spark."""
    home = Path(os.environ.get("RECOVERY_TEST_DELTA_JARS", ROOT / ".ci" / "delta-jars"))
    declared = b""
    for jar in home.glob("delta-spark_*.jar"):
        with zipfile.ZipFile(jar) as found:
            declared += b"".join(found.read(name) for name in found.namelist() if "/DeltaSQLConf" in name)
    if not declared:
        pytest.skip(f"no jars in {home}: mvn -f .ci/delta/pom.xml, as .ci/run does")
    assert [name for name in _SETTINGS if name.removeprefix(PREFIX).encode() not in declared] == []
