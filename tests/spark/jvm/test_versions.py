"""What differs between versions of Spark: the same results in each. `.ci/run` runs this on several."""

from __future__ import annotations

import pyarrow as pa
import pytest

from recovery.spark.jvm import versions
from recovery.spark.jvm.installed import installed_version, version_of


def test_the_version_is_read_without_an_import():
    """From the file beside the package."""
    import pyspark

    assert installed_version() == pyspark.__version__
    assert [version_of(text) for text in ("4.3.0", "4.10.0.dev1", "snapshot")] == [(4, 3), (4, 10), (0, 0)]


def structs() -> pa.StructArray:
    """Three structs of a number; the second is NULL, and so is its number."""
    numbers = pa.array([1, None, 3], pa.int64())
    return pa.StructArray.from_arrays([numbers], names=["n"], mask=pa.array([False, True, False]))


STRUCT = pa.struct([pa.field("n", pa.int64(), nullable=False)])
OFFSETS = pa.array([0, 2, 2, 3], pa.int32())


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        (structs().slice(1), STRUCT, [None, {"n": 3}]),
        (
            pa.ListArray.from_arrays(OFFSETS, structs()).slice(1),
            pa.list_(pa.field("element", STRUCT, nullable=False)),
            [[], [{"n": 3}]],
        ),
        (
            pa.MapArray.from_arrays(OFFSETS, pa.array(["a", "b", "c"]), structs()).slice(2),
            pa.map_(pa.string(), pa.field("value", STRUCT)),
            [[("c", {"n": 3})]],
        ),
        (pa.array([1, None]), pa.int32(), [1, None]),
    ],
    ids=["struct", "list", "map", "plain"],
)
def test_structs_that_are_null_can_be_cast(monkeypatch, column, kind, values):
    """As Spark gives them before 4.3: with NULL in fields that are declared never to be."""
    monkeypatch.setattr(versions, "VERSION", (4, 2))
    found = versions.as_type(column, kind)
    found.validate(full=True)
    assert found.type == kind
    assert found.to_pylist() == values
