"""What counts as new input covers all that Spark would read: the listing here against Spark's own."""

from __future__ import annotations

from urllib.parse import unquote

from recovery.idle.note import NotedSource
from recovery.idle.sources import Positions, _files_of, new_input, noted_source
from tests.shares import first
from tests.spark.conftest import spark  # noqa: F401

NAMES = [
    "a.txt", "b.json", "_hidden.txt", ".dot.txt", "x._COPYING_", "_metadata", "_common_metadata", "_k=v.txt",
    "sub/c.txt", "_sub/d.txt", ".sub/e.txt", "day=1/f.txt", "day=1/hour=2/g.txt", "with space/h.txt", "a1/i.txt",
    "a2/j.txt", "a[1]/k.txt", "ü/l.txt", "100%/m.txt", "deep/er/still/n.txt",
]  # fmt: skip
PATHS = [
    "",
    "*",
    "*.txt",
    "a?",
    "a[12]",
    "{a1,a2}",
    "a{1,2}/*.txt",
    "day=*",
    "*/*",
    "deep/*/*",
    "[!_]*",
    "sub/c.txt",
    "a*/*.txt",
]


@first("path", PATHS)
def test_every_file_that_spark_reads_is_looked_at(spark, tmp_path, path):  # noqa: F811
    """Wildcards, hidden names, directories within directories. Files beyond Spark's only start Spark in vain."""
    for name in NAMES:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("x\n")
    within = f"{tmp_path}/{path}"
    # Without it, Spark takes directories for partitions, and these do not fit.
    found = spark.read.option("recursiveFileLookup", "true").text(within).inputFiles()
    by_spark = {unquote(each).removeprefix("file://") for each in found}
    assert by_spark
    assert by_spark <= set(_files_of(within.rstrip("/")))


def test_what_a_note_keeps_of_a_source():
    """Paths, and for growing files what says how they are read. Other options may be secrets."""
    options = {"path": "logs", "password": "x", "header": "true"}
    assert noted_source("CSV", options) == NotedSource("csv", {"path": "logs"})
    assert noted_source("appended", {"path": "a", "lastline": "take"}) == NotedSource(
        "appended", {"path": "a", "lastline": "take"}
    )
    assert noted_source("kafka", {"subscribe": "topic"}) is None
    assert noted_source("text", {"path": "logs", "cleansource": "delete"}) is None


def test_positions_that_do_not_fit():
    """A position of another number of sources, or before anything was read, is no answer."""
    places = '[{"source":0,"reads":"text a b "}]'
    source = NotedSource("text", {"path": "logs"})
    assert "which source" in (new_input([source], places, Positions("v1\n{}\n1\n2", {})) or "")
    assert "nothing was read yet" in (new_input([source], places, Positions("v1\n{}\n-", {})) or "")
    away = NotedSource("text", {"path": "s3a://bucket/logs"})
    assert "only Spark" in (new_input([away], places, Positions('v1\n{}\n{"logOffset":0}', {})) or "")
