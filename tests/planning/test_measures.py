"""Values that are measured, and which of them stay."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.errors import CorruptPartitionError
from recovery.planning.measures import (
    Measure,
    StepSize,
    from_text,
    measure_json,
    operator_rows,
    outdated,
    summed,
    to_text,
)
from recovery.planning.values import ClosedEpoch, Execution


def test_a_measure_comes_back_equal():
    """Through the text that is stored."""
    measure = Measure(
        execution=3, epoch=7, measured_ms=1, resume_s=0.5, batches=2, batch_s=1.5, looked_up=10, seam_s=0.25,
        memory_driver_bytes=5, memory_workers_bytes=6, steps={"ключ": StepSize(2, 30), "b": StepSize(1, 4)},
        operators={0: 12, 3: 0},
    )  # fmt: skip
    assert from_text(to_text(measure), CorruptPartitionError) == measure
    assert (measure.state_rows, measure.state_bytes, measure.memory_bytes) == (3, 34, 11)
    assert measure.update_latency_s == 0.025
    assert json.loads(json.dumps(measure_json(measure)))["steps"]["b"] == {"rows": 1, "bytes": 4}


def test_a_measure_of_another_version_is_read():
    """Fields that are missing have their defaults, those that are not known are left out."""
    found = from_text('{"execution":1,"epoch":2,"measured_ms":3,"resume_s":0.1,"later":[1]}', CorruptPartitionError)
    assert (found.epoch, found.steps, found.update_latency_s, found.memory_bytes, found.operators) == (
        2,
        {},
        None,
        None,
        {},
    )
    with pytest.raises(CorruptPartitionError):
        from_text("{}", CorruptPartitionError)


def test_rows_of_operators_are_those_of_the_very_micro_batch():
    """Of the timeline's own run, also when an edit without a micro-batch came after it; else they are not known."""
    first, second, edit = (
        Execution(number, f"id{number}", "flow", resume, 0, 10.0, 0.0, "host", 1, "0")
        for number, resume in ((1, 1), (2, 2), (3, 4))
    )

    def rows(epoch, batch, by):
        snapshot = ClosedEpoch(epoch, by.lease, batch, 0, 0, 0, 0, 0, 0, 0)
        executions = [each for each in (first, second, edit) if each.number <= by.number]
        return operator_rows(measures, executions, snapshot)

    measures = [
        Measure(execution=number, epoch=epoch, batch=batch, measured_ms=0, resume_s=0, operators=operators)
        for number, epoch, batch, operators in (
            (1, 0, -1, {}), (1, 1, 0, {0: 10}), (1, 2, 1, {0: 20}), (1, 3, 2, {0: 30}),
            (2, 0, -1, {}), (2, 2, 1, {0: 21}), (2, 3, 2, {}),
        )
    ]  # fmt: skip
    assert rows(1, 0, first) == {0: 10}
    assert rows(3, 2, first) == {0: 30}, "going back has not happened yet"
    assert rows(1, 0, second) == {0: 10}
    assert rows(2, 1, second) == {0: 21}
    assert rows(3, 2, second) == {}, "of the abandoned run there is a number, and it is not this one's"
    assert rows(4, 2, edit) == {}
    measures[-1] = Measure(execution=2, epoch=3, batch=2, measured_ms=0, resume_s=0, operators={0: 31})
    assert rows(4, 2, edit) == {0: 31}


@given(st.integers(1, 30_000))
def test_what_stays_is_bounded_and_spread(count):
    """The newest 1,000, of the 9,000 before every 10th, of the 90,000 before every 100th; each leaves once."""
    kept = {1, *range(max(1, count - 40_000), count + 1)}
    for measure_id in range(max(1, count - 300), count + 1):
        gone = outdated(measure_id)
        assert len(gone) <= 8
        assert len(set(gone)) == len(gone)
        kept -= set(gone)
    assert set(range(max(1, count - 999), count + 1)) <= kept


def test_how_many_stay():
    """Of 100,000 measures 2,800, and all of them where they should be."""
    kept = set()
    for measure_id in range(1, 100_001):
        kept.add(measure_id)
        for gone in outdated(measure_id):
            kept.remove(gone)
    assert kept == {
        n for n in range(1, 100_001)
        if n > 99_000 or (n > 90_000 and n % 10 == 0) or n % 100 == 0
    }  # fmt: skip
    assert len(kept) == 1_000 + 900 + 900


def test_sizes_add_up_over_partitions():
    """A step that only one partition knows counts too."""
    parts = [{"a": StepSize(1, 10)}, {"a": StepSize(2, 20), "b": StepSize(3, 5)}]
    assert summed(parts) == {"a": StepSize(3, 30), "b": StepSize(3, 5)}
