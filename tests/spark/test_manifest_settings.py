"""The settings of Spark in the examples for clusters are settings that Spark has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
FILES = ("kubernetes.yaml", "kubernetes-owners.yaml")
WITH_A_NAME = "spark.kubernetes.executor.label."
"""The rest of such a setting is the user's."""


@pytest.mark.parametrize("file", FILES)
def test_settings_of_an_example_exist(spark, file):
    """Spark ignores a setting that it does not know."""
    jvm = spark._jvm
    for each in ("org.apache.spark.internal.config.package$", "org.apache.spark.deploy.k8s.Config$"):
        jvm.java.lang.Class.forName(each)
    given = set(re.findall(r"--conf=(spark\.[\w.]+)=", (CLUSTER / file).read_text()))
    assert len(given) > 8
    entry = jvm.org.apache.spark.internal.config.ConfigEntry
    assert [each for each in sorted(given)
            if entry.findEntry(each) is None and not each.startswith(WITH_A_NAME)] == []  # fmt: skip
    assert entry.findEntry("spark.kubernetes.authenticate.serviceAccountName") is None
