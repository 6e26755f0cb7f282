"""IcebergSink in a running flow: types, kills of the process, and rewinds."""

from __future__ import annotations

import pytest

from recovery import IcebergSink
from recovery.sinks.iceberg.columns import schema_of
from recovery.sinks.tables.columns import nullable
from tests.flows.tables import NAME, properties
from tests.shares import some
from tests.spark.support import run_to_end, totals_step
from tests.spark.tables import ALL_TYPES, ODD_KEY, ROW_OF_ODD_KEY, check_kills, points
from tests.spark.test_sinks import running_totals

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy", reason="the catalog of these tests: pip install 'pyiceberg[sql-sqlite]'")
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.partitioning import partition_record_value
from pyiceberg.transforms import parse_transform


def table(path):
    return load_catalog("default", **properties(path)).load_table(NAME)


def rows(path) -> list[tuple]:
    """The rows of the table, sorted."""
    found = table(path).scan().to_arrow().to_pylist()
    return sorted(tuple(row[name] for name in ("key", "n", "total")) for row in found)


def test_types(spark, feed, tmp_path):
    """Every type that Spark and Iceberg share comes back as it was; a byte is an int there."""
    feed.add([("a", 1), (ODD_KEY, 2)])
    feed.add([("", 3)])
    run_to_end(
        feed.frame(spark).selectExpr(ALL_TYPES), tmp_path / "db", IcebergSink(NAME, properties=properties(tmp_path))
    )
    found = table(tmp_path).scan().to_arrow().sort_by("b").to_pylist()
    assert [row["key"] for row in found] == [key for key, _ in feed.rows]
    assert found[1] == ROW_OF_ODD_KEY


def test_each_row_once_through_a_rewind(spark, feed, tmp_path):
    """After runs and a rewind the table has what an uninterrupted run gives; no snapshot is gone."""
    frame = feed.frame(spark).transform(totals_step())
    for seed in range(3):
        feed.add_random(seed)
    run_to_end(frame, tmp_path / "db", IcebergSink(NAME, properties=properties(tmp_path)), backup_interval="1h")
    before = {each.snapshot_id for each in table(tmp_path).snapshots()}
    feed.add_random(3)
    sink = IcebergSink(NAME, properties=properties(tmp_path))
    run_to_end(frame, tmp_path / "db", sink, resume_epoch=2, backup_interval="1h")
    assert rows(tmp_path) == sorted(running_totals(feed.rows))
    assert before < {each.snapshot_id for each in table(tmp_path).snapshots()}


@pytest.mark.long
@pytest.mark.parametrize("kills", [pytest.param(each, id=i) for i, each in points("iceberg").items()])
def test_killed_between_the_steps_of_publishing(feed, tmp_path, kills):
    """After kill -9 at each step of publishing and of going back, each row is in the table once."""
    flow = f"tests/flows/tables.py:make_iceberg({str(feed.path)!r}, {str(tmp_path)!r})"
    check_kills(feed, tmp_path / "db", flow, kills, lambda: rows(tmp_path))


MOMENTS = [
    "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00", "1582-10-15 12:00:00", "2026-11-01 05:30:00",
    "2026-11-01 06:30:00", "2026-12-31 23:30:00", "9000-02-28 01:00:00",
]  # fmt: skip
"""In UTC. In New York the same hour comes twice within them."""
PARTITIONS = {
    "key": ["identity", "truncate[2]"],
    "n": ["truncate[10]"],
    "amount": ["identity"],
    "flag": ["identity"],
    "day": ["identity", "month"],
    "at": ["year", "hour", "day"],
    "local": ["month", "hour"],
}
KEYS = "NULL, '', 'a', 'ab', 'abc', 'é/ü=%', repeat('x', 300)"


def typed(feed, spark):
    """Rows of all types that partitions are made of, with NULL."""
    moments = ", ".join(f"TIMESTAMP_NTZ '{each}'" for each in MOMENTS)
    micros = "timestampdiff(MICROSECOND, TIMESTAMP_NTZ '1970-01-01 00:00:00', local)"
    frame = (
        feed.frame(spark)
        .withColumnRenamed("value", "n")
        .selectExpr(
            f"element_at(array({KEYS}), CAST(pmod(n, 7) + 1 AS INT)) AS key",
            "n",
            f"element_at(array({moments}, NULL), CAST(pmod(n, 8) + 1 AS INT)) AS local",
        )
    )
    return frame.selectExpr(
        "key", "n", "CAST(n AS DECIMAL(9, 2)) AS amount", "n > 0 AS flag", "CAST(local AS DATE) AS day",
        f"timestamp_micros({micros}) AS at", "local",
    )  # fmt: skip


@pytest.mark.parametrize(
    "partition",
    some(
        [f"{transform} of {name}" for name, kinds in PARTITIONS.items() for transform in kinds],
        "hour of local",
    ),
)  # fmt: skip
def test_partitions(spark, feed, tmp_path, partition):
    """Each file has rows of one partition, NULL is one of its own, and a reader who filters finds each row."""
    transform, _, column = partition.split()
    feed.add([("a", number * 3 - 30) for number in range(20)])
    feed.add([("a", number * 3 - 29) for number in range(10)])
    frame = typed(feed, spark)
    catalog = load_catalog("default", **properties(tmp_path))
    catalog.create_namespace("db")
    catalog.create_table(NAME, schema_of(nullable(frame.schema.json())))
    with table(tmp_path).update_spec() as update:
        update.add_field(column, parse_transform(transform), "part")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        run_to_end(frame, tmp_path / "db", IcebergSink(NAME, properties=properties(tmp_path)))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    written = table(tmp_path)
    found = written.scan().to_arrow()
    assert sorted(found["n"].to_pylist()) == sorted(n for _, n in feed.rows)
    every = found[column].to_pylist()
    field, schema = written.spec().fields[0], written.schema()
    of = field.transform.transform(schema.find_type(column))
    assert {task.file.partition[0] for task in written.scan().plan_files()} == {
        of(partition_record_value(field, value, schema)) for value in every
    }
    assert len(set(every)) > 1
    for value in set(every):
        text = value.isoformat() if hasattr(value, "isoformat") else value
        rows = written.scan(row_filter=IsNull(column) if value is None else EqualTo(column, text)).to_arrow()
        assert len(rows) == every.count(value), value
