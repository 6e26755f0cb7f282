"""What counts as new input covers all that Spark would read: the package's listing against Spark's own."""

from __future__ import annotations

from urllib.parse import unquote

from recovery.idle.sources import _files_of
from tests.shares import first

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
def test_every_file_that_spark_reads_is_looked_at(spark, tmp_path, path):
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
