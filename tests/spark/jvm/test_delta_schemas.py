"""Settings of Delta that runs change."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from recovery.spark.jvm.delta_schemas import _SETTINGS
from tests.lake import connector_jars


def test_they_are_settings_that_delta_reads():
    """Spark takes any name of a setting without an error. Other tests of schema logs need Delta's own version of
    Spark."""
    jars = connector_jars("delta")
    if not jars:
        pytest.skip("no jars of Delta: mvn -f .ci/delta/pom.xml, as .ci/run does")
    known = b"".join(map(_settings_in, jars))
    assert [name for name in _SETTINGS if name.removeprefix("spark.databricks.delta.").encode() not in known] == []


def _settings_in(jar: Path) -> bytes:
    with zipfile.ZipFile(jar) as classes:
        return b"".join(classes.read(name) for name in classes.namelist() if "/DeltaSQLConf" in name)
