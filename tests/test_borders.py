"""Which room may import which: the layers of the package, in one table."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import recovery
from tests.statements import statements

PACKAGE = Path(recovery.__file__).parent
MODULES = {
    ".".join(("recovery", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

LAYERS = (
    "base.printable setting",
    "errors",
    "base",
    "host",
    "places",
    "aggregates values",
    "group_state planning",
    "appended checkpoint config metrics",
    "storage.seam",
    "wire",
    "hadoop storage",
    "owner sinks",
    "epochs flow",
    "operational",
    "backup importing operators partitioning pipeline",
    "idle replication report runnable",
    "ui.facts",
    "ui.api",
    "ui.pages",
    "ui.server",
    "ui.beside",
    "spark.clusters",
    "spark.jvm",
    "spark.steps",
    "spark.tasks",
    "spark.sources spark.pipelines",
    "spark.tuning",
    "spark.planner",
    "spark.inputs",
    "spark.run",
    "demo",
    "cli",
)
"""The rooms, from the lowest floor to the highest: a room imports from lower floors only, not from its own neighbours.
docs/architecture.md shows the same table."""

EXCEPTIONS = {
    "recovery.spark.steps.sent -> recovery.spark.tasks.run_tasks": "the closure that Spark sends to its workers",
    "recovery.spark.steps.sent -> recovery.spark.tasks.arrow_task": "the closure that Spark sends to its workers",
}

LIBRARIES = {
    "pyspark": "hadoop places.hadoop spark demo sinks flow pipeline aggregates cli.flow_loader cli.operators",
    "py4j": "places.hadoop spark",
    "pandas": "",
    "sqlite3": "",  # a second SQLite library in the process would drop the locks of the first
    "apsw": "storage",
    "obstore": "places.documents",
    "fcntl": "host.locks host.cloned",
    "starlette": "ui",
    "uvicorn": "ui.server",
    "jinja2": "ui.pages",
}
"""Which rooms may import a library."""

PURE = ("time", "random", "secrets", "os", "shutil", "subprocess", "socket")
"""What planning does not import: no clock, no chance, no files. What it needs comes in as arguments."""

STORAGE = (
    "bytewax connect copied copies documents erasing glance history hydration initialize kept lock moving.arriving "
    "moving.blocks moving.departed moving.leaving moving.mover moving.task no_partitions origin others owner_reader "
    "reach reading repartition restored scan seam snapshot staged standby store verify"
)
"""The public modules of `recovery.storage`: all that other rooms may import of it."""

PRIVATE_STORAGE = {
    "recovery.backup.manifest -> recovery.storage.sqlite.digests": "manifests have the digests of partitions",
    "recovery.backup.restore -> recovery.storage.sqlite.file.opening": "the name of a partition's file",
    "recovery.backup.sources -> recovery.storage.sqlite.file.statements": "SQLite's errors as typed ones",
}

DOORS = ("spark.jvm.cache",)
"""Rooms of which others import only the names of the room itself, and none of its modules."""

JVM_ROOMS = "hadoop places.hadoop spark.jvm spark.tuning spark.planner"
JVM_MODULES = {
    "recovery.spark.sources.appended",
    "recovery.spark.sources.driver_relay",
    "recovery.spark.steps.column_types",
    "recovery.spark.steps.combine",
    "recovery.spark.run.launch",
    "recovery.spark.run.reporting.measuring",
    "recovery.spark.run.reporting.operator_rows",
    "recovery.spark.run.source_starts",
    "recovery.spark.run.warmup_flows",
}
"""Modules outside of the rooms for it that name internals of the JVM. This list only shrinks."""
JVM_NAMES = re.compile(r"\._(jvm|jdf|jsq|jsc|jsparkSession|gateway)\b")


@cache
def imported(module: str) -> set[str]:
    """What a module imports anywhere in its text, types and functions included: names like package.module.name."""
    found: set[str] = set()
    for node in statements(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@cache
def modules_used(module: str) -> set[str]:
    """The modules of this package that a module imports."""
    found = set()
    for name in imported(module):
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        found.add(name)
    return {name for name in found - {"", module} if name.startswith("recovery")}


def within(module: str, *rooms: str) -> bool:
    """Whether a module is one of these rooms, or in one of them."""
    return any(f"{module}.".startswith(f"recovery.{room}.") for room in rooms)


def floor(module: str) -> tuple[int, str] | None:
    """The floor and the room of a module; the longest name counts. None for `recovery` and `__main__`."""
    rooms = [(number, room) for number, each in enumerate(LAYERS) for room in each.split() if within(module, room)]
    return max(rooms, key=lambda found: len(found[1]), default=None)


def test_every_module_has_a_room():
    """But the package itself, and the module that starts the command."""
    assert {name for name in MODULES if floor(name) is None} == {
        "recovery",
        "recovery.__main__",
        "recovery.spark",
        "recovery.ui",
        # A documented name; the code is in values.keys.
        "recovery.keys",
    }


def test_imports_go_down():
    """A room imports from lower floors, and what lies inside it."""
    floors = {name: found for name in MODULES if (found := floor(name)) is not None}
    up = {
        f"{module} -> {name}"
        for module, (own, room) in floors.items()
        for name in modules_used(module) & floors.keys()
        if floors[name][1] != room and floors[name][0] >= own
    }
    assert up - EXCEPTIONS.keys() == set()


def test_no_circles():
    """Not between any two modules, lazy imports included, but for the exceptions."""
    arrows = {
        name: {used for used in modules_used(name) if f"{name} -> {used}" not in EXCEPTIONS and used != "recovery"}
        for name in MODULES
        if name != "recovery"
    }
    while free := {name for name, used in arrows.items() if not used & arrows.keys()}:
        for name in free:
            del arrows[name]
    assert arrows == {}


def roots(module: str) -> set[str]:
    """The packages that a module imports."""
    return {name.split(".")[0] for name in imported(module)}


def test_libraries_stay_in_their_rooms():
    """Spark, SQLite, pandas and locks on files are known where the table says, and nowhere else."""
    rooms = {library: allowed.split() for library, allowed in LIBRARIES.items()}
    wrong = {
        f"{module} -> {library}"
        for module in MODULES
        for library in roots(module) & rooms.keys()
        if not within(module, *rooms[library])
    }
    assert wrong == set()


def test_storage_is_used_by_its_public_names():
    """The modules of the list, and nothing in them that begins with an underscore."""
    public = {f"recovery.storage.{name}" for name in STORAGE.split()}
    outside = [name for name in MODULES if not within(name, "storage")]
    private = {
        f"{module} -> {name}" for module in outside for name in modules_used(module) - public if within(name, "storage")
    }
    assert private - PRIVATE_STORAGE.keys() == set()
    used = {name for module in outside for name in imported(module) if name.startswith("recovery.storage.")}
    assert [name for name in used if name.rpartition(".")[2].startswith("_")] == []


@pytest.mark.parametrize("room", DOORS)
def test_a_room_with_one_door(room):
    """Others know no module in it."""
    inside = {name for name in MODULES if within(name, room)}
    assert len(inside) > 1
    used = {(name, other) for name in MODULES if name not in inside for other in modules_used(name) & inside}
    assert [each for each in used if each[1] != f"recovery.{room}"] == []


def test_planning_does_nothing():
    """Plans are functions of values."""
    touching = r"\.(?:exists|open|read_text|read_bytes|stat|iterdir|glob|mkdir|unlink)\("
    for module in (name for name in MODULES if within(name, "planning")):
        assert roots(module) & set(PURE) == set(), module
        assert re.findall(touching, MODULES[module].read_text()) == [], module


@pytest.mark.parametrize("room", ["storage", "backup"])
def test_time_and_chance_come_in_as_arguments(room):
    """What may wait or draw is named here."""
    allowed = {
        "recovery.storage.lock": {"time"},
        "recovery.storage.moving.leaving": {"time"},
        "recovery.storage.initialize": {"secrets"},
        "recovery.storage.store": {"secrets"},
    }
    for module in (name for name in MODULES if within(name, room)):
        assert roots(module) & {"time", "random", "secrets"} == allowed.get(module, set()), module


def test_the_jvm_is_named_in_its_rooms():
    """So that another version of Spark has few places to look at."""
    naming = {name for name, path in MODULES.items() if JVM_NAMES.search(path.read_text())}
    assert {name for name in naming if not within(name, *JVM_ROOMS.split())} <= JVM_MODULES


def test_the_documentation_shows_the_table():
    """docs/architecture.md has each floor as a line, in this order."""
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    shown = re.findall(r"^\| \d+ \| (.+?) \|", page, re.MULTILINE)
    assert [re.findall(r"`([\w.]+)`", line) for line in shown] == [layer.split() for layer in LAYERS]


def test_the_documentation_names_files_and_folders_that_exist():
    """Every path in docs/architecture.md, from the root of the repository or from the package."""
    root = PACKAGE.parent
    page = (root / "docs" / "architecture.md").read_text()
    named = {each for each in re.findall(r"`([\w./-]+)`", page) if re.search(r"\.(py|md|java)$|/$", each)}
    assert len(named) > 60
    missing = {each for each in named if not (root / each).exists() and not (PACKAGE / each).exists()}
    assert missing == set()


def test_the_drawn_tree_has_every_room():
    """The tree of docs/architecture.md names each folder of the package, and no other."""
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    [tree] = re.findall(r"^## The rooms\n```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    drawn: set[str] = set()
    above: list[str] = []
    for line in tree.splitlines()[1:]:
        found = re.match(r"([│ ]*)[├└]── (\w+)/", line)
        if found:
            above = [*above[: len(found[1]) // 4], found[2]]
            drawn.add("/".join(above))
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")} - {"."}
    assert drawn == {each for each in folders if "startup" not in each}


def test_the_borders_are_about_something():
    """The modules are found, and so are their imports."""
    assert {"recovery.storage.scan", "recovery.planning.resume", "recovery.spark.run.position"} <= set(MODULES)
    assert "apsw.sqlite_extra" in imported("recovery.storage.sqlite.digests")
    assert "recovery.storage.reach" in modules_used("recovery.spark.tasks.run_tasks")
