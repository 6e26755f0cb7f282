"""This package's few Java classes for the driver's JVM, compiled by the compiler that Spark uses for its own code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from recovery.host import private
from recovery.spark.jvm.cache import compiled_once

_LOADER = "org.apache.spark.util.MutableURLClassLoader"
_installing = threading.Lock()
_loaded: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""The sources whose classes the tasks of a JVM find, by its gateway."""


def compiled(spark: SparkSession, source: str) -> Any:
    """Return a class loader for the classes of the file `source` of this package, which also finds Spark's classes."""
    jvm = spark._jvm
    assert jvm is not None
    loader = jvm.org.codehaus.commons.compiler.util.reflect.ByteArrayClassLoader
    return loader(bytecodes(spark, source), jvm.Thread.currentThread().getContextClassLoader())


def bytecodes(spark: SparkSession, source: str) -> dict[str, bytes]:
    """The code of the classes of the file `source` of this package, by their names: as an earlier process has compiled
    it, if that is kept, or else compiled now and kept."""
    jvm = spark._jvm
    assert jvm is not None
    text = files("recovery.spark").joinpath(source).read_text(encoding="utf-8")

    def compile_now() -> dict[str, bytes]:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
        compiler.cook(text)
        return dict(compiler.getBytecodes())

    return compiled_once(jvm, text, compile_now)


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


def new_for_tasks(spark: SparkSession, source: str, name: str) -> Any:
    """Make an object of the class `name` of the file `source` of this package. Tasks that run in the driver's JVM find
    its classes, too, and so does Spark by their names. None if the session's class loader takes no classes."""
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    loader = jvm.Thread.currentThread().getContextClassLoader()
    if loader.getClass().getName() != _LOADER:
        return None
    with _installing:
        loaded = _loaded.setdefault(gateway, set())
        if source not in loaded:
            home = private.home() / "classes"
            for each, code in bytecodes(spark, source).items():
                path = home.joinpath(*each.split(".")).with_suffix(".class")
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.write_bytes(code)
            if not loaded:
                loader.addURL(jvm.java.io.File(str(home)).toURI().toURL())
            loaded.add(source)
    return loader.loadClass(name).getConstructors()[0].newInstance(gateway.new_array(jvm.Object, 0))


def new(spark: SparkSession, name: str, arguments: Sequence[Any] = (), room: str = "tuning") -> Any:
    """Make an object of this package's Java class `name`, which is in `room`, with these arguments."""
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    given = gateway.new_array(jvm.Object, len(arguments))
    for place, each in enumerate(arguments):
        given[place] = each
    return compiled(spark, f"{room}/{name}.java").loadClass(f"recovery.{name}").getConstructors()[0].newInstance(given)
