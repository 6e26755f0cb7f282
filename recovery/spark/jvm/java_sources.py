"""This package's few Java classes for the driver's JVM, compiled by the compiler that Spark uses for its own code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from pyspark.sql import SparkSession

_installing = threading.Lock()


def compiled(spark: SparkSession, source: str) -> Any:
    """Compile the file `source` of this package; return a class loader for it, which also finds Spark's classes."""
    return _compiler(spark, source).getClassLoader()


def bytecodes(spark: SparkSession, source: str) -> dict[str, bytes]:
    """Compile the file `source` of this package; return the code of its classes by their names."""
    return dict(_compiler(spark, source).getBytecodes())


def _compiler(spark: SparkSession, source: str) -> Any:
    jvm = spark._jvm
    assert jvm is not None
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook((files("recovery.spark").joinpath(source)).read_text())
    return compiler


def planner_strategy(spark: SparkSession, name: str, arguments: Callable[[Any], Sequence[Any]]) -> Any:
    """Return the session's planner strategy of class `name`, which plans queries that are started from now on. If there
    is none yet, make one with the values that `arguments` returns for the JVM."""
    with _installing:
        experimental = spark._jsparkSession.experimental()
        strategies = experimental.extraStrategies()
        for each in map(strategies.apply, range(strategies.length())):
            if each.getClass().getName() == f"recovery.{name}":
                return each
        made = new(spark, name, arguments(spark._jvm))
        getattr(experimental, "extraStrategies_$eq")(strategies.appended(made))
        return made


def new(spark: SparkSession, name: str, arguments: Sequence[Any] = (), room: str = "tuning") -> Any:
    """Make an object of this package's Java class `name`, which is in `room`, with these arguments."""
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    given = gateway.new_array(jvm.Object, len(arguments))
    for place, each in enumerate(arguments):
        given[place] = each
    return compiled(spark, f"{room}/{name}.java").loadClass(f"recovery.{name}").getConstructors()[0].newInstance(given)
