"""What differs between versions of Spark: the same results in each. `.ci/run` runs this on several."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery import register
from recovery.errors import ConfigurationError
from recovery.spark.jvm import versions
from recovery.spark.jvm.installed import installed_version, version_of
from recovery.spark.tuning.tuning import VARIABLE
from tests.shares import first
from tests.spark.support import run_to_end

NESTED = "at timestamp, many array<struct<at: timestamp, n: int>>, named map<string, timestamp>, plain timestamp_ntz"


def test_the_version_is_read_without_an_import():
    """From the file beside the package."""
    import pyspark

    assert installed_version() == pyspark.__version__
    assert [version_of(text) for text in ("4.3.0", "4.10.0.dev1", "snapshot")] == [(4, 3), (4, 10), (0, 0)]


def test_timestamps_have_the_zone_that_is_asked_for(spark):
    """Also within other types; those without a time zone have none."""
    schema = versions.to_arrow_schema(T.StructType.fromDDL(NESTED), "Asia/Tokyo")
    zoned = pa.timestamp("us", "Asia/Tokyo")
    assert schema.field("at").type == zoned
    assert schema.field("many").type.value_type.field("at").type == zoned
    assert schema.field("named").type.item_type == zoned
    assert schema.field("plain").type == pa.timestamp("us")
    assert versions.to_arrow_type(T.TimestampType(), "Asia/Tokyo") == zoned


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


@first("count", [1, 2, 7])
def test_rows_go_to_the_partition_that_is_named(spark, monkeypatch, count):
    """By the function that Spark 4.0 lacks, and by what takes its place."""
    for version in {versions.VERSION, (4, 0)}:
        monkeypatch.setattr(versions, "VERSION", version)
        frame = spark.range(100).withColumn("place", (F.col("id") % count).cast("int"))
        placed = versions.repartition_by_id(frame, count, F.col("place"))
        assert placed.where(F.spark_partition_id() != F.col("place")).count() == 0
        assert placed.rdd.getNumPartitions() == count


@first("off", ["", "-appended-lines"], ids=["by the JVM", "by Python"])
def test_a_flow_reads_growing_files(spark, tmp_path, monkeypatch, off):
    """In micro-batches of the size that is asked for, over two runs; each line once."""
    monkeypatch.setenv(VARIABLE, off)
    log, seen = tmp_path / "app.log", []

    class Seen:
        single_action = True

        def write(self, batch, batch_id):
            seen.append([row.value for row in batch.collect()])

    for lines in (range(5), range(5, 7)):
        with log.open("a") as out:
            out.writelines(f"line {number}\n" for number in lines)
        frame = spark.readStream.format("appended").option("maxBytesPerTrigger", "16b").load(str(log))
        run_to_end(frame, tmp_path / "db", Seen())
    assert [line for each in seen for line in each] == [f"line {number}" for number in range(7)]
    assert max(map(len, seen)) == 2


@pytest.mark.skipif(versions.REPLACES_FORMATS, reason="since 4.1 a session can")
def test_a_format_that_spark_has_found_by_itself(spark):
    """A session cannot have its own, and it says so."""
    with pytest.raises(ConfigurationError, match=r"PySpark 4\.0\.\d has found format\(\"recovery\"\) by itself"):
        register(spark)


@pytest.mark.skipif(versions.VERSION >= (4, 2), reason="since 4.2 any query can")
def test_growing_files_in_a_query_of_somebody_else(spark, tmp_path, monkeypatch):
    """A reader in Python does not know where the micro-batch starts, and says so."""
    monkeypatch.setenv(VARIABLE, "-appended-lines")
    (tmp_path / "app.log").write_text("line\n")
    query = spark.readStream.format("appended").load(str(tmp_path / "app.log")).writeStream.format("noop")
    with pytest.raises(StreamingQueryException, match="'appended' is read by a query that this package has not"):
        query.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination(60)
