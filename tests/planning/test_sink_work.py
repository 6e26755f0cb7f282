"""What a sink has done, in parts and as text."""

from __future__ import annotations

from recovery.planning.measures import Measure, measure_json
from recovery.planning.sink_work import SinkWork


def test_the_work_of_an_epoch():
    """Counts are differences; what is true now is not."""
    before = SinkWork(staged=10, produced=4, transactions=1, transaction_s=0.5, last_transaction_s=0.5, waiting=6)
    after = SinkWork(staged=12, produced=12, transactions=3, transaction_s=0.75, last_transaction_s=0.1, compensated=2)
    assert after.since(before) == SinkWork(
        staged=2, produced=8, compensated=2, transactions=2, transaction_s=0.25, last_transaction_s=0.1
    )
    assert before.as_text() == "4 records produced, 6 records wait"
    assert SinkWork(produced=1, waiting=1).as_text() == "1 record produced, 1 record waits"


def test_a_measure_with_the_work_of_its_sink():
    """`status --json` shows it; without a sink that counts it is null."""
    plain = Measure(execution=1, epoch=1, measured_ms=0, resume_s=0)
    assert measure_json(plain)["sink"] is None
    found = measure_json(Measure(execution=1, epoch=1, measured_ms=0, resume_s=0, sink=SinkWork(produced=3)))
    assert found["sink"]["produced"] == 3
