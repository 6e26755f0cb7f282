"""Spark's `transformWithState` with a function in Java, compiled by `javac`, for the query of `spark_totals`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAME = "KeyedTotals"
SOURCE = Path(__file__).with_name(f"{NAME}.java")


def compiled(python: Path, target: Path) -> str | None:
    """A directory with the class, for the driver's class path, made for the PySpark of this Python; None without a JDK.
    Called before anything is measured: the compiler's processor time is none of the query's."""
    of_home = Path(os.environ.get("JAVA_HOME", "/none"), "bin", "javac")
    compiler = of_home if of_home.exists() else shutil.which("javac")
    if compiler is None:
        return None
    find = [python, "-c", "import pyspark; print(pyspark.__path__[0])"]
    spark = subprocess.run(find, check=True, capture_output=True, text=True).stdout.strip()
    jars = Path(spark, "jars", "*")
    subprocess.run([compiler, "--release", "17", "-nowarn", "-cp", jars, "-d", target, SOURCE], check=True)
    return str(target.absolute())


def totals(spark: Any, events: Any) -> Any:
    """Count and sum of `value` for each `key`."""
    from pyspark.sql import DataFrame

    return DataFrame(getattr(spark._jvm, NAME).of(events._jdf), spark)


def write_states(spark: Any, checkpoint: str, target: Path) -> None:
    """The newest totals in a checkpoint, as CSV into a directory."""
    found = spark.read.format("statestore").option("stateVarName", "totals").load(checkpoint)
    found.selectExpr("key.key", "value._1", "value._2").write.csv(f"file:{target.absolute()}")
