"""The few classes of ours that the driver's JVM needs, compiled by the compiler that Spark has for its own code."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from pyspark.sql import SparkSession


def compiled(spark: SparkSession, source: str) -> Any:
    """The class loader of what stands in a file of this package, `source`; Spark's classes are behind it."""
    jvm = spark._jvm
    assert jvm is not None
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook((files("recovery.spark") / source).read_text())
    return compiler.getClassLoader()
