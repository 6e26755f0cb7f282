"""What the flow `native` of tests/flows/cluster.py puts out, beside a plain loop."""

from __future__ import annotations

import json
import re

from tests.flows.cluster import truth

FEW = ("--conf", "spark.sql.shuffle.partitions=4")


def assert_counts(output: str, rows_per_batch: int) -> list[int]:
    """Check that every micro-batch in the output has counted all rows so far; return their numbers."""
    found = re.findall(r"^counts (\d+) (\{.*\})$", output, re.MULTILINE)
    for batch, counts in found:
        assert json.loads(counts) == truth(rows_per_batch * (int(batch) + 1)), f"micro-batch {batch}"
    return [int(batch) for batch, _ in found]
