"""Pipelines as they are written down: their form, and the hash of a node's definition."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import partial

import pytest

from recovery import ConfigurationError, Node, Pipeline
from recovery.cli.flow_loader import load, load_flow
from recovery.errors import FlowLoadError
from tests.stores import run_python

SOURCE = """
from recovery import Node, Pipeline
TABLE = "orders"
def helper(frame):
    return frame.where("n > 1")
def make(limit):
    def clean(frame):
        return helper(frame).limit(limit)
    return clean
def read(spark):
    return spark.table(TABLE)
def write(frame, into={"a", "b"}):
    frame.write.saveAsTable("clean")
pipeline = Pipeline("nightly", [Node("clean", read=read, transform=make(5), write=write)])
"""
FIND = """
import sys
from recovery.cli.flow_loader import load
for path in sys.argv[1:]:
    print(load(path).nodes[0].definition)
"""


def definitions(sources: list[str], tmp_path) -> list[str]:
    """The hashes of the node in several sources, as one other process finds them."""
    paths = []
    for source in sources:
        # Each in a directory of its own: Python takes two sources of one size and second for the same.
        paths.append(tmp_path / str(len(list(tmp_path.iterdir()))) / "jobs.py")
        paths[-1].parent.mkdir()
        paths[-1].write_text(source)
    done = run_python(FIND, *paths)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_definition_is_the_same_in_every_process(tmp_path):
    """Also with blank lines, comments and another node's code changed."""
    changed = f"# a comment\n\n{SOURCE}\ndef unused(): ...\n"
    assert definitions([SOURCE], tmp_path) == definitions([changed], tmp_path)


CHANGES = [
    ("n > 1", "n > 2"), ("make(5)", "make(6)"), ('"orders"', '"invoices"'), ('{"a", "b"}', '{"a", "c"}'),
    ("spark.table", "spark.sql"), ('Node("clean"', 'Node("cleaned"'),
]  # fmt: skip


SETTINGS = """
import dataclasses
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from recovery import Node, Pipeline
@dataclasses.dataclass
class Settings:
    since: date
class Kind(Enum):
    A = 1
    B = 2
class Limits:
    most = 10
SINCE, SPAN, LIMIT, PLACE, KIND = date(2024, 1, 1), timedelta(1), Decimal("1.0"), Path("in"), Kind.A
NAMED, GIVEN = {"from": date(2024, 2, 2)}, Settings(date(2024, 3, 3))
def used(spark):
    return spark.read.parquet(SINCE, SPAN, LIMIT, PLACE, KIND, NAMED, GIVEN, Limits.most)
pipeline = Pipeline("nightly", [Node("clean", read=used, write=print)])
"""


CHANGED_SETTINGS = [
    ("2024, 1", "2025, 1"), ("timedelta(1)", "timedelta(2)"), ('"1.0"', '"1.00"'), ('Path("in")', 'Path("out")'),
    ("Kind.A", "Kind.B"), ("2024, 2", "2025, 2"), ("2024, 3", "2025, 3"), ("most = 10", "most = 11"),
]  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The definitions of both sources and of every change of them, which one process finds."""
    changed = [(SOURCE, CHANGES), (SETTINGS, CHANGED_SETTINGS)]
    sources = [text.replace(*change) for text, changes in changed for change in [("", ""), *changes]]
    return dict(zip(sources, definitions(sources, tmp_path_factory.mktemp("jobs")), strict=True))


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_change_of_what_a_node_does_changes_its_definition(found, old, new):
    """Of its code, of functions and values of its module that it uses, of values it holds."""
    assert old in SOURCE
    assert found[SOURCE.replace(old, new)] != found[SOURCE]


@pytest.mark.parametrize(("old", "new"), CHANGED_SETTINGS)
def test_settings_of_all_kinds_count(found, old, new):
    """Days, spans, decimals, paths, members of enums, dataclasses and what a class has."""
    assert found[SETTINGS.replace(old, new)] != found[SETTINGS]


class Reader:
    """A source with a setting, that is called."""

    def __init__(self, table):
        self.table = table

    def __call__(self, spark):
        return spark.table(self.table)

    def read(self, spark):
        return spark.table(self.table)


def keyed(default):
    """A function with a keyword-only argument."""

    def read(spark, *, table=default):
        return spark.table(table)

    return read


@dataclass(slots=True)
class Slotted:
    """It has no dictionary of its attributes."""

    table: str

    def __call__(self, spark):
        return spark.table(self.table)


def plain(spark, table):
    return spark.table(table)


def other(spark, table):
    return spark.sql(table)


@pytest.mark.parametrize(
    ("one", "another"),
    [(Reader("x"), Reader("y")), (Reader("x").read, Reader("y").read), (keyed("x"), keyed("y")),
     (partial(plain, table="x"), partial(plain, table="y")), (partial(plain, table="x"), partial(other, table="x")),
     (Slotted("x"), Slotted("y")), (len, print)],
    ids=["called", "method", "keyword", "partial", "partial function", "slots", "built in"],
)  # fmt: skip
def test_values_of_all_kinds_of_callables_count(one, another):
    """What differs in an attribute, in a keyword or in what is wrapped is another node."""
    assert Node("a", read=one, write=len).definition == Node("a", read=one, write=len).definition
    assert Node("a", read=one, write=len).definition != Node("a", read=another, write=len).definition


class Dispatching(Reader):
    """It holds methods of its own, and changes while it reads."""

    def __init__(self, table):
        super().__init__(table)
        self.by_kind = {"csv": self.read, "all": self}
        self.count = 0

    def read(self, spark):
        self.count += 1
        return super().read(spark)

    @classmethod
    def made(cls, spark):
        return spark


@pytest.mark.parametrize("role", ["read", "made"])
def test_a_definition_is_that_of_before_the_run(role):
    """Although what it holds changes with it, and leads back to itself."""
    reader = Dispatching("x")
    node = Node("a", read=getattr(reader, role), write=len)
    first = node.definition
    reader.count += 1
    assert node.definition == first == Node("a", read=getattr(Dispatching("x"), role), write=len).definition


def test_what_cannot_be_a_pipeline():
    """Each says what is wrong."""
    node = Node("a", read=len, write=len)
    with pytest.raises(ConfigurationError, match="2 nodes called 'a'"):
        Pipeline("p", [node, node])
    with pytest.raises(ConfigurationError, match="needs 'b'"):
        Pipeline("p", [Node("a", read=len, write=len, needs=["b"])])
    with pytest.raises(ConfigurationError, match="is a text"):
        Node("a", read=len, write=len, needs="b")
    with pytest.raises(ConfigurationError, match="write=None"):
        Node("a", read=len, write=None)
    with pytest.raises(ConfigurationError, match="name of a pipeline"):
        Pipeline("", [])


def test_a_pipeline_is_found_by_its_usual_name(tmp_path):
    """When the file has no flow; where a flow is wanted it is refused."""
    path = tmp_path / "jobs.py"
    path.write_text(textwrap.dedent(SOURCE))
    assert load(str(path)).name == "nightly"
    assert load(f"{path}:pipeline").name == "nightly"
    with pytest.raises(FlowLoadError, match="not a flow"):
        load_flow(str(path))
    with pytest.raises(FlowLoadError):
        load(f"{path}:TABLE")
