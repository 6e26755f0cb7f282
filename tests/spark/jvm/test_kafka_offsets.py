"""What Java says about patterns of topics, without a broker. With one: tests/spark/inputs/test_kafka.py."""

from __future__ import annotations

import pytest

from recovery.spark.jvm.kafka_offsets import found_by


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("[a-z&&[^b]]der", True), (r"\p{Lu}", False), ("(?i)ORD", True), ("^order$", False), ("(", True)],
)
def test_patterns_of_java(spark, pattern, found):
    """Java searches for what Python lacks, or takes otherwise; of what Java refuses, Spark says why."""
    assert found_by(spark, pattern, ["orders"]) == ({"orders"} if found else set())
