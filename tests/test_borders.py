"""Which module may know which: the borders inside the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import recovery

PACKAGE = Path(recovery.__file__).parent
MODULES = {
    ".".join(("recovery", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
SPARK = {"pyspark", "py4j"}
STORAGE_FOR_STATE = {f"recovery.storage.{name}" for name in ("states", "history", "lock", "files", "seam", "verify")}
STORAGE_FOR_BACKUPS = {
    f"recovery.storage.{name}" for name in ("copies", "digests", "files", "initialize", "lock", "schema", "verify")
}
STORAGE_FOR_SPARK = {
    f"recovery.storage.{name}" for name in ("seam", "files", "history", "initialize", "lock", "measures", "verify")
}


def imports(module: str) -> set[str]:
    """What a module imports anywhere in its text, types and functions included: names like package.module.name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def reaching(module: str, *forbidden: str) -> set[str]:
    """Imports that lead into one of the forbidden packages."""
    return {name for name in imports(module) if any((name + ".").startswith(each + ".") for each in forbidden)}


def below(*packages: str) -> list[str]:
    """The modules of the packages."""
    return [name for name in MODULES if any((name + ".").startswith(each + ".") for each in packages)]


@pytest.mark.parametrize("module", below("recovery.storage"))
def test_storage_knows_nothing_of_spark(module):
    """Neither Spark, nor our side of it, nor what runs flows."""
    assert (
        reaching(module, *SPARK, "pyarrow", "pandas", "recovery.spark", "recovery.cli", "recovery.spark.run.blocking")
        == set()
    )


@pytest.mark.parametrize("module", below("recovery.operational"))
def test_operational_state_knows_nothing_of_spark(module):
    """It is there without it, and knows storage by its public names."""
    assert reaching(module, *SPARK, "apsw", "recovery.spark", "recovery.cli", "recovery.spark.run.blocking") == set()
    used = reaching(module, "recovery.storage")
    assert {name.rpartition(".")[0] for name in used} <= STORAGE_FOR_STATE
    assert [name for name in used if name.rpartition(".")[2].startswith("_")] == []


@pytest.mark.parametrize("module", below("recovery.planning"))
def test_planning_knows_neither_sqlite_nor_spark(module):
    """Plans are functions of values."""
    assert reaching(module, *SPARK, "apsw", "sqlite3", "recovery.spark", "recovery.storage") == set()


@pytest.mark.parametrize("module", below("recovery.planning"))
def test_planning_does_nothing(module):
    """No clock, no randomness, no files: what it needs comes in as arguments."""
    assert reaching(module, "time", "datetime", "random", "secrets", "os", "shutil", "subprocess", "socket") == set()
    touching = r"\.(?:exists|open|read_text|read_bytes|stat|iterdir|glob|mkdir|unlink)\("
    assert re.findall(touching, MODULES[module].read_text()) == []


@pytest.mark.parametrize(
    "module", below("recovery.spark", "recovery.cli", "recovery.spark.run.blocking", "recovery.cli.flow_loader")
)
def test_the_spark_side_uses_storage_by_its_public_names(module):
    """Of storage it knows seven modules, and nothing in them that begins with an underscore."""
    used = reaching(module, "recovery.storage")
    assert {name.rpartition(".")[0] for name in used} <= STORAGE_FOR_SPARK
    assert [name for name in used if name.rpartition(".")[2].startswith("_")] == []


@pytest.mark.parametrize("module", below("recovery.backup"))
def test_backups_know_nothing_of_spark(module):
    """They know partitions through the public names of storage, and SQLite not at all."""
    assert reaching(module, *SPARK, "apsw", "recovery.spark", "recovery.cli", "recovery.spark.run.blocking") == set()
    used = reaching(module, "recovery.storage")
    assert {name.rpartition(".")[0] for name in used} <= STORAGE_FOR_BACKUPS
    assert [name for name in used if name.rpartition(".")[2].startswith("_")] == []


@pytest.mark.parametrize("module", below("recovery.backup"))
def test_backups_take_time_and_chance_as_arguments(module):
    """Clock and ids are passed in."""
    assert reaching(module, "time", "random", "secrets") == set()


@pytest.mark.parametrize("module", below("recovery.native"))
def test_native_state_is_looked_at_without_spark(module):
    """What is held is told, exported and imported without Spark, and storage known by its public names."""
    assert reaching(module, *SPARK, "apsw", "recovery.spark", "recovery.cli", "recovery.spark.run.blocking") == set()
    used = reaching(module, "recovery.storage")
    assert {name.rpartition(".")[0] for name in used} <= STORAGE_FOR_STATE
    assert [name for name in used if name.rpartition(".")[2].startswith("_")] == []


@pytest.mark.parametrize("module", below("recovery.metrics", "recovery.report"))
def test_metrics_and_report_know_neither_spark_nor_sqlite(module):
    """They are made of values, and look at a directory without Spark."""
    assert reaching(module, *SPARK, "apsw", "recovery.spark", "recovery.spark.run.blocking") == set()


@pytest.mark.parametrize("module", below("recovery.appended"))
def test_the_appended_source_stands_alone(module):
    """Reading growing files knows neither Spark nor partitions."""
    assert reaching(module, *SPARK, "apsw", "recovery.spark", "recovery.storage", "recovery.planning") == set()


@pytest.mark.parametrize("module", below("recovery.checkpoint"))
def test_checkpoints_are_files_and_rows(module):
    """Taking a Spark checkpoint and making it anew knows neither Spark nor SQLite, nor where rows are kept."""
    assert reaching(module, *SPARK, "apsw", "recovery.spark", "recovery.storage", "recovery.cli") == set()


@pytest.mark.parametrize("module", MODULES)
def test_one_sqlite_library_alone(module):
    """A second SQLite library in the process would drop the locks of the first."""
    assert reaching(module, "sqlite3") == set()


@pytest.mark.parametrize("module", below("recovery.storage"))
def test_storage_takes_time_and_chance_as_arguments(module):
    """The clock is passed in. What may wait or draw is named here: the lock's retries, the store's id."""
    allowed = {"recovery.storage.lock": {"time"}, "recovery.storage.initialize": {"secrets"}}
    assert reaching(module, "time", "datetime", "random", "secrets") == allowed.get(module, set())


def test_the_borders_are_about_something():
    """The modules are found, and so are their imports."""
    assert {"recovery.storage.sqlite.store", "recovery.planning.resume", "recovery.spark.run.position"} <= set(MODULES)
    assert reaching("recovery.storage.sqlite.digests", "apsw") == {"apsw", "apsw.sqlite_extra"}
    assert reaching("recovery.spark.run.position", "recovery.storage.sqlite.store") != set()
