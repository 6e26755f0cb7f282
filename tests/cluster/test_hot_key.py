"""300,000 keys over hosts, one of which has half of the rows: exact with each kind of step."""

from __future__ import annotations

import re

import pytest

from tests.flows.executors import hot_truth
from tests.stores import problems, state_at, window

ROWS = 600_000


@pytest.mark.long
@pytest.mark.parametrize("kind", ["stateful", "stateful_arrow", "aggregate"])
def test_a_hot_key_among_many(lab, beside, kind):
    """All rows of the hot key go to one task."""
    kept = beside(lab)
    output = kept.run(f"executors.py:hot({kind!r}, {ROWS}, 2)").succeed()
    print(output)
    held = state_at(kept.db, window(kept.db)[-1])
    found = {key: int(re.findall(r"\d+", text)[-1]) for (step, key), (text, _) in held.items() if step == "counts"}
    assert found == hot_truth(3 * ROWS)
    assert problems(kept.db) == []
